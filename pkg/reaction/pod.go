package reaction

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func about(pod *corev1.Pod, name Name, by, text string, at time.Time) Reaction {
	return Reaction{
		Time: at, Name: name, Node: pod.Spec.NodeName, Pod: pod.Namespace + "/" + pod.Name, UID: pod.UID,
		By: by, Who: Who(by), Text: text,
	}
}

// podChanges returns what happened to a pod on a target between two states.
func podChanges(before, after *corev1.Pod, at time.Time) []Reaction {
	var found []Reaction
	for _, now := range containers(after) {
		was := find(containers(before), now.Name)
		if last := ended(was, now); last != nil && !isToldToEnd(after, last) {
			found = append(found, about(after, PodFailed, "", exit(now.Name, last), at))
		}
		for _, text := range unhealthy(was, now) {
			found = append(found, about(after, DeviceUnhealthy, "kubelet", text, at))
		}
	}
	if isReady(after) && !isReady(before) && !isDaemon(after) {
		found = append(found, about(after, Served, "", "ready again on "+after.Spec.NodeName, at))
	}
	if before.DeletionTimestamp == nil && after.DeletionTimestamp != nil && !isDaemon(after) {
		by, text := evictor(after)
		found = append(found, about(after, Evicted, by, text, at))
	}
	return found
}

func containers(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

func find(all []corev1.ContainerStatus, name string) corev1.ContainerStatus {
	for _, c := range all {
		if c.Name == name {
			return c
		}
	}
	return corev1.ContainerStatus{}
}

// isToldToEnd reports whether a container ended because its pod was being deleted: by SIGTERM, or by SIGKILL after the
// grace period. A program that returns anything else has failed, even if its pod is being deleted, as by a drain after
// the fault.
func isToldToEnd(pod *corev1.Pod, last *corev1.ContainerStateTerminated) bool {
	const terminated, killed = 128 + 15, 128 + 9
	if pod.DeletionTimestamp == nil || last.ExitCode != terminated && last.ExitCode != killed {
		return false
	}
	asked := pod.DeletionTimestamp.Time // when the grace period ends
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		asked = asked.Add(-time.Duration(*grace) * time.Second)
	}
	return !last.FinishedAt.Time.Before(asked)
}

// ended returns how a container has ended since an earlier state; nil if it has not, or without an error.
func ended(was, now corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	last := now.State.Terminated
	if last == nil && now.RestartCount > was.RestartCount {
		last = now.LastTerminationState.Terminated
	}
	known := was.State.Terminated // the same end is first the state, and the last one after the restart
	if last == nil || last.ExitCode == 0 || known != nil && known.FinishedAt.Equal(&last.FinishedAt) {
		return nil
	}
	return last
}

// exit returns how a container ended, in words.
func exit(container string, last *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("container %s ended with exit code %d", container, last.ExitCode)
	if last.Reason != "" && last.Reason != "Error" {
		text += " (" + last.Reason + ")"
	}
	return text
}

// unhealthy returns the devices of a container that have become unhealthy.
func unhealthy(was, now corev1.ContainerStatus) []string {
	before := map[string]bool{}
	each(was, func(id string, _ corev1.ResourceName) { before[id] = true })
	var found []string
	each(now, func(id string, resource corev1.ResourceName) {
		if !before[id] {
			found = append(found, fmt.Sprintf("%s %s of container %s is Unhealthy", resource, id, now.Name))
		}
	})
	return found
}

func each(c corev1.ContainerStatus, unhealthy func(id string, resource corev1.ResourceName)) {
	for _, r := range c.AllocatedResourcesStatus {
		for _, d := range r.Resources {
			if d.Health == corev1.ResourceHealthStatusUnhealthy {
				unhealthy(string(d.ResourceID), r.Name)
			}
		}
	}
}

// evictor returns who told a pod to end, as far as its conditions say.
func evictor(pod *corev1.Pod) (by, text string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			if strings.HasPrefix(c.Reason, "DeletionByTaintManager") {
				by = "taint-eviction-controller"
			}
			return by, c.Reason
		}
	}
	return "", "deleted"
}

// replacement returns what happened to a pod that replaces one on another node.
func replacement(before, after *corev1.Pod, from string, at time.Time) []Reaction {
	moved := ""
	if after.Spec.NodeName != "" && after.Spec.NodeName != from {
		moved = "from " + from + " to " + after.Spec.NodeName
	}
	var found []Reaction
	add := func(name Name, by, text string) {
		r := about(after, name, by, text, at)
		r.Node = from // where it was missing
		found = append(found, r)
	}
	if before.Spec.NodeName == "" && moved != "" {
		add(Rescheduled, "kube-scheduler", moved)
	}
	if isReady(after) && !isReady(before) {
		text := "ready on " + after.Spec.NodeName
		add(Served, "", text)
	}
	return found
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// IsFinished reports whether all containers of a pod have ended for good.
func IsFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func isDaemon(pod *corev1.Pod) bool {
	c := metav1.GetControllerOf(pod)
	return c != nil && c.Kind == "DaemonSet"
}

const managedBy = "app.kubernetes.io/managed-by"

// CanBeEvicted reports whether draining a node removes a pod: it belongs to no DaemonSet, is not static, and is neither
// of the system nor ours.
func CanBeEvicted(pod *corev1.Pod) bool {
	return !isDaemon(pod) && pod.Annotations[corev1.MirrorPodAnnotationKey] == "" &&
		pod.Namespace != metav1.NamespaceSystem && pod.Labels[managedBy] != "kubectl-gpu-fault"
}
