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
	// Targets are the nodes whose pods matter; of all other nodes, only the node itself is watched.
	Targets []string
	// Workload reports whether a pod belongs to the workload that is observed. Such a pod matters on any node. It may
	// be nil. It may be called concurrently.
	Workload func(*corev1.Pod) bool

	nodes map[string]*corev1.Node
	pods  map[types.UID]*podState
	old   map[types.UID]bool // pods that existed at the start
	// victims are the pods on the targets at the start that can be evicted, by the UID of the pod; controllers have the
	// UIDs of their controllers, and the node that they were on.
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
	return t.pod(t.stateOf(pod), atStart, at)
}

// PodGone takes the news that a pod no longer exists.
func (t *Tracker) PodGone(pod *corev1.Pod, at time.Time) []Reaction {
	if last := t.pods[pod.UID]; last != nil {
		return t.podGone(last, at)
	}
	return t.podGone(t.stateOf(pod), at)
}

// stateOf returns what the tracker keeps of a pod. It is safe for concurrent use.
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
		// Its first readiness is that of the one that it replaces, but its failures are its own.
		own := slices.DeleteFunc(t.changes(before, pod, at), func(r Reaction) bool { return r.Name == Served })
		return append(replacement(before, pod, from, at), own...)
	}
	return t.changes(before, pod, at)
}

// changes returns what happened to a pod on a target, or to one of the workload on any node.
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
			found[i].Node = "" // where its pods run is not what is expected
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

// drain reports once that the last pod that can be evicted has left a node that takes no new ones.
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
