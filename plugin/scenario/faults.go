package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/firewall"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/device"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/runtime"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/xid"
)

// faults creates the changes for the scenario steps that are node and process faults. They are the same faults as those
// of the other commands.
type faults struct {
	connection *kube.Connection
	cluster    *kube.Cluster
	pods       podflags.Flags
}

var _ exercise.Faults = faults{}

// XID implements exercise.Faults.
func (f faults) XID(step scenario.XID) ([]fault.Change, []fault.Permission, error) {
	change, err := xid.Lines{
		Codes: step.Codes, Node: step.Node, GPU: step.GPU, Cascade: step.Cascade, Pods: f.pods,
	}.Change(f.connection, f.cluster)
	return []fault.Change{change}, xid.Permissions(f.connection.LedgerNamespace), err
}

// Runtime implements exercise.Faults.
func (f faults) Runtime(step scenario.Runtime, encrypted bool) ([]fault.Change, []fault.Permission, error) {
	change, err := runtime.Break{
		Mode: step.Mode, Node: step.Node, Handler: step.Handler, Pods: f.pods, Encrypted: encrypted,
	}.Change(f.connection, f.cluster)
	return []fault.Change{change}, runtime.Permissions(f.connection.LedgerNamespace), err
}

// Firewall implements exercise.Faults.
func (f faults) Firewall(step scenario.Firewall) ([]fault.Change, []fault.Permission, error) {
	// The TTL is a placeholder. The fault lasts until the run ends, which is not known yet.
	what := api.Firewall{Table: step.Table, Port: step.Port, Drop: api.Drop(step.Drop), TTL: time.Hour}
	if err := what.Validate(); err != nil {
		return nil, nil, fmt.Errorf("firewall: %w", err)
	}
	in := &firewall.Injection{
		Start: session.StartShortPod[firewall.Pod](f.cluster, f.connection.LedgerNamespace, f.pods),
	}
	action := fmt.Sprintf("drop %s for TCP port %d", step.Drop, step.Port)
	return []fault.Change{in.Change(step.Node, action, what)}, fault.DebugPodPermissions(f.connection.LedgerNamespace),
		nil
}

// Device implements exercise.Faults.
func (f faults) Device(step scenario.Device) ([]fault.Change, []fault.Permission, error) {
	change, err := device.Unhealthy{Node: step.Node, GPU: step.GPU, Pods: f.pods}.Change(f.connection, f.cluster)
	return []fault.Change{change}, device.Permissions(f.connection.LedgerNamespace), err
}

// CUDA implements exercise.Faults.
func (f faults) CUDA(ctx context.Context, step scenario.CUDA) ([]fault.Change, []fault.Permission, error) {
	what, err := cudaFault(step.Fault)
	if err != nil {
		return nil, nil, err
	}
	load := cuda.Load{
		Namespace: step.Workload.Namespace, Name: step.Workload.Kind + "/" + step.Workload.Name, Fault: what,
	}
	loading, err := load.Prepare(ctx, f.connection, f.cluster)
	return []fault.Change{loading.Change}, loading.Needs, err
}

// look returns the settings for reading a node.
func (f faults) look(reading string) session.Look {
	return session.Look{
		Cluster: f.cluster, LedgerNamespace: f.connection.LedgerNamespace, Pods: f.pods, ErrOut: io.Discard,
		Name: "show", Reading: reading,
	}
}

// Strangers implements exercise.Faults.
func (f faults) Strangers(
	ctx context.Context, node string, uids []string, ownSessions bool,
) (map[string]api.PodUse, error) {
	var found map[string]api.PodUse
	err := f.look("reading the processes of pods").At(ctx, node, func(pod *debugpod.Session) error {
		info, err := pod.Inspect(ctx, api.Inspect{PodUIDs: uids, Strangers: true, OwnSessions: ownSessions})
		if err == nil {
			found = info.Pods
		}
		return err
	})
	return found, err
}

// NodeState implements exercise.Faults.
func (f faults) NodeState(ctx context.Context, node string) (map[string]string, []string, error) {
	var info *api.Info
	err := f.look("reading the state of the node").At(ctx, node, func(pod *debugpod.Session) (err error) {
		info, err = pod.Inspect(ctx, api.Inspect{State: true})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return info.State, info.Warnings, nil
}

// RemoveFiles implements exercise.Faults.
func (f faults) RemoveFiles(
	ctx context.Context, node string, digests map[string]string,
) (*api.RemovedFiles, error) {
	var removed *api.RemovedFiles
	err := f.look("removing files from the node").At(ctx, node, func(pod *debugpod.Session) (err error) {
		removed, err = pod.RemoveFiles(ctx, api.RemoveFiles{Digests: digests})
		return err
	})
	return removed, err
}

// Handler implements exercise.Faults.
func (f faults) Handler(ctx context.Context, what scenario.Handler) (map[string]any, error) {
	var found *api.Runtime
	if err := f.look("reading the container runtime").At(ctx, what.Node, func(pod *debugpod.Session) (err error) {
		found, err = pod.InspectRuntime(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	view := runtimeview.New(what.Node, *found, nil, nil)
	if view.Runtime == nil {
		return nil, errors.New(view.Problem)
	}
	for _, h := range view.Runtime.Handlers {
		settings := h.InMemory
		if !view.Runtime.ShowsMemory() {
			settings = h.OnDisk
		}
		if h.Name == what.Name && settings != nil {
			lost := lostAtRestart(*view.Runtime, h, *settings)
			return map[string]any{
				"type": settings.Type, "binaryName": settings.BinaryName, "lasts": lost == "", "lost": lost,
			}, nil
		}
	}
	return nil, nil
}

// lostAtRestart returns the reason why a handler that containerd has loaded will be different or missing after
// containerd or the node restarts. It returns "" if the handler will stay the same.
func lostAtRestart(i runtimeview.Instance, h runtimeview.Handler, now runtimeview.Settings) string {
	switch {
	case h.OnDisk == nil:
		return "containerd's configuration files do not contain the handler"
	case h.OnDisk.Type != now.Type || h.OnDisk.BinaryName != now.BinaryName:
		return "containerd's configuration files contain " + h.OnDisk.Type + " " + h.OnDisk.BinaryName
	}
	for _, f := range i.Files {
		if f.Volatile != "" {
			return f.Path + " is lost when the node restarts: " + f.Volatile
		}
	}
	return ""
}

// Shim implements exercise.Faults.
func (f faults) Shim(what scenario.CUDAFault) (map[string][]byte, func(ledger.Run) ([]byte, error), error) {
	asked, err := cudaFault(what)
	if err != nil {
		return nil, nil, err
	}
	asked.Quiet = true // its line on stderr would reveal the answer
	// Apply the delay to all processes, because a GPU that is lost is also lost for processes that start later.
	asked.After, asked.WindowFrom = 0, asked.After
	libraries := map[string][]byte{}
	for _, arch := range []string{"amd64", "arm64"} {
		if libraries[arch], err = cudafault.Library(arch, asked.Layer); err != nil {
			return nil, nil, err
		}
	}
	state := func(run ledger.Run) ([]byte, error) {
		// The state starts now, not at the beginning of the run, because objects with a scheduled failure are created
		// now.
		s, err := asked.State(run.ID, uint64(run.Created.UnixNano()), time.Now(), run.Until)
		if err != nil {
			return nil, err
		}
		s.Run = "" // because the candidate can read the file
		return s.Encode()
	}
	return libraries, state, nil
}

// cudaFault returns the fault described by the fields of a scenario.
func cudaFault(f scenario.CUDAFault) (cudafault.Fault, error) {
	what := cudafault.Fault{XID: f.XID, Hang: f.Hang, DriverMismatch: f.DriverMismatch}
	what.Nodes = f.Nodes
	what.AfterCalls, what.After = uint64(max(f.AfterCalls, 0)), time.Duration(f.After)
	var err error
	if f.Error != "" {
		if what.Error, err = cudafault.ParseError(f.Error); err != nil {
			return what, fmt.Errorf("error: %w", err)
		}
	}
	if f.MemLimit != "" {
		if what.MemLimit, err = cudafault.ParseSize(f.MemLimit); err != nil {
			return what, fmt.Errorf("memLimit: %w", err)
		}
	}
	if f.HideAll {
		what.HideDevices = cudafault.AllDevices()
	}
	return what, what.Validate()
}
