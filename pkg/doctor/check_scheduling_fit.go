package doctor

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// This file computes as the scheduler's filters do: NodeUnschedulable, TaintToleration, NodeAffinity and
// NodeResourcesFit.

// demand returns what a pod asks the scheduler for, of every resource: containers, init containers, sidecars and
// overhead.
func demand(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	all := requests(pod, func(corev1.ResourceName) bool { return true })
	if r := pod.Spec.Resources; r != nil { // of the pod as a whole: they count instead of the containers'
		for name, n := range asked(*r) {
			all[name] = n
		}
	}
	for name, q := range pod.Spec.Overhead {
		all[name] += amount(name, q)
	}
	return all
}

// inUse returns what the pods on a node that have not ended ask for together. It is a lower bound where the snapshot
// does not keep all pods.
func inUse(n *Node) map[corev1.ResourceName]int64 {
	sum := map[corev1.ResourceName]int64{}
	for _, pod := range n.Pods {
		if Ended(pod) {
			continue
		}
		for name, count := range demand(pod) {
			sum[name] += count
		}
	}
	return sum
}

// allocatable returns how much of a resource a node gives to pods.
func (n *Node) allocatable(name corev1.ResourceName) int64 {
	q := n.Status.Allocatable[name]
	return amount(name, q)
}

func (n *Node) capacity(name corev1.ResourceName) int64 {
	q := n.Status.Capacity[name]
	return amount(name, q)
}

// selects reports whether a pod's node selector and required node affinity let it onto a node.
func selects(pod *corev1.Pod, n *Node) bool {
	for key, value := range pod.Spec.NodeSelector {
		if have, ok := n.Labels[key]; !ok || have != value {
			return false
		}
	}
	required := requiredAffinity(pod)
	if required == nil {
		return true
	}
	return slices.ContainsFunc(required.NodeSelectorTerms,
		func(t corev1.NodeSelectorTerm) bool { return termMatches(t, n) })
}

func requiredAffinity(pod *corev1.Pod) *corev1.NodeSelector {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// termMatches reports whether a node meets all of a term's requirements. A term without any matches nothing.
func termMatches(t corev1.NodeSelectorTerm, n *Node) bool {
	if len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0 {
		return false
	}
	for _, e := range t.MatchExpressions {
		if !requirementMatches(e, n.Labels) {
			return false
		}
	}
	for _, e := range t.MatchFields { // the API knows one field only
		if e.Key != "metadata.name" || !requirementMatches(e, map[string]string{"metadata.name": n.Name}) {
			return false
		}
	}
	return true
}

func requirementMatches(e corev1.NodeSelectorRequirement, have map[string]string) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists:       selection.Exists,
		corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpGt: selection.GreaterThan,
		corev1.NodeSelectorOpLt: selection.LessThan,
	}
	r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
	return err == nil && r.Matches(labels.Set(have))
}

// untolerated returns the first taint that keeps a pod off a node, or nil. A cordon counts as its taint, which the node
// controller sets a moment later.
func untolerated(pod *corev1.Pod, n *Node) *corev1.Taint {
	taints := n.Spec.Taints
	cordon := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if n.Spec.Unschedulable && !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == cordon.Key }) {
		taints = append(slices.Clip(taints), cordon)
	}
	for i := range taints {
		t := &taints[i]
		hard := t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
		if hard &&
			!slices.ContainsFunc(pod.Spec.Tolerations, func(by corev1.Toleration) bool { return tolerates(by, *t) }) {
			return t
		}
	}
	return nil
}

// tolerates is as in the API's ToleratesTaint, without the operators Lt and Gt, which are alpha.
func tolerates(by corev1.Toleration, t corev1.Taint) bool {
	if by.Effect != "" && by.Effect != t.Effect || by.Key != "" && by.Key != t.Key {
		return false
	}
	switch by.Operator {
	case "", corev1.TolerationOpEqual:
		return by.Value == t.Value
	case corev1.TolerationOpExists:
		return true
	}
	return false
}

// ofNodeState reports whether a taint says what state a node is in, and not whom it is for.
func ofNodeState(t *corev1.Taint) bool {
	return strings.HasPrefix(t.Key, "node.kubernetes.io/") ||
		strings.HasPrefix(t.Key, "node.cloudprovider.kubernetes.io/")
}

// taintText prints a taint as kubectl taint takes it.
func taintText(t *corev1.Taint) string {
	if t.Value == "" {
		return fmt.Sprintf("%s:%s", t.Key, t.Effect)
	}
	return fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect)
}

// selectorText prints what a pod demands of its node.
func selectorText(pod *corev1.Pod) string {
	var parts []string
	for key, value := range pod.Spec.NodeSelector {
		parts = append(parts, key+"="+value)
	}
	slices.Sort(parts)
	if required := requiredAffinity(pod); required != nil {
		var terms []string
		for _, t := range required.NodeSelectorTerms {
			var and []string
			for _, e := range slices.Concat(t.MatchExpressions, t.MatchFields) {
				and = append(and,
					strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, ","))))
			}
			terms = append(terms, strings.Join(and, " and "))
		}
		parts = append(parts, strings.Join(terms, " or "))
	}
	return cut(strings.Join(parts, ", "))
}

// cut keeps a quotation short: lines over 2 KB end in an ellipsis.
func cut(text string) string {
	const longest = 2 << 10
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}
