package daemonpod

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
)

// Timeouts, and the interval of polls.
const (
	podTimeout    = 2 * time.Minute // includes pulling the gate's image
	statusTimeout = time.Minute     // the kubelet updates the status of its node at least every 10 s
	pollEvery     = 100 * time.Millisecond
)

// poll waits until done returns true. done also returns what is missing.
func poll(
	ctx context.Context, timeout time.Duration, done func(context.Context) (ok bool, missing string, err error),
) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	missing := ""
	for {
		ok, text, err := done(limited)
		switch {
		case ok && err == nil:
			return nil
		case err != nil && limited.Err() == nil:
			return err
		case text != "":
			missing = text
		}
		select {
		case <-limited.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("timed out after %s: %s", timeout, missing)
		case <-time.After(pollEvery):
		}
	}
}

// await waits until the copy has reached a state, and returns it.
func (r *Replacement) await(
	ctx context.Context, pod *corev1.Pod, state string, reached func(*corev1.Pod) bool,
) (*corev1.Pod, error) {
	err := poll(ctx, podTimeout, func(ctx context.Context) (bool, string, error) {
		now, err := r.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return false, "", fmt.Errorf("get pod %s: %w", pod.Name, err)
		case now.UID != pod.UID || now.DeletionTimestamp != nil:
			return false, "", fmt.Errorf("another client has terminated pod %s", pod.Name)
		case ended(now):
			return false, "", fmt.Errorf("pod %s terminated before it could replace %s (the node briefly needs room for both): %s",
				pod.Name, r.Original.Name, reason(now))
		}
		pod = now
		return reached(now), fmt.Sprintf("pod %s is not in the state %q: %s", pod.Name, state, reason(now)), nil
	})
	return pod, err
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// waits reports whether the copy is waiting for permission to start.
func waits(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == gateName && s.State.Running != nil
	})
}

// held returns the finalizers that keep a deleted pod whose containers have terminated.
func held(pod *corev1.Pod) string {
	running := slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Terminated == nil
	})
	if pod.DeletionTimestamp == nil || running && !ended(pod) {
		return ""
	}
	return strings.Join(pod.Finalizers, ", ")
}

// wants reports whether the DaemonSet creates a pod for a node that has none, because it selects the node and tolerates
// its taints. All DaemonSets tolerate Kubernetes' own taints, such as the taint of a cordoned node.
func wants(ds *appsv1.DaemonSet, node *corev1.Node) bool {
	spec := ds.Spec.Template.Spec
	matches, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: spec}).Match(node)
	if err != nil || !matches || spec.NodeName != "" && spec.NodeName != node.Name {
		return false
	}
	_, refused := scheduling.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, spec.Tolerations,
		func(t *corev1.Taint) bool {
			return t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/")
		}, true)
	return !refused
}

func ready(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && podutils.IsPodReady(pod) }

// reason returns the reason why a pod is not running.
func reason(pod *corev1.Pod) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Reason != "PodInitializing" {
			return strings.TrimSuffix(fmt.Sprintf("container %s: %s: %s", s.Name, w.Reason, w.Message), ": ")
		}
	}
	if s := pod.Status; s.Reason != "" {
		return fmt.Sprintf("%s: %s: %.300s", s.Phase, s.Reason, s.Message)
	}
	return string(pod.Status.Phase)
}

// gone waits until no pod of the DaemonSet on the node satisfies the predicate (which).
func (r *Replacement) gone(ctx context.Context, which func(*corev1.Pod) bool) error {
	return poll(ctx, podTimeout, func(ctx context.Context) (bool, string, error) {
		pods, err := podsOf(ctx, r.Client, r.DaemonSet.Namespace, string(r.DaemonSet.UID), r.Node)
		if err != nil {
			return false, "", err
		}
		for i := range pods {
			if which(&pods[i]) {
				return false, fmt.Sprintf("pod %s still exists", pods[i].Name), nil
			}
		}
		return true, "", nil
	})
}

// podsOf returns the pods of a DaemonSet on a node.
func podsOf(ctx context.Context, client kubernetes.Interface, namespace, uid, node string) ([]corev1.Pod, error) {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods on node %s in namespace %s: %w", node, namespace, err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		owner := metav1.GetControllerOf(&p)
		return owner == nil || owner.Kind != kindDaemonSet || string(owner.UID) != uid
	}), nil
}

// Devices contains the number of allocatable devices on a node, by extended resource.
type Devices map[string]int64

func allocatable(ctx context.Context, client kubernetes.Interface, node string) (Devices, error) {
	now, err := fault.Allocatable(ctx, client, node)
	all := Devices{}
	for resource, n := range now {
		if strings.Contains(string(resource), "/") {
			all[string(resource)] = n
		}
	}
	return all, err
}

// fewer returns the resources that now have fewer devices, such as "nvidia.com/gpu 2 -> 1".
func (d Devices) fewer(now Devices) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(d)) {
		if now[name] < d[name] {
			all = append(all, fmt.Sprintf("%s %d -> %d", name, d[name], now[name]))
		}
	}
	return all
}

// await waits until the node has at least these devices.
func (d Devices) await(ctx context.Context, client kubernetes.Interface, node string) error {
	return poll(ctx, statusTimeout, func(ctx context.Context) (bool, string, error) {
		now, err := allocatable(ctx, client, node)
		if err != nil {
			return false, "", err
		}
		missing := d.fewer(now)
		return len(missing) == 0, fmt.Sprintf("node %s has fewer allocatable devices than before: %s", node,
			strings.Join(missing, ", ")), nil
	})
}
