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

// configure reads the configuration that the instance loads from disk, as seen in its mount namespace.
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

// exists reports whether the file exists. Without a root file, containerd uses its defaults, so a missing file is not
// an error.
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
	file.ReadOnly, file.Volatile = in.readOnly(full, f.Path), volatile(full)
	return file
}

// readOnly returns the reason why changing the node's file at a path would not affect the process. full is the path at
// which the process reads the file. readOnly returns "" if the file can be changed.
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
		return "this containerd runs in its own mount namespace, and the file exists only there"
	case err != nil:
		return err.Error()
	case !os.SameFile(theirs, ours):
		return "this containerd runs in its own mount namespace, where this path is a different file than on the node"
	}
	return immutable(onNode)
}

// metaOf returns the attributes of a file. The path must not contain symbolic links.
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

// identity is a set of files, identified independently of their paths.
type identity []fs.FileInfo

// seen reports whether the file is already in the set, and adds the file if it is not.
func (known *identity) seen(info fs.FileInfo) bool {
	for _, k := range *known {
		if os.SameFile(k, info) {
			return true
		}
	}
	*known = append(*known, info)
	return false
}
