package api

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Handler contains the settings of a handler that determine its keys in Instance.Executables.
type Handler struct{ Type, BinaryName string }

// Binary returns the executable that the shim runs: BinaryName or, for runc's shims, runc by default. It is empty for
// other shims without a BinaryName.
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

// Shim returns the executable of the shim: containerd-shim-runc-v2 for the runtime_type io.containerd.runc.v2 (see
// core/runtime/v2/shim/util.go in containerd). It is empty if the type is not the name of a shim.
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
