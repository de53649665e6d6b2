package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const trainers = "trainers"

// deploy creates the Deployment whose pods are replaced in both cases: two pods of the sample workload.
func (b *bench) deploy(ctx context.Context) error {
	load := exec.CommandContext(ctx, "test/cluster/trainer")
	load.Env = append(load.Environ(), "STATE="+filepath.Dir(b.kubeconfig))
	image, err := load.Output()
	if err != nil {
		return fmt.Errorf("the image of the sample workload: %w", err)
	}
	labels := map[string]string{"app": trainers}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: trainers},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{
					{Name: "main", Image: strings.TrimSpace(string(image)), ImagePullPolicy: corev1.PullNever},
				},
			}},
		},
	}
	if _, err := b.client.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return err
	}
	return b.still(ctx, 0)
}

// injectCUDA leaves the fault disarmed, because arming takes the same time regardless of the rollout.
func (b *bench) injectCUDA(ctx context.Context, _ int) error {
	_, err := output(ctx, b.plugin, "--kubeconfig", b.kubeconfig, "--namespace", namespace,
		"cuda", "inject", "deployment/"+trainers, "--xid", "79", "--disarmed", "--yes")
	return err
}

func (b *bench) rollout(ctx context.Context, _ int) error {
	for _, args := range [][]string{{"rollout", "restart"}, {"rollout", "status", "--timeout=60s"}} {
		args = append(args, "deployment/"+trainers, "--kubeconfig", b.kubeconfig, "--namespace", namespace)
		if _, err := output(ctx, b.kubectl, args...); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) revertCUDA(ctx context.Context, round int) error {
	if _, err := output(ctx, b.plugin, "--kubeconfig", b.kubeconfig, "revert", "--all", "--yes"); err != nil {
		return err
	}
	return b.still(ctx, round)
}

// still waits until the rollout is complete and the old pods are deleted, so that they do not slow down the next
// measurement.
func (b *bench) still(ctx context.Context, _ int) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		d, err := b.client.AppsV1().Deployments(namespace).Get(ctx, trainers, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pods, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + trainers})
		if err != nil {
			return err
		}
		s, want := d.Status, *d.Spec.Replicas
		if s.ObservedGeneration == d.Generation && s.UpdatedReplicas == want && s.AvailableReplicas == want &&
			len(pods.Items) == int(want) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("deployment %s does not come to rest: %+v", trainers, s)
		}
	}
}
