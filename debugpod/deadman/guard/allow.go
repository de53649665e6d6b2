//go:build linux

package guard

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// Runtime is what a change may name: the kubelet's container runtime and its files, as the helper itself finds them on
// the node. What the request says of them is only compared.
type Runtime struct {
	Unit   string // the systemd unit that restarts it; empty if there is none
	Socket string // of its CRI
	// Files are the files that it loads, and configurations of other containerds, which a change may mislead users
	// with.
	Files []string
	// New are files that do not exist, and that a change may create; Globs are patterns, as path.Match has them, by
	// which the runtime would load a new file.
	New, Globs []string
}

// creates reports whether a change may create a file.
func (r Runtime) creates(name string) bool {
	return slices.Contains(r.New, name) || slices.ContainsFunc(r.Globs, func(glob string) bool {
		is, err := path.Match(glob, name)
		return is && err == nil
	})
}

// target is where the path of a file leads.
type target struct {
	real string // the path with links followed
	link string // the target of a link in its last element
}

// allow compares a change with what the helper finds on the node, and refuses one that names another file, unit or
// socket. It records the files and the service that it finds, and returns where the paths of the change lead.
func (h Host) allow(ctx context.Context, r *record) ([]target, error) {
	found, err := h.Inspect(ctx)
	if ctx.Err() != nil {
		return nil, errorf(CodeNotArmed, "nothing was changed: %v", context.Cause(ctx))
	}
	if err != nil {
		return nil, errorf(CodeRefused,
			"nothing was changed, as the files that the kubelet's containerd loads cannot be determined: %v", err)
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
		// A file that others could have chosen is not one to restore later.
		if real, _, err := h.resolve(name); err == nil && !slices.Contains(r.Loaded, loaded{name, real}) {
			r.Loaded = append(r.Loaded, loaded{name, real})
		}
	}
	return targets, nil
}

// service returns the service that is restarted: the one that the helper found, if it is the one that was asked for.
func (r Runtime) service(asked *deadman.Service) (*deadman.Service, error) {
	switch {
	case asked == nil:
		return nil, nil
	case r.Unit == "":
		return nil, errorf(CodeRefused,
			"unit %q is not the kubelet's container runtime, which is not a unit of systemd: nothing was changed",
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
