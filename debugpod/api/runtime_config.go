package api

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
)

// newest is the release assumed for an instance whose release is unknown.
var newest = containerd.Release{Major: 2, Minor: 3}

// release returns the release of the instance, which determines how its files are merged.
func (i *Instance) release() containerd.Release {
	if release, err := containerd.ParseRelease(i.Release); err == nil {
		return release
	}
	return newest
}

// Config returns the configuration that the instance loads from disk.
func (i *Instance) Config() *containerd.Config {
	config := &containerd.Config{Release: i.release()}
	for _, f := range i.Files {
		config.Files = append(config.Files, containerd.File{Path: f.Path, Data: f.Data})
	}
	return config
}

// OnDisk returns the configuration that the instance would use after a restart, without the built-in defaults.
func (i *Instance) OnDisk() (*containerd.Merged, error) { return i.Config().Merged() }

// InMemory returns the configuration that the instance currently uses, or nil if the instance does not report it.
func (i *Instance) InMemory() (*containerd.Merged, error) {
	if i.CRI == nil || len(i.CRI.Config) == 0 {
		return nil, nil
	}
	return containerd.Running(i.CRI.Config)
}
