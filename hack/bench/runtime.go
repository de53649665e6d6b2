package main

import (
	"context"
	"fmt"
	"time"
)

// measureRuntime measures the time until a broken containerd configuration is verified, and until it is restored. Both
// restart containerd.
func (b *bench) measureRuntime(ctx context.Context) ([]row, error) {
	if err := b.revert(ctx, 0); err != nil { // other runs would also be reverted, and measured
		return nil, err
	}
	times, err := b.alternate(ctx, way{"break", b.breakRuntime, b.settle}, way{"revert", b.revert, b.settle},
		way{"restart", b.restart, b.settle})
	if err != nil {
		return nil, err
	}
	const floor = "restart of containerd from a pod"
	return []row{
		compared("runtime break", "s", times["break"], floor, times["restart"]).judged(),
		compared("revert of runtime break", "s", times["revert"], floor, times["restart"]).judged(),
	}, nil
}

func (b *bench) breakRuntime(ctx context.Context, _ int) error {
	_, err := b.ours(ctx, "runtime", "break", b.node, "--mode", "missing-handler", "--yes", "--allow-majority")
	return err
}

// settle gives the kubelet time to recover from a restart of containerd, so that the recovery does not slow down the
// next measurement. The API does not show when the kubelet has recovered.
func (b *bench) settle(context.Context, int) error {
	time.Sleep(3 * time.Second)
	return nil
}

// restart does the minimum work that breaking the configuration requires: it creates a privileged pod, restarts
// containerd from it, and queries containerd through the pod to check that it responds.
func (b *bench) restart(ctx context.Context, round int) error {
	kubectl := func(args ...string) (string, error) { return b.theirs(ctx, b.kubeconfig, args...) }
	name := fmt.Sprintf("restart-%d", round)
	spec := fmt.Sprintf(
		`{"spec":{"nodeName":%q,"hostPID":true,"terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":%q,"command":["sleep","600"],"securityContext":{"privileged":true}}]}}`,
		b.node, b.image,
	)
	if _, err := kubectl("run", name, "--image="+b.image, "--restart=Never", "--overrides="+spec); err != nil {
		return err
	}
	if _, err := kubectl("wait", "--for=condition=Ready", "--timeout=60s", "pod/"+name); err != nil {
		return err
	}
	// The restart closes the connection of the exec request that started it.
	_, _ = kubectl("exec", name, "--", "chroot", "/proc/1/root", "systemctl", "restart", "containerd")
	err := until(ctx, "containerd", 50*time.Millisecond, func() (bool, error) {
		_, err := kubectl("exec", name, "--", "chroot", "/proc/1/root", "ctr", "version")
		return err == nil, err
	})
	if err != nil {
		return err
	}
	_, err = kubectl("delete", "pod", name, "--wait=false")
	return err
}
