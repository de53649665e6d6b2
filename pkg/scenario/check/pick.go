package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// pick lists the pods that a check selects, sorted by name. It skips pods that are being deleted, because they no
// longer reflect the current state.
func (c *Checker) pick(ctx context.Context, namespace, labels, name string) ([]corev1.Pod, error) {
	if namespace == "" {
		return nil, errNoNamespace
	}
	var pods []corev1.Pod
	if name != "" {
		pod, err := c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			pods = []corev1.Pod{*pod}
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
		}
	} else {
		all, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labels})
		if err != nil {
			return nil, fmt.Errorf("list pods in %s: %w", namespace, err)
		}
		pods = all.Items
	}
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if len(pods) == 0 {
		return nil, fmt.Errorf("no pod %q found in namespace %q", cmp.Or(name, labels), namespace)
	}
	sorting.Func(pods, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods, nil
}

// podState describes a pod's state briefly: Pending: Unschedulable: 0/2 nodes are available.
func podState(pod *corev1.Pod) string {
	words := []string{string(pod.Status.Phase), pod.Status.Reason, trouble(pod)}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), ": ")
}

// trouble returns what prevents a pod or one of its containers from running, or "".
func trouble(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return condition.Reason + ": " + condition.Message
		}
	}
	for _, s := range statuses(pod) {
		switch waiting, ended := s.State.Waiting, s.State.Terminated; {
		case waiting != nil && waiting.Message != "":
			return waiting.Reason + ": " + waiting.Message
		case waiting != nil:
			return waiting.Reason
		case ended != nil && ended.ExitCode != 0:
			return strings.TrimSuffix(
				fmt.Sprintf("%s (exit code %d): %s", ended.Reason, ended.ExitCode, strings.TrimSpace(ended.Message)),
				": ",
			)
		}
	}
	return ""
}

// statuses returns the statuses of the init containers, then those of the containers.
func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}
