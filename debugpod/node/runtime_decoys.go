package node

import (
	"context"
	"io/fs"
	"slices"
)

// What is told of other containerds is bounded: they may be anybody's.
const (
	maxDecoys     = 32
	maxDecoyBytes = 4 << 20
)

// decoys adds every containerd that the kubelet does not use: processes, then configurations in well-known places that
// none of them loads. Who edits one of these edits in vain.
func (in *inspection) decoys(ctx context.Context) {
	var loaded identity
	chosen := 0
	if i := in.result.Instance; i != nil {
		chosen = i.PID
		in.mark(&loaded, *i)
	}
	for _, p := range in.programs {
		if p.pid == chosen || !p.is("containerd") || p.isOneShot() {
			continue
		}
		if len(in.result.Decoys) == maxDecoys {
			in.warn("more than %d other containerds run on this node: the rest is left out", maxDecoys)
			break
		}
		in.add(&loaded, in.decoy(ctx, p))
	}
	root := rootFS(in.host.Root)
	for _, place := range places {
		in.unused(&loaded, root, place.root)
	}
	for _, place := range places {
		for _, pattern := range place.dropIn {
			files, _ := fs.Glob(root, relative(pattern))
			for _, file := range files {
				in.unused(&loaded, root, "/"+file)
			}
		}
	}
}

// add adds a decoy whose files nobody else loads. Of what is too large for one answer only the names are left.
func (in *inspection) add(loaded *identity, decoy Instance) {
	in.mark(loaded, decoy)
	if decoy.CRI != nil {
		decoy.CRI.Config = nil // its files say enough
	}
	for _, f := range decoy.Files {
		in.decoyBytes += len(f.Data)
	}
	if in.decoyBytes > maxDecoyBytes && len(decoy.Files) > 0 {
		decoy.Files, decoy.ConfigError = nil, "left out: the configurations that the kubelet does not use are too large"
	}
	in.result.Decoys = append(in.result.Decoys, decoy)
}

// isOneShot reports whether the process only shows something: `containerd --version`, `containerd config dump`.
func (p program) isOneShot() bool {
	return slices.Contains(p.args, "--version") || slices.Contains(p.args, "-v") || slices.Contains(p.args, "config")
}

func (in *inspection) decoy(ctx context.Context, p program) Instance {
	ctx, cancel := context.WithTimeout(ctx, decoyPatience)
	defer cancel()
	socket := p.socket()
	full, err := findSocket(socket, p.root(in.host))
	if err != nil {
		full = p.root(in.host).below(socket) // asking it says that it is not there
	}
	decoy := in.instance(ctx, p, socket, full)
	for i := range decoy.Files {
		if f := &decoy.Files[i]; f.ReadOnly == "" && !in.isOnNode(p) {
			f.ReadOnly =
				"this containerd does not run as root on the node itself: whoever started it has chosen the file"
		}
	}
	return decoy
}

// isOnNode reports whether root runs the process, and in the node's own mount namespace.
func (in *inspection) isOnNode(p program) bool {
	i := slices.IndexFunc(in.programs, func(first program) bool { return first.pid == 1 })
	return p.isRoots() && i >= 0 && in.programs[i].mounts == p.mounts
}

// mark remembers the files of an instance.
func (in *inspection) mark(loaded *identity, i Instance) {
	root := rootFS(in.host.Root)
	for _, p := range in.programs {
		if p.pid == i.PID {
			root = p.root(in.host)
		}
	}
	for _, f := range i.Files {
		if info, err := root.stat(f.Path); err == nil {
			loaded.seen(info)
		}
	}
}

// unused adds a configuration that is there, and that nobody loads.
func (in *inspection) unused(loaded *identity, root rootFS, file string) {
	info, err := root.stat(file)
	if err != nil || !info.Mode().IsRegular() || loaded.seen(info) {
		return
	}
	decoy := Instance{}
	if i := in.result.Instance; i != nil {
		decoy.Release = i.Release // whoever wrote it meant it for the containerd that is there
	}
	in.configure(&decoy, root, file)
	in.add(loaded, decoy)
}
