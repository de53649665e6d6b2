// Package operator checks the GPU operator, its operands, and the node labels.
package operator

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
)

// Checks returns the checks for the GPU operator and its operands, except the device plugin.
//
// op.versions does not contain NVIDIA's matrix of supported Kubernetes and operator versions, because the matrix
// changes with each release, and an incorrect row would flag a healthy cluster. The check compares CRDs only by name,
// because a snapshot does not contain their schemas. op.clusterpolicy ignores the kind GPUCluster in the newest
// operators, because a snapshot does not contain it.
func Checks() []engine.Check {
	return []engine.Check{
		initChainCheck(), operandCheck(), restartsCheck(), nfdCheck(), policyCheck(), deployLabelCheck(),
		versionsCheck(), migManagerCheck(), gfdCheck(), peermemCheck(),
	}
}
