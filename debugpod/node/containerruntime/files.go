package containerruntime

import (
	"errors"
	"io/fs"
	"os"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// configure reads what the instance loads from disk, as it sees the disk.
func (in *Inspection) configure(i *api.Instance, root hostfs.FS, file string) {
	i.ConfigPath = file
	config, err := containerd.Load(root.Guarded(), file, i.Config().Release)
	if config != nil {
		for _, f := range config.Files {
			i.Files = append(i.Files, in.configFile(root, f))
		}
	}
	if err != nil && !(errors.Is(err, fs.ErrNotExist) && !in.exists(root, file)) {
		i.ConfigError = err.Error()
	}
}

// exists: without its root file containerd has its defaults, which is no error.
func (in *Inspection) exists(root hostfs.FS, file string) bool {
	_, err := root.Info(file)
	return err == nil
}

func (in *Inspection) configFile(root hostfs.FS, f containerd.File) api.ConfigFile {
	file := api.ConfigFile{Path: f.Path, Data: f.Data}
	full, err := root.Resolve(hostfs.Relative(f.Path))
	if err != nil {
		in.warn("%s: %v", f.Path, err)
		return file
	}
	if file.Meta, err = metaOf(full); err != nil {
		in.warn("read the attributes of %s: %v", f.Path, err)
	}
	if link, err := os.Readlink(root.Below(f.Path)); err == nil {
		file.Meta.Link = link
	}
	file.ReadOnly = in.readOnly(full, f.Path)
	return file
}

// readOnly returns why the node's file at a path cannot be changed for the process that reads it at full; empty when it
// can.
func (in *Inspection) readOnly(full, name string) string {
	onNode, err := hostfs.FS(in.host.Root).Resolve(hostfs.Relative(name))
	if err != nil {
		return err.Error()
	}
	theirs, err := os.Stat(full)
	if err != nil {
		return err.Error()
	}
	ours, err := os.Stat(onNode)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "this containerd runs in a mount namespace of its own, and this file is only there"
	case err != nil:
		return err.Error()
	case !os.SameFile(theirs, ours):
		return "this containerd runs in a mount namespace of its own, and sees another file here than the node does"
	}
	return immutable(onNode)
}

// metaOf returns what a file has beside its content; the path has no links in it any more.
func metaOf(full string) (deadman.Meta, error) {
	info, err := os.Stat(full)
	if err != nil {
		return deadman.Meta{}, err
	}
	meta := deadman.Meta{ModTime: info.ModTime()}
	if err := hostfs.Ownership(info, &meta); err != nil {
		return meta, err
	}
	meta.Xattrs, err = xattrs(full)
	return meta, err
}

// identity tells files apart, by whatever path they are reached.
type identity []fs.FileInfo

// seen reports whether the file was there before; now it is.
func (known *identity) seen(info fs.FileInfo) bool {
	for _, k := range *known {
		if os.SameFile(k, info) {
			return true
		}
	}
	*known = append(*known, info)
	return false
}
