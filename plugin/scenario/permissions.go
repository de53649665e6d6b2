package scenario

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/device"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/runtime"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/xid"
)

// Permissions returns the permissions that a trainer needs for all built-in scenarios and their faults.
func Permissions(ledgerNamespace string) ([]fault.Permission, error) {
	all, err := scenario.Builtin()
	if err != nil {
		return nil, err
	}
	return fault.Permissions(fault.BasePermissions(ledgerNamespace), exercise.Permissions(ledgerNamespace, all),
		xid.Permissions(ledgerNamespace),
		runtime.Permissions(ledgerNamespace), device.Permissions(ledgerNamespace), cuda.Permissions("")), nil
}
