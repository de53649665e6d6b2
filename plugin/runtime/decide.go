package runtime

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/containerdconfig"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// decide computes the change from what the node's files hold.
func (b *breaking) decide(nodeName string, runtime api.Runtime) (*containerdconfig.Decision, error) {
	instance, config, err := usable(nodeName, runtime)
	if err != nil {
		return nil, err
	}
	if instance.Unit == "" && !b.noRestart {
		return nil,
			fmt.Errorf("nothing says how containerd (pid %d) is restarted: no systemd unit has it as its main process; --no-restart works there",
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
			"with this configuration containerd does not serve after it, and the node is NotReady until it is restored: give --allow-node-loss if you mean it",
		)
	}
	return b.decision(*instance, metas, *broken)
}

// usable returns the instance to change, or why there is none.
func usable(nodeName string, runtime api.Runtime) (*api.Instance, *containerd.Config, error) {
	instance := runtime.Instance
	switch {
	case runtime.Problem != "":
		return nil, nil, errors.New(runtime.Problem)
	case instance == nil:
		return nil, nil, fmt.Errorf(
			"it cannot be told which container runtime the kubelet uses: see `kubectl gpu-fault runtime show %s`",
			nodeName,
		)
	case instance.ConfigError != "":
		return nil, nil, fmt.Errorf("containerd's configuration cannot be read: %s", instance.ConfigError)
	case len(instance.Files) == 0:
		return nil, nil, fmt.Errorf(
			"containerd has no configuration file (%s is not there), so there is nothing to break", instance.ConfigPath,
		)
	}
	release, err := containerd.ParseRelease(instance.Release)
	if err != nil {
		return nil, nil, fmt.Errorf("which release of containerd runs cannot be told: %w", err)
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

// upToDate refuses a restart that would also take up what somebody else has edited and not restarted.
func upToDate(instance api.Instance) error {
	disk, err := instance.OnDisk()
	if err != nil {
		return fmt.Errorf("containerd's configuration does not load as it is: %w", err)
	}
	memory, err := instance.InMemory()
	if err != nil || memory == nil {
		return nil // nothing to compare with
	}
	for name := range disk.Handlers {
		if _, ok := memory.Handlers[name]; !ok {
			return fmt.Errorf(
				"the handler %s is on the disk and not in containerd's memory: somebody edited the configuration and did not restart it. Restart containerd first, or give --no-restart",
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
				return nil, fmt.Errorf("%s is none of the files that were read", f.Path)
			}
			if was.ReadOnly != "" {
				return nil, fmt.Errorf("%s cannot be changed: %s", f.Path, was.ReadOnly)
			}
			file.Before, file.Meta = patch.Sum(f.Before), &was.Meta
		}
		d.Change.Files = append(d.Change.Files, file)
		d.Edits = append(d.Edits, describe(f.Edits))
	}
	// Also without a restart: somebody may restart it meanwhile, and then putting the files back must.
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

// landed returns what CRI shows of the fault.
func landed(broken containerd.Broken, now *cri.Info) (string, error) {
	if now == nil {
		if !broken.NodeLoss {
			return "", errors.New("containerd does not serve")
		}
		return "CRI does not serve", broken.Landed(nil)
	}
	if err := broken.Landed(now.Config); err != nil {
		return "", err
	}
	running, err := containerd.Running(now.Config)
	if err != nil {
		return "", err
	}
	var names []string
	for name := range running.Handlers {
		names = append(names, name)
	}
	return fmt.Sprintf("handlers in memory: %s; the fault %s", strings.Join(sorted(names), ", "), broken.Summary), nil
}

// describe says in a line what edits do.
func describe(edits []patch.Edit) string {
	var parts []string
	for _, e := range edits {
		switch {
		case len(e.New) == 0:
			parts = append(parts, fmt.Sprintf("%d bytes taken out at %d", len(e.Old), e.Offset))
		case len(e.Old) == 0:
			parts = append(parts, fmt.Sprintf("%d bytes put in at %d", len(e.New), e.Offset))
		default:
			parts = append(parts, fmt.Sprintf("%d bytes replaced by %d at %d", len(e.Old), len(e.New), e.Offset))
		}
	}
	return strings.Join(parts, ", ")
}

// restoreByHand returns what to type on a node.
func restoreByHand(run string) string { return "sh " + path.Join(deadman.Dir, run, "restore.sh") }
