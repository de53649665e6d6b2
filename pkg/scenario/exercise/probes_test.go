package exercise

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Pods of checks are never the candidate's doing, and none that a dead client left outlives the exercise.
func TestProbes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	body := map[string]any{"metadata": map[string]any{"labels": map[string]any{objects.LabelInstance: e.Probe}}}
	for ref, want := range map[scenario.Ref]bool{
		{APIVersion: "v1", Kind: "Pod", Name: "x"}:             true,
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "x"}: false, // a candidate's with our label
	} {
		if got := e.probes(ref, body); got != want {
			t.Errorf("%v: %t", ref, got)
		}
	}
	if e.Probe == "" || e.probes(scenario.Ref{APIVersion: "v1", Kind: "Pod"}, nil) ||
		(Exercise{}).probes(scenario.Ref{APIVersion: "v1", Kind: "Pod"}, body) {
		t.Error("what has no mark is a probe")
	}
	for name, labels := range map[string]map[string]string{"left": probeLabels(e.Probe), "theirs": {"app": "page"}} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := trainer.Client.CoreV1().Pods("harbour").Create(
			t.Context(), pod, metav1.CreateOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := trainer.End(t.Context(), e.ID, EndOptions{Restore: true}); err != nil {
		t.Fatal(err)
	}
	pods, err := trainer.Client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	if err != nil || !slices.Equal(names, []string{"theirs"}) {
		t.Errorf("%q, %v", names, err)
	}
}

// What others may have changed as well is not put back without asking; what the exercise or its scenario names is.
func TestSurely(t *testing.T) {
	t.Parallel()
	r := newWorld(t).play()
	e := &Exercise{Namespaces: []string{"harbour", "shared"}, Nodes: []string{"a"}}
	stood := func(namespace string) bool { return namespace != "harbour" }
	r.Sealed.Grade.Collateral.Allow = append(r.Sealed.Grade.Collateral.Allow,
		scenario.Allowed{Kind: "RuntimeClass", Name: "nvidia", Created: true}, scenario.Allowed{Kind: "PriorityClass"})
	for ref, want := range map[scenario.Ref]bool{
		{APIVersion: "v1", Kind: "Pod", Namespace: "harbour", Name: "x"}: true,
		{APIVersion: "v1", Kind: "Pod", Namespace: "other", Name: "x"}:   false,
		// It was there before, for others too
		{APIVersion: "v1", Kind: "Pod", Namespace: "shared", Name: "x"}: false,
		{APIVersion: "v1", Kind: "Namespace", Name: "harbour"}:          false,
		// A wrong fix makes it
		{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding", Name: "everything"}: true,
		{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding", Name: "somebody's"}: false,
		{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass", Name: "nvidia"}:                         true,
		{APIVersion: "scheduling.k8s.io/v1", Kind: "PriorityClass", Name: "x"}:                       false,
		nodeRef("a"): true,
		nodeRef("b"): false,
	} {
		if got := surely(e, r, writersOf(r.Public.Access, nil), stood, ref); got != want {
			t.Errorf("%v: %t", ref, got)
		}
	}
}
