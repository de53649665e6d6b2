package reaction

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Past returns the reactions on a node since a time, as far as the node and its Events still show them. Their times are
// the cluster's, with the precision of a second.
func Past(ctx context.Context, client kubernetes.Interface, name string, since time.Time) ([]Reaction, error) {
	// A list needs no right that watching does not need.
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", name, err)
	}
	if len(nodes.Items) == 0 {
		return nil, fmt.Errorf("node %s does not exist", name)
	}
	node := &nodes.Items[0]
	events, err := client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + name,
	})
	if err != nil {
		return nil, fmt.Errorf("list the Events of node %s: %w", name, err)
	}
	since = since.Truncate(time.Second)
	found := pastOf(node, since)
	t := NewTracker([]string{name})
	for i := range events.Items {
		if at := lastTime(&events.Items[i]); !at.Before(since) {
			found = append(found, t.Event(&events.Items[i], false, at)...)
		}
	}
	slices.SortStableFunc(found, func(a, b Reaction) int { return a.Time.Compare(b.Time) })
	return found, nil
}

// pastOf compares a node with what it was before a time: without the conditions, the label and the cordon that are
// younger.
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

// written returns when the owner of a field has last written.
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
