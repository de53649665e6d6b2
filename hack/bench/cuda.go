package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const trainers = "trainers"

// measureCUDA measures the time until the pods of a Deployment run with the shim. This is when cuda inject exits,
// because it waits until it has read the heartbeat of each new pod.
func (b *bench) measureCUDA(ctx context.Context) ([]row, error) {
	if err := b.deploy(ctx); err != nil {
		return nil, err
	}
	times, err := b.alternate(ctx, way{"inject", b.injectCUDA, b.revertCUDA}, way{"restart", b.rollout, b.still})
	if err != nil {
		return nil, err
	}
	return []row{
		compared("cuda inject", "s", times["inject"], "kubectl rollout restart", times["restart"]).judged(),
	}, b.client.AppsV1().Deployments(namespace).Delete(ctx, trainers, metav1.DeleteOptions{})
}

// deploy creates the Deployment whose pods are replaced in both cases: two pods of the sample workload.
func (b *bench) deploy(ctx context.Context) error {
	image, err := b.script(ctx, "trainer")
	if err != nil {
		return fmt.Errorf("find the image of the sample workload: %w", err)
	}
	labels := map[string]string{"app": trainers}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: trainers},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{
					{Name: "main", Image: image, ImagePullPolicy: corev1.PullNever},
				},
			}},
		},
	}
	if _, err := b.client.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return err
	}
	return b.still(ctx, 0)
}

// injectCUDA does not arm the fault, because arming takes the same time regardless of the rollout.
func (b *bench) injectCUDA(ctx context.Context, _ int) error {
	_, err := b.ours(ctx, "--namespace", namespace, "cuda", "inject", "deployment/"+trainers, "--xid", "79",
		"--disarmed", "--yes")
	return err
}

func (b *bench) rollout(ctx context.Context, _ int) error {
	if _, err := b.theirs(ctx, b.kubeconfig, "rollout", "restart", "deployment/"+trainers); err != nil {
		return err
	}
	_, err := b.theirs(ctx, b.kubeconfig, "rollout", "status", "--timeout=60s", "deployment/"+trainers)
	return err
}

func (b *bench) revertCUDA(ctx context.Context, round int) error {
	if err := b.revert(ctx, round); err != nil {
		return err
	}
	return b.still(ctx, round)
}

// still waits until the rollout is complete and the old pods are deleted, so that they do not slow down the next
// measurement.
func (b *bench) still(ctx context.Context, _ int) error {
	return until(ctx, "the rollout of deployment "+trainers, 100*time.Millisecond, func() (bool, error) {
		d, err := b.client.AppsV1().Deployments(namespace).Get(ctx, trainers, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		pods, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + trainers})
		if err != nil {
			return false, err
		}
		s, want := d.Status, *d.Spec.Replicas
		return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == want && s.AvailableReplicas == want &&
			len(pods.Items) == int(want), nil
	})
}
