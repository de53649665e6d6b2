package api

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Handler is what Instance.Executables knows of a handler: the keys to look up.
type Handler struct{ Type, BinaryName string }

// Binary returns what the shim executes, as it is configured; empty when that is not runc's business.
func (h Handler) Binary() string {
	switch {
	case h.BinaryName != "":
		return h.BinaryName
	case h.Type == "" || strings.HasPrefix(h.Type, "io.containerd.runc."):
		return "runc"
	default:
		return ""
	}
}

// Shim returns what containerd executes: the runtime_type io.containerd.runc.v2 is containerd-shim-runc-v2
// (core/runtime/v2/shim/util.go in containerd). Empty for one that is no name of a shim.
func (h Handler) Shim() string {
	name := h.Type
	if name == "" {
		name = "io.containerd.runc.v2"
	}
	if path.IsAbs(name) {
		return name
	}
	parts := strings.Split(name, ".")
	if len(parts) < 2 || slices.Contains(parts, "") {
		return ""
	}
	return fmt.Sprintf("containerd-shim-%s-%s", parts[len(parts)-2], parts[len(parts)-1])
}
