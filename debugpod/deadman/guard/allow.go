//go:build linux

package guard

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// Runtime is the kubelet's container runtime and its files, as found on the node by the helper. A change may only refer
// to these. The values in a request are only compared with them.
type Runtime struct {
	Unit   string // systemd unit that restarts the runtime; empty if unknown
	Socket string // CRI socket
	// Files are the files that the runtime loads, and the configurations of other containerd instances, which users may
	// mistake for the runtime's own.
	Files []string
	// New are files that do not exist but that a change may create. Globs are patterns in the syntax of path.Match. The
	// runtime would load a new file that matches one of them.
	New, Globs []string
}

// creates reports whether a change may create a file.
func (r Runtime) creates(name string) bool {
	return slices.Contains(r.New, name) || slices.ContainsFunc(r.Globs, func(glob string) bool {
		is, err := path.Match(glob, name)
		return is && err == nil
	})
}

// target is the result of resolving the path of a file.
type target struct {
	real string // path with links resolved
	link string // target if the last element is a link
}

// allow compares a change with what the helper finds on the node, and rejects any other file, unit or socket. It
// records the files and the service that it finds, and returns the resolved paths of the files to change.
func (h Host) allow(ctx context.Context, r *record) ([]target, error) {
	found, err := h.Inspect(ctx)
	if ctx.Err() != nil {
		return nil, errorf(CodeNotArmed, "nothing was changed: %v", context.Cause(ctx))
	}
	if err != nil {
		return nil, errorf(CodeRefused,
			"nothing was changed, because the files that the kubelet's containerd loads cannot be determined: %v", err)
	}
	if r.Change.Service, err = found.service(r.Change.Service); err != nil {
		return nil, err
	}
	var targets []target
	for _, f := range r.Change.Files {
		if !slices.Contains(found.Files, f.Path) && (f.Before != deadman.Absent || !found.creates(f.Path)) {
			return nil,
				errorf(CodeRefused, "%q is not a file that the kubelet's containerd loads: nothing was changed", f.Path)
		}
		real, link, err := h.resolve(f.Path)
		if err != nil {
			return nil, asError(CodeFile, fmt.Errorf("%s: %w", f.Path, err))
		}
		targets = append(targets, target{real, link})
		r.Loaded = append(r.Loaded, loaded{f.Path, real})
	}
	for _, name := range found.Files {
		// Record only files whose paths other users cannot redirect, so that they are safe to restore later.
		if real, _, err := h.resolve(name); err == nil && !slices.Contains(r.Loaded, loaded{name, real}) {
			r.Loaded = append(r.Loaded, loaded{name, real})
		}
	}
	return targets, nil
}

// service returns the service to restart. It fails if the requested service differs from the service that the helper
// found.
func (r Runtime) service(asked *deadman.Service) (*deadman.Service, error) {
	switch {
	case asked == nil:
		return nil, nil
	case r.Unit == "":
		return nil, errorf(CodeRefused,
			"unit %q is not the kubelet's container runtime, and that runtime does not run as a systemd unit: nothing was changed",
			asked.Unit)
	case asked.Unit != r.Unit:
		return nil, errorf(CodeRefused,
			"unit %q is not the kubelet's container runtime, which is unit %q: nothing was changed", asked.Unit, r.Unit)
	case asked.Socket != r.Socket:
		return nil, errorf(CodeRefused,
			"socket %q is not the one that the kubelet uses, which is %q: nothing was changed", asked.Socket, r.Socket)
	}
	return &deadman.Service{Unit: r.Unit, Socket: r.Socket, Config: asked.Config}, nil
}
