package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// configure reads what the instance loads from disk, as it sees the disk.
func (in *inspection) configure(i *Instance, root rootFS, file string) {
	i.ConfigPath = file
	config, err := containerd.Load(guarded{root}, file, i.release())
	if config != nil {
		for _, f := range config.Files {
			i.Files = append(i.Files, in.configFile(root, f))
		}
	}
	if err != nil && !(errors.Is(err, fs.ErrNotExist) && !in.exists(root, file)) {
		i.ConfigError = err.Error()
	}
}

// maxConfig is how large a configuration file may be, in bytes: real ones have some kilobytes.
const maxConfig = 4 << 20

// guarded is a file system of which nothing but folders and files of a sensible size is opened. A containerd in
// somebody's container may have a pipe for a configuration, on which we would wait for ever.
type guarded struct{ rootFS }

func (g guarded) Open(name string) (fs.File, error) {
	refused := func(err error) (fs.File, error) { return nil, &fs.PathError{Op: "open", Path: name, Err: err} }
	if !fs.ValidPath(name) {
		return refused(fs.ErrInvalid)
	}
	full, err := g.resolve(name)
	if err != nil {
		return refused(err)
	}
	file, err := os.OpenFile(full, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return refused(errors.Unwrap(err))
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular() && !info.IsDir():
		err = errors.New("not a file")
	case info.Mode().IsRegular() && info.Size() > maxConfig:
		err = fmt.Errorf("larger than %d bytes", maxConfig)
	}
	if err != nil {
		_ = file.Close()
		return refused(err)
	}
	return file, nil
}

// exists: without its root file containerd has its defaults, which is no error.
func (in *inspection) exists(root rootFS, file string) bool {
	_, err := root.stat(file)
	return err == nil
}

func (in *inspection) configFile(root rootFS, f containerd.File) ConfigFile {
	file := ConfigFile{Path: f.Path, Data: f.Data}
	full, err := root.resolve(relative(f.Path))
	if err != nil {
		in.warn("%s: %v", f.Path, err)
		return file
	}
	if file.Meta, err = metaOf(full); err != nil {
		in.warn("read the attributes of %s: %v", f.Path, err)
	}
	if link, err := os.Readlink(root.below(f.Path)); err == nil {
		file.Meta.Link = link
	}
	file.ReadOnly = in.readOnly(full, f.Path)
	return file
}

// readOnly returns why the node's file at a path cannot be changed for the process that reads it at full; empty when it
// can.
func (in *inspection) readOnly(full, name string) string {
	onNode, err := rootFS(in.host.Root).resolve(relative(name))
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
	if err := ownership(info, &meta); err != nil {
		return meta, err
	}
	meta.Xattrs, err = xattrs(full)
	return meta, err
}

// relativeTo is full, which lies below root, as seen from there.
func relativeTo(root, full string) string {
	inside, err := filepath.Rel(root, full)
	if err != nil || strings.HasPrefix(inside, "..") {
		return strings.TrimPrefix(full, "/")
	}
	return filepath.ToSlash(inside)
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
