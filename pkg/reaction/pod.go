package reaction

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podState is the data that a tracker needs about a pod. The pods of a large cluster stay in memory: a corev1.Pod would
// take ten times as much.
type podState struct {
	namespace, name, node string
	uid                   types.UID
	version               string    // resourceVersion, by which an informer recognizes a change
	controller            types.UID // empty without a controller

	daemon    bool // the pod belongs to a DaemonSet
	evictable bool // see CanBeEvicted
	finished  bool // see IsFinished
	ready     bool
	workload  bool // the pod belongs to the observed workload
	disrupted bool // the pod's condition DisruptionTarget is True

	disruption string // the reason of the condition DisruptionTarget
	deletion   *deletion
	containers []container // those that have terminated, were restarted or have an unhealthy device
}

// GetObjectMeta returns the part of the metadata that an informer reads.
func (p *podState) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, UID: p.uid, ResourceVersion: p.version}
}

// deletion is the deletion of a pod.
type deletion struct {
	asked time.Time // when the grace period begins
}

// container is the data that a tracker needs from the status of a container.
type container struct {
	name      string
	restarts  int32
	ended     *end // the termination; nil if the container is running
	last      *end // the termination before the last restart
	unhealthy []device
}

type end struct {
	code   int32
	reason string
	at     time.Time
}

type device struct{ resource, id string }

// stateOf returns the state of a pod.
func (m *memory) stateOf(pod *corev1.Pod, isWorkload bool) *podState {
	p := &podState{
		namespace: m.text(pod.Namespace), name: pod.Name, node: m.text(pod.Spec.NodeName), uid: pod.UID,
		version: pod.ResourceVersion, evictable: CanBeEvicted(pod), finished: IsFinished(pod), workload: isWorkload,
		daemon: isDaemon(pod),
	}
	if c := metav1.GetControllerOf(pod); c != nil {
		p.controller = types.UID(m.text(string(c.UID)))
	}
	if pod.DeletionTimestamp != nil {
		// The timestamp is the end of the grace period.
		p.deletion = &deletion{asked: pod.DeletionTimestamp.Time}
		if grace := pod.DeletionGracePeriodSeconds; grace != nil {
			p.deletion.asked = p.deletion.asked.Add(-time.Duration(*grace) * time.Second)
		}
	}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PodReady:
			p.ready = true
		case c.Type == corev1.DisruptionTarget && !p.disrupted:
			p.disrupted, p.disruption = true, m.text(c.Reason)
		}
	}
	s := &pod.Status
	for _, statuses := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range statuses {
			if c := m.containerOf(&statuses[i]); c.ended != nil || c.restarts > 0 || len(c.unhealthy) > 0 {
				p.containers = append(p.containers, c)
			}
		}
	}
	return p
}

func (m *memory) containerOf(status *corev1.ContainerStatus) container {
	c := container{
		name: m.text(status.Name), restarts: status.RestartCount,
		ended: m.endOf(status.State.Terminated), last: m.endOf(status.LastTerminationState.Terminated),
	}
	for _, r := range status.AllocatedResourcesStatus {
		for _, d := range r.Resources {
			if d.Health == corev1.ResourceHealthStatusUnhealthy {
				c.unhealthy = append(c.unhealthy, device{resource: string(r.Name), id: string(d.ResourceID)})
			}
		}
	}
	return c
}

func (m *memory) endOf(state *corev1.ContainerStateTerminated) *end {
	if state == nil {
		return nil
	}
	return &end{code: state.ExitCode, reason: m.text(state.Reason), at: state.FinishedAt.Time}
}

func about(pod *podState, name Name, by, text string, at time.Time) Reaction {
	return Reaction{
		Time: at, Name: name, Node: pod.node, Pod: pod.namespace + "/" + pod.name, UID: pod.uid,
		By: by, Who: Who(by), Text: text,
	}
}

// podChanges returns the reactions between two states of a pod on a target.
func podChanges(before, after *podState, at time.Time) []Reaction {
	var found []Reaction
	for _, now := range after.containers {
		was := before.container(now.name)
		if last := failedSince(was, now); last != nil && !isToldToEnd(after, last) {
			found = append(found, about(after, PodFailed, "", exit(now.name, last), at))
		}
		for _, text := range unhealthy(was, now) {
			found = append(found, about(after, DeviceUnhealthy, "kubelet", text, at))
		}
	}
	if after.ready && !before.ready && !after.daemon {
		found = append(found, about(after, Served, "", "ready again on "+after.node, at))
	}
	if before.deletion == nil && after.deletion != nil && !after.daemon {
		by, text := evictor(after)
		found = append(found, about(after, Evicted, by, text, at))
	}
	return found
}

// container returns the container with the given name. If the state does not contain it, the result is a container that
// has not terminated and has no unhealthy device.
func (p *podState) container(name string) container {
	for _, c := range p.containers {
		if c.name == name {
			return c
		}
	}
	return container{}
}

// isToldToEnd reports whether a container terminated because its pod was being deleted: by SIGTERM, or by SIGKILL after
// the grace period. With any other exit code, the program has failed, even if its pod is being deleted, for example by
// a drain after the fault.
func isToldToEnd(pod *podState, last *end) bool {
	const terminated, killed = 128 + 15, 128 + 9
	if pod.deletion == nil || last.code != terminated && last.code != killed {
		return false
	}
	return !last.at.Before(pod.deletion.asked)
}

// failedSince returns how a container failed since the earlier state, or nil if it has not terminated since then or has
// terminated successfully.
func failedSince(was, now container) *end {
	last := now.ended
	if last == nil && now.restarts > was.restarts {
		last = now.last
	}
	known := was.ended // the same termination is first in the state, and after the restart in the last state
	if last == nil || last.code == 0 || known != nil && known.at.Equal(last.at) {
		return nil
	}
	return last
}

// exit describes the termination of a container.
func exit(container string, last *end) string {
	text := fmt.Sprintf("container %s exited with code %d", container, last.code)
	if last.reason != "" && last.reason != "Error" {
		text += " (" + last.reason + ")"
	}
	return text
}

// unhealthy returns the devices of a container that have become unhealthy.
func unhealthy(was, now container) []string {
	var found []string
	for _, d := range now.unhealthy {
		if !slices.ContainsFunc(was.unhealthy, func(o device) bool { return o.id == d.id }) {
			found = append(found, fmt.Sprintf("%s %s in container %s is Unhealthy", d.resource, d.id, now.name))
		}
	}
	return found
}

// evictor returns who told a pod to terminate, as far as its conditions show.
func evictor(pod *podState) (by, text string) {
	if !pod.disrupted {
		return "", "deleted"
	}
	if strings.HasPrefix(pod.disruption, "DeletionByTaintManager") {
		by = "taint-eviction-controller"
	}
	return by, pod.disruption
}

// replacement returns the reactions for a pod that replaces one on another node.
func replacement(before, after *podState, from string, at time.Time) []Reaction {
	moved := ""
	if after.node != "" && after.node != from {
		moved = "from " + from + " to " + after.node
	}
	var found []Reaction
	add := func(name Name, by, text string) {
		r := about(after, name, by, text, at)
		r.Node = from // the node of the replaced pod
		found = append(found, r)
	}
	if before.node == "" && moved != "" {
		add(Rescheduled, "kube-scheduler", moved)
	}
	if after.ready && !before.ready {
		text := "ready on " + after.node
		add(Served, "", text)
	}
	return found
}

// IsFinished reports whether all containers in a pod have terminated and will not be restarted.
func IsFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func isDaemon(pod *corev1.Pod) bool {
	c := metav1.GetControllerOf(pod)
	return c != nil && c.Kind == "DaemonSet"
}

const managedBy = "app.kubernetes.io/managed-by"

// CanBeEvicted reports whether draining a node removes a pod: the pod does not belong to a DaemonSet, is not static,
// and is neither a system pod nor ours.
func CanBeEvicted(pod *corev1.Pod) bool {
	return !isDaemon(pod) && pod.Annotations[corev1.MirrorPodAnnotationKey] == "" &&
		pod.Namespace != metav1.NamespaceSystem && pod.Labels[managedBy] != "kubectl-gpu-fault"
}
