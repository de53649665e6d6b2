package reaction

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Tracker recognizes reactions in the states of objects. It is not safe for concurrent use.
type Tracker struct {
	// Targets are the nodes whose pods matter; of all other nodes, only the node itself is watched.
	Targets []string
	// Workload reports whether a pod belongs to the workload that is observed. Such a pod matters on any node. It may
	// be nil.
	Workload func(*corev1.Pod) bool

	nodes map[string]*corev1.Node
	pods  map[types.UID]*corev1.Pod
	old   map[types.UID]bool // pods that existed at the start
	// victims are the pods on the targets at the start that can be evicted, by the UID of the pod; controllers have the
	// UIDs of their controllers, and the node that they were on.
	victims     map[types.UID]string
	controllers map[types.UID]string
	drained     map[string]bool
	events      map[types.UID]int32
	breaker     string
}

// NewTracker returns a tracker of reactions on the targets.
func NewTracker(targets []string) *Tracker {
	return &Tracker{
		Targets: targets, old: map[types.UID]bool{},
		nodes: map[string]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{}, victims: map[types.UID]string{},
		controllers: map[types.UID]string{}, drained: map[string]bool{}, events: map[types.UID]int32{},
	}
}

// Victims returns how many pods that can be evicted were on a node at the start.
func (t *Tracker) Victims(node string) int {
	n := 0
	for _, on := range t.victims {
		if on == node {
			n++
		}
	}
	return n
}

// Node takes the state of a node. The first state of each is the baseline.
func (t *Tracker) Node(node *corev1.Node, at time.Time) []Reaction {
	before := t.nodes[node.Name]
	t.nodes[node.Name] = node
	if before == nil {
		return nil
	}
	if before.UID != node.UID {
		before = &corev1.Node{}
	}
	found := nodeChanges(before, node, at)
	for _, r := range found {
		if r.Name == Drained {
			if t.drained[node.Name] {
				found = slices.DeleteFunc(found, func(r Reaction) bool { return r.Name == Drained })
			}
			t.drained[node.Name] = true
			break
		}
	}
	return append(found, t.drain(node.Name, at)...)
}

// NodeGone takes the news that a node no longer exists.
func (t *Tracker) NodeGone(name string, at time.Time) []Reaction {
	if t.nodes[name] == nil {
		return nil
	}
	delete(t.nodes, name)
	return []Reaction{{Time: at, Name: NotReady, Node: name, Text: "the node was deleted"}}
}

// Pod takes the state of a pod. Pods that existed at the start are the baseline.
func (t *Tracker) Pod(pod *corev1.Pod, atStart bool, at time.Time) []Reaction {
	before := t.pods[pod.UID]
	t.pods[pod.UID] = pod
	if before == nil {
		if atStart {
			t.old[pod.UID] = true
			t.baseline(pod)
			return nil
		}
		before = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}}
	}
	if from := t.replaces(pod); from != "" {
		// Its first readiness is that of the one that it replaces, but its failures are its own.
		own := slices.DeleteFunc(t.changes(before, pod, at), func(r Reaction) bool { return r.Name == Served })
		return append(replacement(before, pod, from, at), own...)
	}
	return t.changes(before, pod, at)
}

// changes returns what happened to a pod on a target, or to one of the workload on any node.
func (t *Tracker) changes(before, pod *corev1.Pod, at time.Time) []Reaction {
	found := podChanges(before, pod, at)
	switch {
	case t.isTarget(pod.Spec.NodeName):
		if IsFinished(pod) && !IsFinished(before) {
			found = append(found, t.drain(pod.Spec.NodeName, at)...)
		}
		return found
	case t.Workload != nil && t.Workload(pod):
		for i := range found {
			found[i].Node = "" // where its pods run is not what is expected
		}
		return found
	}
	return nil
}

// PodGone takes the news that a pod no longer exists.
func (t *Tracker) PodGone(pod *corev1.Pod, at time.Time) []Reaction {
	last := t.pods[pod.UID]
	delete(t.pods, pod.UID)
	if last == nil {
		last = pod
	}
	if !t.isTarget(last.Spec.NodeName) {
		return nil
	}
	var found []Reaction
	if !isDaemon(last) {
		found = append(found, about(last, PodGone, "", "", at))
	}
	return append(found, t.drain(last.Spec.NodeName, at)...)
}

func (t *Tracker) isTarget(node string) bool { return node != "" && slices.Contains(t.Targets, node) }

func (t *Tracker) baseline(pod *corev1.Pod) {
	if !t.isTarget(pod.Spec.NodeName) || !CanBeEvicted(pod) || IsFinished(pod) {
		return
	}
	t.victims[pod.UID] = pod.Spec.NodeName
	if c := metav1.GetControllerOf(pod); c != nil {
		t.controllers[c.UID] = pod.Spec.NodeName
	}
}

// replaces returns the node of the pod that a new pod replaces, or "".
func (t *Tracker) replaces(pod *corev1.Pod) string {
	c := metav1.GetControllerOf(pod)
	if c == nil || t.old[pod.UID] {
		return ""
	}
	return t.controllers[c.UID]
}

// drain reports once that the last pod that can be evicted has left a node that takes no new ones.
func (t *Tracker) drain(name string, at time.Time) []Reaction {
	node := t.nodes[name]
	if node == nil || t.drained[name] || t.Victims(name) == 0 || !isClosed(node) {
		return nil
	}
	for _, pod := range t.pods {
		if pod.Spec.NodeName == name && CanBeEvicted(pod) && !IsFinished(pod) {
			return nil
		}
	}
	t.drained[name] = true
	return []Reaction{{
		Time: at, Name: Drained, Node: name, Text: "none is left of " + count.Of(t.Victims(name), "pod"),
	}}
}

// isClosed reports whether a node accepts no pods that do not tolerate it.
func isClosed(node *corev1.Node) bool {
	return node.Spec.Unschedulable || slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule
	})
}

// Event takes a core Event about a node. Those of detectors are reactions, unless they existed at the start.
func (t *Tracker) Event(e *corev1.Event, atStart bool, at time.Time) []Reaction {
	times := max(e.Count, 1)
	if e.Series != nil {
		times = max(e.Series.Count, 1)
	}
	seen := t.events[e.UID]
	t.events[e.UID] = max(times, seen)
	if atStart || times <= seen {
		return nil
	}
	by := cmp.Or(e.ReportingController, e.Source.Component)
	if e.InvolvedObject.Kind != "Node" || e.Type == corev1.EventTypeNormal || slices.Contains([]string{
		Ours, "Kubernetes", Person,
	}, Who(by)) {
		return nil
	}
	// The component of an Event may be that of a monitor; the writer of the object belongs to a system.
	who := Who(by)
	for _, entry := range e.ManagedFields {
		who = cmp.Or(who, Who(entry.Manager))
	}
	if who == Ours {
		return nil
	}
	return []Reaction{{
		Time: at, Name: Detected, Node: e.InvolvedObject.Name, By: by, Who: who,
		Text: fmt.Sprintf("Event %s: %s", e.Reason, e.Message),
	}}
}

// Breaker takes the state of NVSentinel's circuit breaker.
func (t *Tracker) Breaker(status string, at time.Time) []Reaction {
	was := t.breaker
	t.breaker = status
	if was == "" || was == status || status != "TRIPPED" {
		return nil
	}
	return []Reaction{{
		Time: at, Name: BreakerTripped, Who: "NVSentinel", By: "fault-quarantine", Text: "status " + status,
	}}
}
