package reaction

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Tracker recognizes reactions in the states of objects. It is not safe for concurrent use.
type Tracker struct {
	// Targets are the nodes whose pods matter; for all other nodes, only the node itself is watched.
	Targets []string
	// Workload reports whether a pod belongs to the observed workload. Such a pod matters on any node. Workload may be
	// nil. It may be called concurrently.
	Workload func(*corev1.Pod) bool

	nodes map[string]*corev1.Node
	pods  map[types.UID]*podState
	old   map[types.UID]bool // pods that existed at the start
	// victims are the pods that were on the targets at the start and can be evicted, by UID. controllers contains the
	// UIDs of their controllers, with the node that each pod was on.
	victims     map[types.UID]string
	controllers map[types.UID]string
	drained     map[string]bool
	events      map[types.UID]int32
	breaker     string

	memory memory
}

// NewTracker returns a tracker of reactions on the targets.
func NewTracker(targets []string) *Tracker {
	return &Tracker{
		Targets: targets, old: map[types.UID]bool{},
		nodes: map[string]*corev1.Node{}, pods: map[types.UID]*podState{}, victims: map[types.UID]string{},
		controllers: map[types.UID]string{}, drained: map[string]bool{}, events: map[types.UID]int32{},
	}
}

// Victims returns the number of pods that were on a node at the start and can be evicted.
func (t *Tracker) Victims(node string) int {
	n := 0
	for _, on := range t.victims {
		if on == node {
			n++
		}
	}
	return n
}

// Node processes the state of a node. The first state of each node is the baseline.
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

// NodeGone processes the deletion of a node.
func (t *Tracker) NodeGone(name string, at time.Time) []Reaction {
	if t.nodes[name] == nil {
		return nil
	}
	delete(t.nodes, name)
	return []Reaction{{Time: at, Name: NotReady, Node: name, Text: "the node was deleted"}}
}

// Pod processes the state of a pod. Pods that existed at the start are the baseline.
func (t *Tracker) Pod(pod *corev1.Pod, atStart bool, at time.Time) []Reaction {
	return t.pod(t.stateOf(pod), atStart, at)
}

// PodGone processes the deletion of a pod.
func (t *Tracker) PodGone(pod *corev1.Pod, at time.Time) []Reaction {
	if last := t.pods[pod.UID]; last != nil {
		return t.podGone(last, at)
	}
	return t.podGone(t.stateOf(pod), at)
}

// stateOf returns the data that the tracker keeps about a pod. It is safe for concurrent use.
func (t *Tracker) stateOf(pod *corev1.Pod) *podState {
	return t.memory.stateOf(pod, t.Workload != nil && t.Workload(pod))
}

func (t *Tracker) pod(pod *podState, atStart bool, at time.Time) []Reaction {
	before := t.pods[pod.uid]
	t.pods[pod.uid] = pod
	if before == nil {
		if atStart {
			t.old[pod.uid] = true
			t.baseline(pod)
			return nil
		}
		before = &podState{}
	}
	if from := t.replaces(pod); from != "" {
		// The first time a replacement becomes ready is attributed to the pod that it replaces, but a replacement's
		// failures are its own.
		own := slices.DeleteFunc(t.changes(before, pod, at), func(r Reaction) bool { return r.Name == Served })
		return append(replacement(before, pod, from, at), own...)
	}
	return t.changes(before, pod, at)
}

// changes returns the reactions for a pod on a target, or a pod of the workload on any node.
func (t *Tracker) changes(before, pod *podState, at time.Time) []Reaction {
	found := podChanges(before, pod, at)
	for i := range found {
		found[i].Restarted = found[i].Name == Served && t.old[pod.uid]
	}
	switch {
	case t.isTarget(pod.node):
		if pod.finished && !before.finished {
			found = append(found, t.drain(pod.node, at)...)
		}
		return found
	case pod.workload:
		for i := range found {
			found[i].Node = "" // expectations do not depend on the node that its pods run on
		}
		return found
	}
	return nil
}

func (t *Tracker) podGone(pod *podState, at time.Time) []Reaction {
	last := t.pods[pod.uid]
	delete(t.pods, pod.uid)
	if last == nil {
		last = pod
	}
	if !t.isTarget(last.node) {
		return nil
	}
	var found []Reaction
	if !last.daemon {
		found = append(found, about(last, PodGone, "", "", at))
	}
	return append(found, t.drain(last.node, at)...)
}

func (t *Tracker) isTarget(node string) bool { return node != "" && slices.Contains(t.Targets, node) }

func (t *Tracker) baseline(pod *podState) {
	if !t.isTarget(pod.node) || !pod.evictable || pod.finished {
		return
	}
	t.victims[pod.uid] = pod.node
	if pod.controller != "" {
		t.controllers[pod.controller] = pod.node
	}
}

// replaces returns the node of the pod that a new pod replaces, or "".
func (t *Tracker) replaces(pod *podState) string {
	if pod.controller == "" || t.old[pod.uid] {
		return ""
	}
	return t.controllers[pod.controller]
}

// drain reports once that the last pod that can be evicted has left a node that accepts no new pods.
func (t *Tracker) drain(name string, at time.Time) []Reaction {
	node := t.nodes[name]
	if node == nil || t.drained[name] || t.Victims(name) == 0 || !isClosed(node) {
		return nil
	}
	for _, pod := range t.pods {
		if pod.node == name && pod.evictable && !pod.finished {
			return nil
		}
	}
	t.drained[name] = true
	return []Reaction{{
		Time: at, Name: Drained, Node: name, Text: "none remaining of " + count.Of(t.Victims(name), "pod"),
	}}
}

// isClosed reports whether a node accepts only pods that tolerate its taints.
func isClosed(node *corev1.Node) bool {
	return node.Spec.Unschedulable || slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule
	})
}

// Event processes a core Event about a node. Events from detectors are reactions, unless they existed at the start.
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
	// The component in an Event may be a monitor whose system is unknown, but the field manager that wrote the Event
	// may belong to a known system.
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

// Breaker processes the state of NVSentinel's circuit breaker.
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
