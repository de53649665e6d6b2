package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/test/peers"
)

const (
	quiet    = 10 * time.Second // how long each fault is watched
	maxLines = 20               // of the plugin's log in this time; with 79, each of its waits of 5 s logs 3 lines
)

// step is something that must be seen, in the order of the list.
type step struct {
	name string
	do   func(ctx context.Context, p *peer) (measured string, err error)
}

// fault is a fault of the faulty node, and what the plugin does about it.
type fault struct {
	name string
	args []string // of the program under test
	shim []string // nodes whose pods of the plugin are replaced, with the shim and, by the undo, without it
	logs []string // what the log of the plugin then contains, in this order
	left int64    // GPUs of the node that are allocatable then
}

// nvml returns a fault of the NVML that the plugin uses on the faulty node.
func nvml(xid, device string, left int64, logs ...string) fault {
	return fault{
		name: "xid " + xid + " in NVML", shim: []string{faulty, other}, left: left, logs: logs,
		args: []string{"cuda", "inject", "daemonset/" + daemonSet, "-n", namespace, "--xid", xid, "--device", device,
			"--only-on-node", faulty, "--ttl", "10m"},
	}
}

// layer returns the same as a layer of an XID: the plugin's pod on the faulty node alone is replaced.
func layer(xid, layers string, left int64, logs ...string) fault {
	return fault{
		name: "xid " + xid + " --layers " + layers, shim: []string{faulty}, left: left, logs: logs,
		args: []string{"xid", xid, faulty, "--gpu", "1", "--layers", layers, "--ttl", "10m"},
	}
}

var faults = []fault{
	{
		name: "device unhealthy", left: perNode - 1,
		args: []string{"device", "unhealthy", faulty, "--gpu", "1", "--ttl", "10m"},
	},
	nvml("48", "1", perNode-1, "XidCriticalError: Xid=48", "device marked unhealthy"),
	// The plugin does not ask which GPU is lost.
	nvml("79", "1", 0, "Error waiting for event: GPU is lost; Marking all devices as unhealthy",
		"device marked unhealthy"),
	nvml("31", "1", perNode, "Skipping event"),
	layer("48", "kernel,nvml", perNode-1, "XidCriticalError: Xid=48", "device marked unhealthy"),
	layer("79", "kernel,nvml", 0, "Error waiting for event: GPU is lost; Marking all devices as unhealthy", "device marked unhealthy"),
	// The plugin itself has reported the device before the kubelet hears it from the fault, too.
	layer("48", "kernel,device,nvml", perNode-1, "XidCriticalError: Xid=48", "device marked unhealthy"),
}

func steps() []step {
	all := []step{
		{fmt.Sprintf("registered: %d GPUs are allocatable on each node", perNode), registers},
		{"allocated: a pod gets a GPU of its node", allocates},
	}
	for _, f := range faults {
		all = append(all, f.steps()...)
	}
	return all
}

func (f fault) steps() []step {
	undone := "the same process of the plugin serves all GPUs again"
	if len(f.shim) > 0 {
		undone = "a new pod without the shim serves all GPUs again"
	}
	effect := count.Of(f.left, "GPU") + " allocatable"
	if len(f.logs) > 0 {
		effect += fmt.Sprintf(", the plugin logs %q", f.logs)
	}
	return []step{
		{f.name + ": " + effect, f.start},
		{fmt.Sprintf("%s: stays so for %s, without a flood of log lines", f.name, quiet), f.stays},
		{f.name + " reverted: " + undone, f.revert},
	}
}

// registers waits until the GPUs of the plugin's first pods are allocatable.
func registers(ctx context.Context, p *peer) (string, error) {
	from := time.Now()
	for _, node := range []string{faulty, other} {
		if err := p.untilAllocatable(ctx, node, perNode); err != nil {
			return "", err
		}
	}
	var err error
	p.pod, err = p.untilSettled(ctx)
	return "after " + peers.Elapsed(from, time.Now()), err
}

// allocates runs a pod that requests a GPU. What the plugin allocated is in the environment of its container.
func allocates(ctx context.Context, p *peer) (string, error) {
	owned, err := p.GPUs(faulty)
	if err != nil {
		return "", err
	}
	pods := p.Client.CoreV1().Pods(namespace)
	pod, err := pods.Create(ctx, gpuPod(), metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	err = peers.Until(ctx, "the pod", func() error {
		got, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && got.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("it is %s: %s", got.Status.Phase, got.Status.Message)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	log, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return "", err
	}
	got := strings.TrimSpace(string(log))
	if !slices.ContainsFunc(owned, func(g peers.GPU) bool { return g.UUID == got }) {
		return "", fmt.Errorf("the pod got %q, which is not a GPU of %s", got, faulty)
	}
	return got, pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
}

// start starts the fault, and waits for what the plugin does about it.
func (f fault) start(ctx context.Context, p *peer) (string, error) {
	var err error
	if p.pod, err = p.untilSettled(ctx); err != nil {
		return "", err
	}
	from := time.Now()
	if err := p.Tool(ctx, append(slices.Clone(f.args), "--yes")...); err != nil {
		return "", err
	}
	var measured []string
	if len(f.shim) > 0 {
		var log string
		if from, log, err = f.logged(ctx, p); err != nil {
			return "", err
		}
		measured = append(measured, log)
	}
	since, err := p.untilGauge(ctx, f.left)
	return strings.Join(append(measured, status(from, since)), ", "), err
}

// logged waits for what the plugin logs about the fault. It returns when the shim injected the fault, and the time from
// then to the last of these lines.
func (f fault) logged(ctx context.Context, p *peer) (injected time.Time, measured string, err error) {
	pod, err := p.untilSettled(ctx, f.shim...)
	if err != nil {
		return injected, "", err
	}
	err = peers.Until(ctx, "the plugin's log", func() error {
		log, err := p.logs(ctx, pod.Name)
		if err != nil {
			return err
		}
		first, ok := peers.Find(log, "gpu-fault: run ")
		if !ok {
			return errors.New("the shim has injected nothing")
		}
		injected = first.At
		for _, text := range f.logs {
			line, ok := peers.Find(log, text)
			if !ok {
				return fmt.Errorf("it does not contain %q", text)
			}
			measured = "log after " + peers.Elapsed(injected, line.At)
		}
		return nil
	})
	return injected, measured, err
}

// stays watches the node and the log of the plugin for some time.
func (f fault) stays(ctx context.Context, p *peer) (string, error) {
	from := time.Now()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(quiet):
	}
	if n, since := p.allocatable.read(); n != f.left || since.After(from) {
		return "", fmt.Errorf("%d GPUs are allocatable since %s", n, since.Format(time.TimeOnly))
	}
	pod, err := p.untilSettled(ctx, f.shim...)
	if err != nil {
		return "", err
	}
	log, err := p.logs(ctx, pod.Name)
	if err != nil {
		return "", err
	}
	lines := between(log, from, from.Add(quiet))
	if lines > maxLines {
		return "", fmt.Errorf("the plugin logged %d lines", lines)
	}
	return count.Of(int64(lines), "line"), nil
}

// revert reverts the fault, and waits until all GPUs are allocatable again.
func (f fault) revert(ctx context.Context, p *peer) (string, error) {
	from := time.Now()
	if err := p.Tool(ctx, "revert", "--all", "--yes"); err != nil {
		return "", err
	}
	pod, err := p.untilSettled(ctx)
	if err != nil {
		return "", err
	}
	ready := time.Now()
	since, err := p.untilGauge(ctx, perNode)
	if err != nil {
		return "", err
	}
	if len(f.shim) == 0 {
		return status(from, since), p.neverRestarted(ctx, &pod)
	}
	if pod.UID == p.pod.UID {
		return "", fmt.Errorf("pod %s was not replaced", pod.Name)
	}
	return fmt.Sprintf("pods after %s, %s", peers.Elapsed(from, ready), status(from, since)),
		p.untilAllocatable(ctx, other, perNode)
}

// neverRestarted returns an error if the plugin was restarted since the fault began, or has registered again.
func (p *peer) neverRestarted(ctx context.Context, now *corev1.Pod) error {
	if err := sameRun(&p.pod, now); err != nil {
		return err
	}
	log, err := p.logs(ctx, now.Name)
	if err != nil {
		return err
	}
	if n := matching(log, "Registered device plugin"); n != 1 {
		return fmt.Errorf("the plugin has registered %d times", n)
	}
	return nil
}

// untilGauge waits until n GPUs of the faulty node are allocatable, and returns since when they are.
func (p *peer) untilGauge(ctx context.Context, n int64) (since time.Time, err error) {
	err = peers.Until(ctx, fmt.Sprintf("%d allocatable %s on %s", n, resource, faulty), func() error {
		have, changed := p.allocatable.read()
		if since = changed; have != n {
			return fmt.Errorf("%d are allocatable", have)
		}
		return nil
	})
	return since, err
}

// status describes when the number of allocatable GPUs changed. The node status may have it already, from when the
// rollout of the fault stopped the plugin.
func status(from, since time.Time) string {
	if since.Before(from) {
		return "node status as before"
	}
	return "node status after " + peers.Elapsed(from, since)
}
