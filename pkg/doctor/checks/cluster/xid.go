package cluster

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// xidSeverity returns how bad a code is for the node's other users; empty when the code is not known.
func xidSeverity(code int) finding.Severity {
	known, ok := xid.Lookup(code)
	if !ok {
		return ""
	}
	switch known.Class {
	case "gpu_fatal":
		return finding.Error
	case "app", "info", "unused":
		return finding.Info
	}
	return finding.Warning
}
