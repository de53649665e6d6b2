package api

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// newest is for an instance whose release is not known.
var newest = containerd.Release{Major: 2, Minor: 3}

// release decides how the files are merged.
func (i *Instance) release() containerd.Release {
	if release, err := containerd.ParseRelease(i.Release); err == nil {
		return release
	}
	return newest
}

// Config returns what the instance loads from disk, for edits and questions.
func (i *Instance) Config() *containerd.Config {
	config := &containerd.Config{Release: i.release()}
	for _, f := range i.Files {
		config.Files = append(config.Files, containerd.File{Path: f.Path, Data: f.Data})
	}
	return config
}

// OnDisk returns what the instance would have in memory if it were restarted now, but for its built-in defaults.
func (i *Instance) OnDisk() (*containerd.Merged, error) { return i.Config().Merged() }

// InMemory returns what it has there; nil when it does not show it.
func (i *Instance) InMemory() (*containerd.Merged, error) {
	if i.CRI == nil || len(i.CRI.Config) == 0 {
		return nil, nil
	}
	return containerd.Running(i.CRI.Config)
}
