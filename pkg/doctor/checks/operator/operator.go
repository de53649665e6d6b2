// Package operator checks the GPU operator, its operands and the labels of nodes.
package operator

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
)

// Checks returns those of the GPU operator and what it brings, besides the device plugin.
//
// Not built: of op.versions the matrix of Kubernetes and operator versions that NVIDIA supports: it changes with each
// release, and a wrong row would accuse a healthy cluster; and CRDs are told by name only, because their schemas are
// not in a snapshot. Of op.clusterpolicy the kind GPUCluster of the newest operators, which is not in a snapshot
// either.
func Checks() []engine.Check {
	return []engine.Check{
		initChainCheck(), operandCheck(), nfdCheck(), policyCheck(), deployLabelCheck(), versionsCheck(),
		migManagerCheck(), gfdCheck(), peermemCheck(),
	}
}
