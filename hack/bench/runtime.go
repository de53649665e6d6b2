package main

import (
	"context"
	"fmt"
	"time"
)

func (b *bench) breakRuntime(ctx context.Context, _ int) error {
	_, err := output(ctx, b.plugin, "--kubeconfig", b.kubeconfig, "runtime", "break", b.node, "--mode",
		"missing-handler", "--yes", "--allow-majority")
	return err
}

func (b *bench) revert(ctx context.Context, round int) error {
	if _, err := output(ctx, b.plugin, "--kubeconfig", b.kubeconfig, "revert", "--all", "--yes"); err != nil {
		return err
	}
	return b.settle(ctx, round)
}

// settle waits until the kubelet has recovered from a restart of containerd, so that it does not slow down the next
// measurement.
func (b *bench) settle(context.Context, int) error {
	time.Sleep(3 * time.Second)
	return nil
}

// restart does the minimum work of a break: it creates a privileged pod, restarts containerd from it, and queries
// containerd through the pod to check that it serves.
func (b *bench) restart(ctx context.Context, round int) error {
	kubectl := func(args ...string) (string, error) {
		return output(ctx, b.kubectl,
			append([]string{"--kubeconfig", b.kubeconfig, "--namespace", namespace}, args...)...)
	}
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
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		_, err := kubectl("exec", name, "--", "chroot", "/proc/1/root", "ctr", "version")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return err
		}
	}
	_, err := kubectl("delete", "pod", name, "--wait=false")
	return err
}
