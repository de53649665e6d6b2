package reaction

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Past returns the reactions on nodes since the given time, as far as the nodes and their Events still show them. Their
// times are the cluster's, with a precision of one second.
func Past(ctx context.Context, client kubernetes.Interface, names []string, since time.Time) ([]Reaction, error) {
	since = since.Truncate(time.Second)
	missing := map[string]bool{}
	for _, name := range names {
		missing[name] = true
	}
	var found []Reaction
	// Listing objects needs no permissions beyond those for watching them.
	nodes := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Nodes().List(ctx, o)
	})
	nodes.PageSize, nodes.PageBufferSize = pageSize, 1
	for _, selector := range selectors(names, "metadata.name=", "") {
		err := nodes.EachListItem(ctx, metav1.ListOptions{FieldSelector: selector}, func(object runtime.Object) error {
			if node := object.(*corev1.Node); missing[node.Name] {
				delete(missing, node.Name)
				found = append(found, pastOf(node, since)...)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the nodes: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		return nil, fmt.Errorf("node %s does not exist", name)
	}
	t := NewTracker(names)
	events := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Events(metav1.NamespaceAll).List(ctx, o)
	})
	events.PageSize, events.PageBufferSize = pageSize, 1
	for _, selector := range aboutNodes(names) {
		err := events.EachListItem(ctx, metav1.ListOptions{FieldSelector: selector}, func(object runtime.Object) error {
			event := object.(*corev1.Event)
			if at := lastTime(event); !at.Before(since) {
				found = append(found, t.Event(event, false, at)...)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list the Events about the nodes: %w", err)
		}
	}
	sorting.StableFunc(found, func(a, b Reaction) int { return a.Time.Compare(b.Time) })
	return found, nil
}

// pageSize is the number of objects in a page. Nodes are large.
const pageSize = 100

// aboutNodes returns the field selectors for Events about nodes.
func aboutNodes(names []string) []string {
	return selectors(names, "involvedObject.kind=Node,involvedObject.name=", "involvedObject.kind=Node")
}

// selectors returns a field selector for each node, or one for all nodes if there are many.
func selectors(names []string, each, all string) (found []string) {
	if len(names) > mostNodes {
		return []string{all}
	}
	for _, name := range names {
		found = append(found, each+name)
	}
	return found
}

// pastOf compares a node with its state before the given time. That state is the node without the conditions, labels
// and cordons that were set after that time.
func pastOf(node *corev1.Node, since time.Time) []Reaction {
	var found []Reaction
	play := func(at time.Time, undo func(*corev1.Node)) {
		if at.Before(since) {
			return
		}
		before := node.DeepCopy()
		before.ManagedFields = nil
		undo(before)
		found = append(found, nodeChanges(before, node, at)...)
	}
	for i, c := range node.Status.Conditions {
		play(c.LastTransitionTime.Time, func(n *corev1.Node) {
			n.Status.Conditions[i].Status = opposite(c.Status)
		})
	}
	if node.Spec.Unschedulable {
		play(written(node, "spec", "unschedulable"), func(n *corev1.Node) { n.Spec.Unschedulable = false })
	}
	if node.Labels[stateLabel] != "" {
		play(written(node, "metadata", "labels", stateLabel), func(n *corev1.Node) { delete(n.Labels, stateLabel) })
	}
	if node.Annotations[decisionOnNode] != "" {
		play(written(node, "metadata", "annotations", decisionOnNode),
			func(n *corev1.Node) { delete(n.Annotations, decisionOnNode) })
	}
	return found
}

func opposite(s corev1.ConditionStatus) corev1.ConditionStatus {
	if s == corev1.ConditionTrue {
		return corev1.ConditionFalse
	}
	return corev1.ConditionTrue
}

// written returns the last time at which the owner of a field wrote it.
func written(node *corev1.Node, path ...any) time.Time {
	by := writer(&corev1.Node{}, node, path...)
	var last time.Time
	for _, e := range node.ManagedFields {
		if e.Manager == by && e.Time != nil && e.Time.After(last) {
			last = e.Time.Time
		}
	}
	return last
}

func lastTime(e *corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	times := []time.Time{e.EventTime.Time, e.LastTimestamp.Time, e.CreationTimestamp.Time}
	return slices.MaxFunc(times, time.Time.Compare)
}
