package hardware

import (
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
)

// allRespond reports whether nvidia-smi shows all of the node's GPUs, and all of them respond.
func allRespond(v *facts.GPUView) bool {
	return v.SMI != nil && len(v.SMI.GPUs) > 0 && len(v.SMI.GPUs) >= len(facts.GPUAddresses(v.Node)) &&
		!slices.ContainsFunc(v.SMI.GPUs, func(g nvidiasmi.GPU) bool { return g.Lost() || g.MemoryTotal == nil })
}

// moreThan reports whether n is set and greater than limit.
func moreThan(n *int64, limit int64) bool { return n != nil && *n > limit }
