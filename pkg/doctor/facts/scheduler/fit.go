package scheduler

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// inUse returns the total requests of the unfinished pods on a node. The result is a lower bound if the snapshot does
// not contain all pods.
func inUse(n *facts.Node) map[corev1.ResourceName]int64 {
	sum := map[corev1.ResourceName]int64{}
	for _, pod := range n.Pods {
		if facts.Ended(pod) {
			continue
		}
		for name, count := range facts.Demand(pod) {
			sum[name] += count
		}
	}
	return sum
}

// Selects reports whether a pod's node selector and required node affinity match a node.
func Selects(pod *corev1.Pod, n *facts.Node) bool {
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

// MissingLabels returns the requirements of a node selector and a required node affinity that a node does not meet. If
// the affinity has several terms, it uses the term with the fewest unmet requirements.
func MissingLabels(spec corev1.PodSpec, n *facts.Node) []string {
	var missing []string
	for _, key := range words.SortedKeys(spec.NodeSelector) {
		if have, ok := n.Labels[key]; !ok || have != spec.NodeSelector[key] {
			missing = append(missing, key+"="+spec.NodeSelector[key])
		}
	}
	required := requiredAffinity(&corev1.Pod{Spec: spec})
	if required == nil {
		return missing
	}
	var least []string
	for _, t := range required.NodeSelectorTerms {
		if termMatches(t, n) {
			return missing
		}
		var of []string
		for _, e := range t.MatchExpressions {
			if !requirementMatches(e, n.Labels) {
				of = append(of, requirementText(e))
			}
		}
		if least == nil || len(of) < len(least) {
			least = of
		}
	}
	return append(missing, least...)
}

// requirementText formats a requirement as a label that a user can set.
func requirementText(e corev1.NodeSelectorRequirement) string {
	if e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 && e.Key != corev1.LabelInstanceTypeStable {
		return e.Key + "=" + e.Values[0]
	}
	return strings.TrimSpace(e.Key + " " + string(e.Operator) + " " + strings.Join(e.Values, ","))
}

// termMatches reports whether a node meets all requirements in a term. An empty term matches no node.
func termMatches(t corev1.NodeSelectorTerm, n *facts.Node) bool {
	if len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0 {
		return false
	}
	for _, e := range t.MatchExpressions {
		if !requirementMatches(e, n.Labels) {
			return false
		}
	}
	for _, e := range t.MatchFields { // the API supports a single field
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

// untolerated returns the first taint that the pod does not tolerate, or nil. A cordoned node counts as tainted,
// because the node controller adds the taint shortly afterwards.
func untolerated(pod *corev1.Pod, n *facts.Node) *corev1.Taint {
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

// tolerates reports whether a toleration tolerates a taint, like ToleratesTaint in the API. It does not support the
// alpha operators Lt and Gt.
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

// ofNodeState reports whether a taint represents the node's state rather than a reservation of the node.
func ofNodeState(t *corev1.Taint) bool {
	return strings.HasPrefix(t.Key, "node.kubernetes.io/") || facts.IsTemporary(t)
}

// SelectorText formats a pod's node selector and affinity.
func SelectorText(pod *corev1.Pod) string {
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
	return words.Clip(strings.Join(parts, ", "))
}
