package cluster

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// xidSeverity returns how severe an XID is for users of the node other than the program that caused it. It returns an
// empty string if the XID is unknown.
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
