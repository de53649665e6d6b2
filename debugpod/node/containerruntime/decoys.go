package containerruntime

import (
	"context"
	"io/fs"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/process"
)

// Limits for the data about other containerds, which any user may have started.
const (
	maxDecoys     = 32
	maxDecoyBytes = 4 << 20
)

// decoys adds every containerd that the kubelet does not use: first processes, then well-known configuration files that
// no process loads. Editing such a configuration has no effect on the kubelet.
func (in *Inspection) decoys(ctx context.Context) {
	var loaded identity
	chosen := 0
	if i := in.result.Instance; i != nil {
		chosen = i.PID
		in.mark(&loaded, *i)
	}
	for _, p := range in.programs {
		if p.PID == chosen || !p.Is("containerd") || isOneShot(p) {
			continue
		}
		if len(in.result.Decoys) == maxDecoys {
			in.warn("more than %d other instances of containerd are running on this node: the rest are "+
				"omitted", maxDecoys)
			break
		}
		in.add(&loaded, in.decoy(ctx, p))
	}
	root := hostfs.FS(in.host.Root)
	for _, place := range places {
		in.unused(&loaded, root, place.root)
	}
	for _, place := range places {
		for _, pattern := range place.dropIn {
			files, _ := fs.Glob(root, hostfs.Relative(pattern))
			for _, file := range files {
				in.unused(&loaded, root, "/"+file)
			}
		}
	}
}

// add adds a decoy and marks its files as loaded. If all decoys together are too large for a response, it drops the
// files.
func (in *Inspection) add(loaded *identity, decoy api.Instance) {
	in.mark(loaded, decoy)
	if decoy.CRI != nil {
		decoy.CRI.Config = nil // the files contain the same information
	}
	for _, f := range decoy.Files {
		in.decoyBytes += len(f.Data)
	}
	if in.decoyBytes > maxDecoyBytes && len(decoy.Files) > 0 {
		decoy.Files, decoy.ConfigError = nil, "omitted: the configurations that the kubelet does not use are too large"
	}
	in.result.Decoys = append(in.result.Decoys, decoy)
}

// isOneShot reports whether the process only prints information, such as `containerd --version` or `containerd config
// dump`.
func isOneShot(p process.Process) bool {
	return slices.Contains(p.Args, "--version") || slices.Contains(p.Args, "-v") || slices.Contains(p.Args, "config")
}

func (in *Inspection) decoy(ctx context.Context, p process.Process) api.Instance {
	ctx, cancel := context.WithTimeout(ctx, decoyPatience)
	defer cancel()
	socket := socketOf(p)
	full, err := findSocket(socket, p.Root(in.host))
	if err != nil {
		full = p.Root(in.host).Below(socket) // connecting to the socket reports that it does not exist
	}
	decoy := in.instance(ctx, p, socket, full)
	for i := range decoy.Files {
		if f := &decoy.Files[i]; f.ReadOnly == "" && !in.isOnNode(p) {
			f.ReadOnly =
				"this containerd does not run as root directly on the node, so an unprivileged user may control its configuration path"
		}
	}
	return decoy
}

// isOnNode reports whether the process runs as root in the node's own mount namespace.
func (in *Inspection) isOnNode(p process.Process) bool {
	i := slices.IndexFunc(in.programs, func(first process.Process) bool { return first.PID == 1 })
	return p.IsRoots() && i >= 0 && in.programs[i].Mounts == p.Mounts
}

// mark marks the files of an instance as loaded.
func (in *Inspection) mark(loaded *identity, i api.Instance) {
	root := hostfs.FS(in.host.Root)
	for _, p := range in.programs {
		if p.PID == i.PID {
			root = p.Root(in.host)
		}
	}
	for _, f := range i.Files {
		if info, err := root.Info(f.Path); err == nil {
			loaded.seen(info)
		}
	}
}

// unused adds a configuration file that exists but that no process loads.
func (in *Inspection) unused(loaded *identity, root hostfs.FS, file string) {
	info, err := root.Info(file)
	if err != nil || !info.Mode().IsRegular() || loaded.seen(info) {
		return
	}
	decoy := api.Instance{}
	if i := in.result.Instance; i != nil {
		decoy.Release = i.Release // assume that the file was written for the running containerd
	}
	in.configure(&decoy, root, file)
	in.add(loaded, decoy)
}
