package runtime

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/containerdconfig"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// decide computes the change from the contents of the node's files.
func (b *breaking) decide(nodeName string, runtime api.Runtime) (*containerdconfig.Decision, error) {
	instance, config, err := usable(nodeName, runtime)
	if err != nil {
		return nil, err
	}
	if instance.Unit == "" && !b.noRestart {
		return nil,
			fmt.Errorf("cannot determine how to restart containerd (pid %d): it is not the main process of a systemd unit; use --no-restart",
				instance.PID)
	}
	request := containerd.Request{Mode: b.info.Mode, Handler: b.handler}
	metas := metasOf(*instance)
	if b.info.Mode == containerd.ModeWrongInstance {
		request.Decoy = containerd.File{Path: containerd.NewDecoy}
		for _, decoy := range runtime.Decoys {
			if n := len(decoy.Files); n > 0 && decoy.Files[0].ReadOnly == "" {
				request.Decoy = containerd.File{Path: decoy.Files[0].Path, Data: decoy.Files[0].Data}
				for path, file := range metasOf(decoy) {
					metas[path] = file
				}
				break
			}
		}
	}
	if !b.noRestart {
		if err := upToDate(*instance); err != nil {
			return nil, err
		}
	}
	broken, err := config.Break(request)
	if err != nil {
		return nil, err
	}
	if broken.NodeLoss && !b.nodeLoss && !b.noRestart {
		return nil, fmt.Errorf(
			"with this configuration, the change stops containerd, and the node is NotReady until the configuration is restored: pass --allow-node-loss to allow this",
		)
	}
	return b.decision(*instance, metas, *broken)
}

// usable returns the instance to change and its configuration, or an error if the configuration cannot be changed.
func usable(nodeName string, runtime api.Runtime) (*api.Instance, *containerd.Config, error) {
	instance := runtime.Instance
	switch {
	case runtime.Problem != "":
		return nil, nil, errors.New(runtime.Problem)
	case instance == nil:
		return nil, nil, fmt.Errorf(
			"cannot determine which container runtime the kubelet uses: see `kubectl gpu-fault runtime show %s`",
			nodeName,
		)
	case instance.ConfigError != "":
		return nil, nil, fmt.Errorf("containerd's configuration cannot be read: %s", instance.ConfigError)
	case len(instance.Files) == 0:
		return nil, nil, fmt.Errorf(
			"containerd has no configuration file to break: %s does not exist", instance.ConfigPath,
		)
	}
	release, err := containerd.ParseRelease(instance.Release)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot determine the release of containerd: %w", err)
	}
	config := &containerd.Config{Release: release}
	for _, f := range instance.Files {
		file := containerd.File{Path: f.Path, Data: f.Data}
		if refused := containerd.Refuse(file); refused != nil {
			return nil, nil, refused
		}
		config.Files = append(config.Files, file)
	}
	return instance, config, nil
}

// upToDate returns an error if restarting containerd would also load earlier edits that are not active yet.
func upToDate(instance api.Instance) error {
	disk, err := instance.OnDisk()
	if err != nil {
		return fmt.Errorf("containerd's current configuration does not load: %w", err)
	}
	memory, err := instance.InMemory()
	if err != nil || memory == nil {
		return nil // there is nothing to compare
	}
	for name := range disk.Handlers {
		if _, ok := memory.Handlers[name]; !ok {
			return fmt.Errorf(
				"handler %s is on disk but not in containerd's memory: the configuration was edited without restarting containerd; restart containerd first, or pass --no-restart",
				name,
			)
		}
	}
	return nil
}

func metasOf(instance api.Instance) map[string]api.ConfigFile {
	metas := map[string]api.ConfigFile{}
	for _, f := range instance.Files {
		metas[f.Path] = f
	}
	return metas
}

func (b *breaking) decision(
	instance api.Instance, metas map[string]api.ConfigFile, broken containerd.Broken,
) (*containerdconfig.Decision, error) {
	d := &containerdconfig.Decision{Change: deadman.Change{BootRestore: true}}
	for _, f := range broken.Files {
		file := deadman.File{Path: f.Path, After: patch.Sum(f.After), Edits: f.Edits}
		if f.Before != nil {
			was, known := metas[f.Path]
			if !known {
				return nil, fmt.Errorf("%s is not one of the files that were read", f.Path)
			}
			if was.ReadOnly != "" {
				return nil, fmt.Errorf("%s cannot be changed: %s", f.Path, was.ReadOnly)
			}
			file.Before, file.Meta = patch.Sum(f.Before), &was.Meta
		}
		d.Change.Files = append(d.Change.Files, file)
		d.Edits = append(d.Edits, describe(f.Edits))
	}
	// The service is set even without a restart: if containerd is restarted in the meantime, it must also be restarted
	// after the files have been restored.
	if instance.Unit != "" {
		d.Change.Service = &deadman.Service{Unit: instance.Unit, Socket: instance.Socket}
		if instance.CRI != nil {
			d.Change.Service.Config = containerd.ConfigSum(instance.CRI.Config)
		}
	}
	if d.Change.NoRestart = b.noRestart; b.noRestart {
		return d, nil
	}
	d.Change.MayFail = broken.NodeLoss
	d.Landed = func(now *cri.Info) (string, error) { return landed(broken, now) }
	return d, nil
}

// landed describes the fault as seen through CRI, or returns an error if the fault has no effect.
func landed(broken containerd.Broken, now *cri.Info) (string, error) {
	if now == nil {
		if !broken.NodeLoss {
			return "", errors.New("containerd does not respond")
		}
		return "CRI does not respond", broken.Landed(nil)
	}
	if err := broken.Landed(now.Config); err != nil {
		return "", err
	}
	running, err := containerd.Running(now.Config)
	if err != nil {
		return "", err
	}
	names := strings.Join(slices.Sorted(maps.Keys(running.Handlers)), ", ")
	return fmt.Sprintf("handlers in memory: %s; the fault %s", names, broken.Summary), nil
}

// describe describes edits in one line.
func describe(edits []patch.Edit) string {
	var parts []string
	for _, e := range edits {
		switch {
		case len(e.New) == 0:
			parts = append(parts, fmt.Sprintf("%d bytes removed at offset %d", len(e.Old), e.Offset))
		case len(e.Old) == 0:
			parts = append(parts, fmt.Sprintf("%d bytes inserted at offset %d", len(e.New), e.Offset))
		default:
			parts = append(parts, fmt.Sprintf("%d bytes replaced with %d bytes at offset "+
				"%d", len(e.Old), len(e.New), e.Offset))
		}
	}
	return strings.Join(parts, ", ")
}

// restoreByHand returns the command that restores a run when executed on the run's node.
func restoreByHand(run string) string { return "sh " + path.Join(deadman.Dir, run, "restore.sh") }
