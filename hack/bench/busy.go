package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	crowd     = "crowd"
	crowdSize = 200
	// crowdStep is the number of pods that start at the same time.
	crowdStep = 10
)

// runID matches the ID of a run of xid.
var runID = regexp.MustCompile(`xid-[a-z0-9]{6}`)

// measureBusy injects XIDs into a node on which 200 pods are repeatedly started, and counts the failures. The time is
// compared with the time of the same command on the idle node.
func (b *bench) measureBusy(ctx context.Context) ([]row, error) {
	var quiet, busy sample
	for range min(b.rounds, 10) {
		took, err := b.proven(ctx)
		if err != nil {
			return nil, err
		}
		quiet = append(quiet, took)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	crowded := make(chan error, 1)
	started := make(chan struct{})
	var waves atomic.Int32
	go func() { crowded <- b.crowd(ctx, started, &waves) }()
	select {
	case <-started:
	case err := <-crowded:
		return nil, err
	}
	var failures []error
	for i := range b.rounds {
		if i%10 == 0 {
			fmt.Fprintf(os.Stderr, "busy: %d runs, %d waves of %d pods\n", i, waves.Load(), crowdSize)
		}
		took, err := b.proven(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			failures = append(failures, err)
			fmt.Fprintln(os.Stderr, "bench: busy:", err)
			continue
		}
		busy = append(busy, took)
	}
	cancel()
	if err := <-crowded; err != nil {
		return nil, err
	}
	failed := row{
		What: fmt.Sprintf("xid on a busy node, %d runs", b.rounds), Unit: "failures", Median: float64(len(failures)),
		Against: "none allowed", None: true,
	}.judged()
	rows := []row{failed}
	if len(busy) > 0 {
		rows = append(rows, compared("xid on a busy node", "s", busy, "the quiet node", quiet).judged())
		p := slices.Sorted(slices.Values(busy))
		fmt.Fprintf(os.Stderr, "busy: 95th percentile %.2f s\n", p[len(p)*95/100])
	}
	return rows, b.revert(context.WithoutCancel(ctx), 0)
}

// proven runs xid, and returns the time until the line was verified and reported.
func (b *bench) proven(ctx context.Context) (float64, error) {
	start := time.Now()
	out, err := output(ctx, b.plugin, "--kubeconfig", b.kubeconfig, "xid", "79", b.node, "--gpu", b.gpu, "--yes")
	if err == nil && !runID.MatchString(out) {
		err = errors.New("the output contains no run ID: " + out)
	}
	return time.Since(start).Seconds(), err
}

// crowd starts 200 pods on the node step by step, deletes them, and begins again, until ctx ends.
func (b *bench) crowd(ctx context.Context, started chan<- struct{}, waves *atomic.Int32) error {
	labels := map[string]string{"app": crowd}
	now := int64(0)
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: crowd},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				NodeName: b.node, TerminationGracePeriodSeconds: &now, AutomountServiceAccountToken: new(bool),
				Containers: []corev1.Container{{Name: "main", Image: b.image, Command: []string{"sleep", "3600"}}},
			}},
		},
	}
	deployments := b.client.AppsV1().Deployments(namespace)
	if _, err := deployments.Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer func() { _ = deployments.Delete(context.WithoutCancel(ctx), crowd, metav1.DeleteOptions{}) }()
	for ; ctx.Err() == nil; waves.Add(1) {
		for size := int32(crowdStep); size <= crowdSize+crowdStep; size += crowdStep {
			to := size % (crowdSize + crowdStep) // the last step deletes all pods
			if err := b.scale(ctx, to); err != nil && ctx.Err() == nil {
				return err
			}
			if waves.Load() == 0 && size == crowdStep {
				close(started)
			}
			b.crowded(ctx, to)
		}
	}
	return nil
}

func (b *bench) scale(ctx context.Context, size int32) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"replicas": size}})
	if err != nil {
		return err
	}
	_, err = b.client.AppsV1().Deployments(namespace).Patch(ctx, crowd, "application/merge-patch+json", patch,
		metav1.PatchOptions{})
	return err
}

// crowded waits until the given number of pods is ready, and no others exist, or until ctx ends. If a wave never
// reaches this state, this is not an error in the measured command: after five minutes, the next wave begins.
func (b *bench) crowded(ctx context.Context, size int32) {
	for deadline := time.Now().Add(5 * time.Minute); ctx.Err() == nil && time.Now().Before(deadline); {
		d, err := b.client.AppsV1().Deployments(namespace).Get(ctx, crowd, metav1.GetOptions{})
		if err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.ReadyReplicas == size {
			pods, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + crowd})
			if err == nil && len(pods.Items) == int(size) {
				return
			}
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
