package runtimeview

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// shadow returns the problem with the drop-in that hides the default handler, or with the setting that changes the
// default. It returns nil if there is none.
func (i *Instance) shadow(handler string) *containerd.Problem {
	for n, p := range i.Problems {
		if p.Kind == containerd.ProblemReplaces &&
			(i.configuredDefault == "" || slices.Contains(p.Handlers, handler)) {
			return &i.Problems[n]
		}
	}
	return nil
}

func (i *Instance) has(kind containerd.ProblemKind) bool {
	return slices.ContainsFunc(i.Problems, func(p containerd.Problem) bool { return p.Kind == kind })
}

// quotes returns the line that causes the problem, and containerd's interpretation of that line.
func (i *Instance) quotes(p containerd.Problem) []Quote {
	var all []Quote
	if line := i.Line(p.File, p.Line); line != "" {
		all = append(all, Quote{fmt.Sprintf("%s:%d", p.File, p.Line), line})
	}
	return append(all, Quote{"containerd " + i.Release + " reads it as", p.Text})
}

func (i *Instance) loads(file string) bool { return slices.Contains(i.paths(), file) }

func (i *Instance) paths() []string {
	var all []string
	for _, f := range i.Files {
		all = append(all, f.Path)
	}
	return all
}

// names returns the names of the handlers in memory, or on disk if those in memory are unknown.
func (i *Instance) names() []string {
	var all []string
	memory := i.ShowsMemory()
	for _, h := range i.Handlers {
		if !memory || h.InMemory != nil {
			all = append(all, h.Name)
		}
	}
	return all
}

// HasGPUHandler reports whether the instance has a GPU handler.
func (i *Instance) HasGPUHandler() bool { return slices.ContainsFunc(i.Handlers, Handler.IsGPU) }

// IsShim reports whether the program is a containerd shim, and not a program that a shim executes.
func IsShim(program string) bool { return strings.HasPrefix(path.Base(program), "containerd-shim-") }

// UsesRunc reports whether runc, or a replacement for it, runs the handler's pods.
func (h Handler) UsesRunc() bool {
	kind := h.Effective().Type
	return kind == "" || strings.HasPrefix(kind, "io.containerd.runc.")
}

// IsGPU reports whether the handler is for GPUs, based on its name and its programs.
func (h Handler) IsGPU() bool {
	return isGPUName(h.Name) || isGPUName(h.Effective().BinaryName)
}

func isGPUName(name string) bool { return strings.Contains(name, "nvidia") }

// Handler returns the handler with the given name.
func (i *Instance) Handler(name string) (Handler, bool) {
	n := slices.IndexFunc(i.Handlers, func(h Handler) bool { return h.Name == name })
	if n < 0 {
		return Handler{}, false
	}
	return i.Handlers[n], true
}

// knows reports whether the instance has a handler, or will have it after a restart.
func (i *Instance) knows(name string) bool {
	_, ok := i.Handler(name)
	return ok
}

// UnitName returns the systemd unit to restart.
func (i *Instance) UnitName() string { return cmp.Or(i.Unit, "containerd") }

func (i *Instance) describe() string {
	if i.PID == 0 {
		return "the containerd of " + i.ConfigPath
	}
	return fmt.Sprintf("containerd process %d with %s", i.PID, i.ConfigPath)
}

func (i *Instance) loadedBy() string {
	if i.PID == 0 {
		return "no process loads"
	}
	return fmt.Sprintf("only containerd process %d loads", i.PID)
}
