package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/test/peers"
)

// step is something that must be seen, in the order of the list.
type step struct {
	name string
	do   func(ctx context.Context, p *peer) (measured string, err error)
}

// fault is an XID of GPU 1 of the faulty node, and what the driver does about it.
type fault struct {
	xid   string
	taint string
	all   bool // GPUs of the node get the taint, not only the one with the fault
}

var faults = []fault{
	{xid: "48", taint: "gpu.nvidia.com/xid=48:NoSchedule"},
	// The driver cannot know which GPU is lost.
	{xid: "79", taint: "gpu.nvidia.com/gpu-lost:NoSchedule", all: true},
	// An error of the application: the taint has no effect.
	{xid: "31", taint: "gpu.nvidia.com/xid=31:None"},
}

func steps() []step {
	all := []step{
		{fmt.Sprintf("published: a ResourceSlice of each node has its %d GPUs", perNode), publishes},
		{"claimed: a pod with a ResourceClaim runs on each node", claims},
	}
	for _, f := range faults {
		which := "GPU 1 alone"
		if f.all {
			which = "all GPUs of the node"
		}
		all = append(all,
			step{fmt.Sprintf("xid %s: taint %s on %s, also in the evidence", f.xid, f.taint, which), f.start},
			step{"xid " + f.xid + ": pods with claims, the other node and its driver did not notice", f.others},
			step{"xid " + f.xid + " reverted: a pod of the DaemonSet's own, no taint", revert},
		)
	}
	return append(all,
		step{"a pod that is created while the driver's pod is replaced: it runs later", late},
		step{"xid 48 with a TTL, and no client: a pod of the DaemonSet's own, no taint", expires},
		step{"xid 48 with the device layer: refused before anything is changed", refused},
	)
}

// publishes waits until the driver has published the GPUs of both nodes.
func publishes(ctx context.Context, p *peer) (string, error) {
	from := time.Now()
	for _, node := range []string{faulty, other} {
		gpus, err := p.GPUs(node)
		if err != nil {
			return "", err
		}
		err = peers.Until(ctx, "the ResourceSlice of "+node, func() error {
			now := p.seen.of(node).taints
			for _, g := range gpus {
				if _, ok := now[g.UUID]; !ok || len(now) != len(gpus) {
					return fmt.Errorf("it has %v", now)
				}
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	if _, err := p.untilSettled(ctx, false); err != nil {
		return "", err
	}
	p.slice = p.seen.of(other).version
	return "after " + peers.Elapsed(from, time.Now()), nil
}

// claims runs a pod on each node; that of the faulty node has the GPU that gets the faults.
func claims(ctx context.Context, p *peer) (string, error) {
	from := time.Now()
	for name, node := range map[string]string{"trainer": faulty, "neighbor": other} {
		uuid := ""
		if node == faulty {
			uuid = p.bad.UUID
		}
		if err := p.create(ctx, name, node, uuid); err != nil {
			return "", err
		}
		pod, err := p.untilRuns(ctx, name)
		if err != nil {
			return "", err
		}
		log, err := p.Client.CoreV1().Pods(workloads).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil {
			return "", err
		}
		if files := strings.Fields(string(log)); len(files) != 1 {
			return "", fmt.Errorf("the device files of pod %s are %q, want that of one GPU", name, files)
		}
		p.held[name] = pod
	}
	return "after " + peers.Elapsed(from, time.Now()), nil
}

func (p *peer) create(ctx context.Context, name, node, uuid string) error {
	claim, pod := claimed(name, node, uuid)
	_, err := p.Client.ResourceV1().ResourceClaims(workloads).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = p.Client.CoreV1().Pods(workloads).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// untilRuns waits until a pod with a claim is ready.
func (p *peer) untilRuns(ctx context.Context, name string) (pod corev1.Pod, err error) {
	err = peers.Until(ctx, "pod "+name, func() error {
		now, err := p.Client.CoreV1().Pods(workloads).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod = *now
		if !peers.IsReady(now) {
			return fmt.Errorf("it is %s", now.Status.Phase)
		}
		return nil
	})
	return pod, err
}

// inject runs the program under test, and returns the evidence of the nvml layer.
func (p *peer) inject(ctx context.Context, xid, layers, ttl string) (evidence []string, err error) {
	out, err := peers.Output(p.Command(ctx, "xid", xid, faulty, "--gpu", "1", "--layers", layers, "--daemonset",
		namespace+"/"+daemonSet, "--ttl", ttl, "--yes", "-o", "json"))
	if err != nil {
		return nil, err
	}
	var got struct {
		Layers []struct {
			Layer    string
			Evidence []string
		}
	}
	if err := json.Unmarshal(out, &got); err != nil {
		return nil, err
	}
	for _, l := range got.Layers {
		if l.Layer == "nvml" {
			evidence = l.Evidence
		}
	}
	return evidence, nil
}

// start injects the fault, and waits for the driver's taint.
func (f fault) start(ctx context.Context, p *peer) (string, error) {
	var err error
	if p.own, err = p.untilSettled(ctx, false); err != nil {
		return "", err
	}
	before := p.seen.drivers()
	evidence, err := p.inject(ctx, f.xid, "kernel,nvml", "10m")
	if err != nil {
		return "", err
	}
	on, err := p.untilSettled(ctx, true)
	if err != nil {
		return "", err
	}
	pod := on[faulty]
	at, err := p.injectedAt(ctx, pod.Name)
	if err != nil {
		return "", err
	}
	since, err := p.untilTainted(ctx, f)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(evidence, func(e string) bool {
		return strings.Contains(e, p.bad.UUID+") has taint "+f.taint)
	}) {
		return "", fmt.Errorf("the evidence does not have the taint: %q", evidence)
	}
	if n := p.seen.drivers() - before; n != 1 {
		return "", fmt.Errorf("%d drivers were started, want only that of the copy", n)
	}
	return fmt.Sprintf("taint after %s; no driver for %s", peers.Elapsed(at, since), p.seen.absence()), nil
}

// untilTainted waits until the GPUs have exactly the taint of the fault, and returns since when they have it.
func (p *peer) untilTainted(ctx context.Context, f fault) (since time.Time, err error) {
	err = peers.Until(ctx, "the taint", func() error {
		now := p.seen.of(faulty)
		for uuid, taints := range now.taints {
			var want []string
			if f.taint != "" && (f.all || uuid == p.bad.UUID) {
				want = []string{f.taint}
			}
			if !slices.Equal(taints, want) {
				return fmt.Errorf("%s has the taints %v, want %v", uuid, taints, want)
			}
		}
		if len(now.taints) != perNode {
			return fmt.Errorf("%d GPUs are published", len(now.taints))
		}
		since = now.since
		return nil
	})
	return since, err
}

// others verifies what must not change.
func (f fault) others(ctx context.Context, p *peer) (string, error) { return "", p.undisturbed(ctx) }

// undisturbed returns an error if a pod with a claim, or the driver's pod or ResourceSlice of the other node, is not
// the same any more.
func (p *peer) undisturbed(ctx context.Context) error {
	for name, before := range p.held {
		now, err := p.Client.CoreV1().Pods(workloads).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := sameRun(&before, now); err != nil {
			return err
		}
	}
	before := p.own[other]
	now, err := p.Client.CoreV1().Pods(namespace).Get(ctx, before.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if now := p.seen.of(other); now.version != p.slice {
		return fmt.Errorf("the ResourceSlice of %s has version %s, and had %s", other, now.version, p.slice)
	}
	return errors.Join(sameRun(&before, now), p.seen.calm())
}

// revert reverts the fault. When the command ends, the taint is gone.
func revert(ctx context.Context, p *peer) (string, error) {
	from := time.Now()
	if err := p.Tool(ctx, "revert", "--all", "--yes"); err != nil {
		return "", err
	}
	ended := time.Now()
	since, err := p.restored(ctx)
	if since.After(ended) {
		err = errors.Join(err, fmt.Errorf("the command ended %s before the taint", peers.Elapsed(ended, since)))
	}
	return fmt.Sprintf("no taint after %s; no driver for %s", peers.Elapsed(from, since), p.seen.absence()), err
}

// restored waits until the DaemonSet has pods of its own, without taints, and returns since when there are none.
func (p *peer) restored(ctx context.Context) (since time.Time, err error) {
	on, err := p.untilSettled(ctx, false)
	if err != nil {
		return since, err
	}
	if before := p.own[faulty]; on[faulty].UID == before.UID {
		return since, fmt.Errorf("pod %s was not replaced", before.Name)
	}
	if since, err = p.untilTainted(ctx, fault{}); err != nil {
		return since, err
	}
	return since, p.undisturbed(ctx)
}

// late creates a pod when the original has ended: the kubelet cannot prepare its claim, and tries again later.
func late(ctx context.Context, p *peer) (string, error) {
	var err error
	if p.own, err = p.untilSettled(ctx, false); err != nil {
		return "", err
	}
	injected := make(chan error, 1)
	go func() {
		_, err := p.inject(ctx, "48", "kernel,nvml", "10m")
		injected <- err
	}()
	original := p.own[faulty]
	err = peers.Until(ctx, "the end of pod "+original.Name, func() error {
		_, err := p.Client.CoreV1().Pods(namespace).Get(ctx, original.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it exists"))
	})
	if err != nil {
		return "", errors.Join(err, <-injected)
	}
	from := time.Now()
	if err := p.create(ctx, "late", faulty, ""); err != nil {
		return "", errors.Join(err, <-injected)
	}
	if err := <-injected; err != nil {
		return "", err
	}
	pod, err := p.untilRuns(ctx, "late")
	if err != nil {
		return "", err
	}
	runs := time.Now()
	if err := p.Client.CoreV1().Pods(workloads).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return "", err
	}
	_, err = revert(ctx, p)
	return "after " + peers.Elapsed(from, runs), err
}

// expires injects a fault that nobody reverts.
func expires(ctx context.Context, p *peer) (string, error) {
	const ttl = 30 * time.Second
	var err error
	if p.own, err = p.untilSettled(ctx, false); err != nil {
		return "", err
	}
	from := time.Now()
	if _, err := p.inject(ctx, "48", "kernel,nvml", ttl.String()); err != nil {
		return "", err
	}
	since, err := p.restored(ctx)
	if err != nil {
		return "", err
	}
	if since.Sub(from) < ttl-time.Second {
		return "", fmt.Errorf("the taint was gone after %s already", peers.Elapsed(from, since))
	}
	return fmt.Sprintf("no taint after %s, with a TTL of %s", peers.Elapsed(from, since), ttl),
		p.Tool(ctx, "revert", "--all", "--yes") // closes the record
}

// refused verifies that the device layer names what to use in its place.
func refused(ctx context.Context, p *peer) (string, error) {
	on, err := p.untilSettled(ctx, false)
	if err != nil {
		return "", err
	}
	before := on[faulty]
	if _, err = p.inject(ctx, "48", "kernel,device,nvml", "10m"); err == nil {
		return "", errors.New("it was injected")
	}
	said := err.Error()
	if !strings.Contains(said, "nothing was changed") || !strings.Contains(said, "kubectl gpu-fault device taint") {
		return "", err
	}
	if on, err = p.untilSettled(ctx, false); err != nil {
		return "", err
	}
	now := on[faulty]
	return "", errors.Join(sameRun(&before, &now), p.undisturbed(ctx))
}
