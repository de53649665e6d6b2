// Package device reports devices on a node to the kubelet as unhealthy, as a device plugin does after an XID.
//
// The kubelet accepts messages about a resource from every plugin that has registered for it, but asks only the last
// one for devices. The injector, a process on the node, registers, and then re-registers the real plugin, which
// therefore keeps allocating devices. The injector only sends lists in which some devices are unhealthy, and sends them
// again whenever the real plugin has overwritten them.
//
// A second process, the switch, is the parent of the injector. Each of them ends the fault if the other is killed. Both
// outlive the client, the debug pod and the container runtime. If the kubelet or the plugin restarts, all plugins
// re-register and the fault ends.
package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// node is the part of a node that this package uses.
type node struct {
	plugins      string // checkpoint.Dir
	podResources string // socket of the kubelet's PodResourcesLister
	state        string // directory of the records; it does not have to survive a reboot, which ends all faults
	proc         string
	program      string   // path of this program
	env          []string // additional environment variables of its processes
	leaveCgroups func() error
}

const (
	startTimeout = 30 * time.Second
	// leaveTimeout is the time that an injector has to end its fault before it is killed and the real plugin is
	// re-registered without it.
	leaveTimeout = 30 * time.Second
	// recoverTimeout allows for an injector that has to be killed, and for a kubelet on a busy node.
	recoverTimeout = 4 * leaveTimeout
)

// List handles ListDevices.
func List(ctx context.Context) api.Devices { return here().list(ctx) }

// Fail handles FailDevices.
func Fail(ctx context.Context, run string, f api.FailDevices) (*api.FailedDevices, *api.Error) {
	return here().fail(ctx, run, f)
}

// Recover handles RecoverDevices.
func Recover(ctx context.Context, run string) (*api.RecoveredDevices, *api.Error) {
	return here().recover(ctx, run)
}

// Left returns the faults on the node. If clean is set, it ends those whose run is not in keep.
func Left(ctx context.Context, clean bool, keep []string) []deadman.Leftover {
	return here().left(ctx, clean, keep)
}

func (n node) left(ctx context.Context, clean bool, keep []string) []deadman.Leftover {
	var all []deadman.Leftover
	for _, r := range n.records() {
		left := deadman.Leftover{Kind: deadman.LeftoverDevices, Path: n.dir(r.Run), Run: r.Run, Ended: r.ended()}
		if clean && !slices.Contains(keep, r.Run) {
			if _, failure := n.recover(ctx, r.Run); failure != nil {
				left.Problem = failure.Message
			} else {
				left.Removed = true
			}
		}
		all = append(all, left)
	}
	return all
}

func (n node) fail(ctx context.Context, run string, f api.FailDevices) (*api.FailedDevices, *api.Error) {
	r, failure := n.prepare(ctx, run, f)
	if failure != nil {
		return nil, failure
	}
	if err := n.create(r); err != nil {
		return nil, api.Errorf(api.CodeNotArmed, "nothing was changed: %v", err)
	}
	s, err := n.start(ctx, run)
	if err != nil {
		// The switch may still be running. Ending the fault is safe even if it has not started.
		if _, failure := n.recover(context.WithoutCancel(ctx), run); failure != nil {
			return nil, api.Errorf(failure.Code, "%v; the devices may be unhealthy, because ending the fault also failed: %v",
				err, failure)
		}
		return nil, api.Errorf(api.CodeNotArmed, "no device was made unhealthy: %v", err)
	}
	return &api.FailedDevices{
		Resource: f.Resource, Endpoint: r.Endpoint, Devices: f.Devices, Healthy: s.Healthy, Until: r.Until,
		Pods: r.Pods,
	}, nil
}

// prepare checks a request against the node, and returns the record of the fault.
func (n node) prepare(ctx context.Context, run string, f api.FailDevices) (record, *api.Error) {
	var found *api.DeviceResource
	all := n.list(ctx)
	for i, r := range all.Resources {
		if r.Name == f.Resource {
			found = &all.Resources[i]
		}
	}
	if found == nil {
		var names []string
		for _, r := range all.Resources {
			names = append(names, r.Name)
		}
		return record{}, api.Errorf(api.CodeRefused, "the node has no resource %s; its resources are: %s", f.Resource,
			strings.Join(append(names, all.Warnings...), ", "))
	}
	switch missing := slices.DeleteFunc(slices.Clone(f.Devices),
		func(id string) bool { return slices.Contains(found.Healthy, id) }); {
	case len(found.Failed) > 0:
		return record{}, api.Errorf(api.CodeExists, "devices of %s are already unhealthy because of run %s: revert it first",
			f.Resource, slices.Collect(maps.Values(found.Failed))[0])
	case len(missing) > 0:
		return record{}, api.Errorf(api.CodeRefused, "%s has no healthy device %s; the healthy devices are: %s",
			f.Resource, strings.Join(missing, ", "), strings.Join(found.Healthy, ", "))
	case found.Problem != "":
		return record{}, api.Errorf(api.CodeRefused, "%s", found.Problem)
	}
	options, err := n.options(ctx, found.Endpoint)
	if err != nil {
		return record{}, api.Errorf(api.CodeRefused, "the device plugin does not respond: %v", err)
	}
	r := record{
		Run: run, Resource: f.Resource, Endpoint: found.Endpoint, Devices: f.Devices, Healthy: found.Healthy,
		Options: options, Topologies: n.topologies(ctx, f.Resource), Until: time.Now().Add(f.TTL).UTC(),
	}
	for _, id := range f.Devices {
		if uid := found.Pods[id]; uid != "" && !slices.Contains(r.Pods, uid) {
			r.Pods = append(r.Pods, uid)
		}
	}
	return r, nil
}

func (n node) recover(ctx context.Context, run string) (*api.RecoveredDevices, *api.Error) {
	r, err := n.load(run)
	if err != nil && !errors.Is(err, errNoRecord) {
		return nil, api.Errorf(api.CodeFile, "%v", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, recoverTimeout,
		fmt.Errorf("the fault has not ended after %v", recoverTimeout))
	defer cancel()
	// This also applies without a record, which another client may have deleted. The processes do not need it to end
	// the fault.
	running := len(n.running(run)) > 0
	if err := n.stop(ctx, run); err != nil {
		return nil, api.Errorf(api.CodeBusy, "%v", err)
	}
	if err != nil {
		recovered := &api.RecoveredDevices{Found: running}
		if running {
			recovered.Cause, recovered.Ended = "requested; the record had been deleted", time.Now().UTC()
		}
		return recovered, nil
	}
	s, err := n.status(run)
	if err != nil || s.Phase != phaseEnded {
		// The processes were killed, or never started.
		s = status{Phase: phaseEnded, Cause: "requested; the fault's processes had been killed"}
		s.Time = time.Now().UTC()
		_ = pause(ctx, notice)
		if err := n.giveBack(ctx, r); err != nil {
			return nil, api.Errorf(api.CodeGone,
				"could not re-register the device plugin for %s: %v; to do this manually, delete the device plugin pod",
				r.Resource, err)
		}
	}
	healthy := 0
	if c, err := n.checkpoint(); err == nil {
		healthy = len(c.Healthy[r.Resource])
	}
	if err := n.forget(run); err != nil {
		return nil, api.Errorf(api.CodeFile, "the fault has ended, but its record could not be removed: %v", err)
	}
	return &api.RecoveredDevices{
		Found: true, Resource: r.Resource, Cause: s.Cause, Ended: s.Time, Healthy: healthy,
	}, nil
}

// giveBack re-registers the real plugin for a resource after the injector was killed, and removes the injector's
// socket. A plugin that is not listening registers when it starts.
func (n node) giveBack(ctx context.Context, r record) error {
	defer n.removeSocket(r.Run)
	for wait := retryEvery; n.listens(r.Endpoint); {
		start := time.Now()
		err := n.reregister(ctx, r)
		if err == nil && n.stays(ctx, r, max(slow(time.Since(start)), wait)) {
			return nil
		}
		if err == nil { // if it fails, the kubelet may be restarting
			wait = max(2*wait, notice)
		}
		if stopped := pause(ctx, wait); stopped != nil {
			return errors.Join(stopped, err)
		}
	}
	return nil
}

// stays watches the real plugin for some time, and reports whether it remains registered. If the kubelet notices only
// now that the injector has disconnected, it disconnects the real plugin instead. This can happen again if the real
// plugin is re-registered before the kubelet has noticed that the injector has disconnected.
func (n node) stays(ctx context.Context, r record, watch time.Duration) bool {
	for until := time.Now().Add(watch); time.Now().Before(until); {
		devices, err := n.allocatable(ctx, r.Resource)
		c, checkpointErr := n.checkpoint()
		if err == nil && checkpointErr == nil && len(devices) == 0 && len(c.Healthy[r.Resource]) > 0 {
			return false
		}
		if pause(ctx, pollEvery) != nil {
			break
		}
	}
	return true
}

// slow returns the time that a kubelet may take to notice the end of a connection. It estimates this from the duration
// of a registration, which is more work for the kubelet than noticing the end.
func slow(registration time.Duration) time.Duration {
	return min(max(notice, 5*registration), 10*time.Second)
}

// reregister re-registers the real plugin for a resource, and returns once the kubelet has recorded its devices.
// They need not all be healthy, because one may have failed in the meantime.
func (n node) reregister(ctx context.Context, r record) error {
	before, err := os.Stat(n.checkpointFile())
	if err != nil {
		return err
	}
	if err := n.register(ctx, r.Resource, r.Endpoint, r.Options); err != nil {
		return err
	}
	return until(ctx, "the device plugin has sent no devices to the kubelet", func() bool {
		now, err := os.Stat(n.checkpointFile())
		return err == nil && !isSame(now, before)
	})
}

// isSame reports whether a file has not been replaced. It compares the times, too, because the new file may have the
// inode number of the old one.
func isSame(a, b fs.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// until waits until a condition is met. If the condition is not met in time, the error describes the problem.
func until(ctx context.Context, problem string, met func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for !met() {
		if pause(ctx, pollEvery) != nil {
			return errors.New(problem)
		}
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// notice is the time that the kubelet needs to notice that a killed injector has disconnected. Until then, it would
// disconnect any plugin that registers.
const notice = time.Second

const (
	retryEvery = 200 * time.Millisecond
	pollEvery  = 10 * time.Millisecond
)

// pause waits for d. It returns an error if ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
