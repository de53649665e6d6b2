package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/test/peers"
)

// gpus returns the number of allocatable GPUs in the status of a node.
func gpus(n *corev1.Node) int64 {
	have := n.Status.Allocatable[resource]
	return have.Value()
}

// gauge has the number of a node's allocatable GPUs, and the time of its last change.
type gauge struct {
	mu    sync.Mutex
	n     int64
	since time.Time
}

func (g *gauge) read() (int64, time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n, g.since
}

func (g *gauge) set(n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n != g.n || g.since.IsZero() {
		g.n, g.since = n, time.Now()
	}
}

// follow updates the gauge until ctx ends. It watches, because the times are measured.
func (g *gauge) follow(ctx context.Context, client kubernetes.Interface, node string) error {
	w, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	if err != nil {
		return err
	}
	go func() {
		for e := range w.ResultChan() {
			if n, ok := e.Object.(*corev1.Node); ok {
				g.set(gpus(n))
			}
		}
	}()
	return nil
}

// matching returns the number of lines that contain a text.
func matching(log []peers.LogLine, text string) (n int) {
	for _, l := range log {
		if strings.Contains(l.Text, text) {
			n++
		}
	}
	return n
}

// between returns the number of lines that were written from one time to another.
func between(log []peers.LogLine, from, to time.Time) (n int) {
	for _, l := range log {
		if !l.At.Before(from) && l.At.Before(to) {
			n++
		}
	}
	return n
}

// settled returns an error unless each node has one pod of the plugin, and all of them are ready. Those of the given
// nodes have the shim, and no others.
func settled(pods []corev1.Pod, shim []string) error {
	nodes := map[string]bool{}
	for i := range pods {
		switch pod := &pods[i]; {
		case pod.DeletionTimestamp != nil:
			return fmt.Errorf("pod %s is being deleted", pod.Name)
		case !peers.IsReady(pod):
			return fmt.Errorf("pod %s is not ready", pod.Name)
		case hasShim(pod) != slices.Contains(shim, pod.Spec.NodeName):
			return fmt.Errorf("pod %s has the shim: %t", pod.Name, hasShim(pod))
		default:
			nodes[pod.Spec.NodeName] = true
		}
	}
	if len(nodes) != len(pods) || !nodes[faulty] || !nodes[other] {
		return errors.New("not every node has one pod")
	}
	return nil
}

// hasShim reports whether a pod loads the shim.
func hasShim(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name == "LD_PRELOAD" })
}

// gpuPod returns a pod on the faulty node that requests a GPU, and prints which one the plugin has given to it.
func gpuPod() *corev1.Pod {
	one := corev1.ResourceList{resource: *apiresource.NewQuantity(1, apiresource.DecimalSI)}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu", Namespace: namespace},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			NodeSelector:  map[string]string{corev1.LabelHostname: faulty},
			Containers: []corev1.Container{{
				Name: "gpu", Image: "busybox:1.35", ImagePullPolicy: corev1.PullNever,
				Command:   []string{"sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"},
				Resources: corev1.ResourceRequirements{Limits: one},
			}},
		},
	}
}

// sameRun returns an error if the plugin was restarted between two looks at its pod on a node.
func sameRun(before, after *corev1.Pod) error {
	switch {
	case before.UID != after.UID:
		return fmt.Errorf("pod %s was replaced by %s", before.Name, after.Name)
	case restarts(before) != restarts(after):
		return fmt.Errorf("the container of pod %s was restarted", after.Name)
	}
	return nil
}

func restarts(p *corev1.Pod) (n int32) {
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}
