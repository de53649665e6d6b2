package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
)

// TestSelects covers required affinity: the terms are alternatives, all requirements in a term must match, and an empty
// term matches nothing.
func TestSelects(t *testing.T) {
	t.Parallel()
	n := &facts.Node{
		Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"gpu": "t4", "memory": "16"}},
		},
	}
	is := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	for name, x := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		want  bool
	}{
		"in": {
			[]corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{is("gpu", "In", "t4", "l4")}},
			},
			true,
		},
		"both": {[]corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{is("gpu", "Exists"), is("memory", "Gt", "20")}},
		}, false},
		"either": {[]corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{is("gpu", "In", "h100")}},
			{MatchExpressions: []corev1.NodeSelectorRequirement{is("memory", "Gt", "8")}},
		}, true},
		"not in": {
			[]corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{is("zone", "NotIn", "x")}}},
			true,
		},
		"by name": {
			[]corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{is("metadata.name", "In", "b")}}},
			false,
		},
		"an empty term": {[]corev1.NodeSelectorTerm{{}}, false},
		"nonsense": {
			[]corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{is("gpu", "Near", "t4")}}},
			false,
		},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: x.terms},
		}}}}
		if got := Selects(pod, n); got != x.want {
			t.Errorf("%s: selects says %v, want %v", name, got, x.want)
		}
	}
}

// FuzzInsufficientInMessage verifies that any scheduler message can be parsed.
func FuzzInsufficientInMessage(f *testing.F) {
	f.Add("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
	f.Fuzz(func(_ *testing.T, text string) { insufficientInMessage(text) })
}

func TestReasonIn(t *testing.T) {
	for message, want := range map[string]string{
		"no nodes with enough resources were found: 1 node(s) had untolerated taint {node-role.kubernetes.io/master: }. \n" +
			"2 MIG job cannot be scheduled on non-MIG node.": "MIG job cannot be scheduled on non-MIG node",
		"0/2 nodes are unavailable: 2 node(s) pod number exceeded.": "node(s) pod number exceeded",
		"no nodes with enough resources were found.":                "",
		"Unable to schedule pod":                                    "",
		"pod group is not ready, 1 Pending, 1 minAvailable":         "",
	} {
		if got := reasonIn(message); got != want {
			t.Errorf("reasonIn(%q) = %q, want %q", message, got, want)
		}
	}
}
