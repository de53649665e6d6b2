//go:build e2e && scenario

package objects_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
)

func (l *lab) nodePatch(c *client, node string, patch func(*objects.Patching)) *objects.Patching {
	p := &objects.Patching{
		Dynamic: c.dynamic, Mapper: c.mapper, APIVersion: "v1", Kind: "Node", Name: node, LedgerNamespace: l.ledger(),
	}
	patch(p)
	return p
}

func (l *lab) somebody(node, body string) {
	l.Helper()
	_, err := l.typed.CoreV1().Nodes().Patch(l.Context(), node, types.StrategicMergePatchType, []byte(body),
		metav1.PatchOptions{FieldManager: "somebody"})
	if err != nil {
		l.Fatal(err)
	}
}

func (l *lab) node(name string) *corev1.Node {
	l.Helper()
	node, err := l.typed.CoreV1().Nodes().Get(l.Context(), name, metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return node
}

func (l *lab) untaint(name, key string) {
	l.Helper()
	node := l.node(name)
	i := slices.IndexFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
	patch := fmt.Sprintf(
		`[{"op":"test","path":"/spec/taints/%d/key","value":%q},{"op":"remove","path":"/spec/taints/%d"}]`, i, key, i,
	)
	if _, err := l.typed.CoreV1().Nodes().Patch(
		l.Context(), name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{},
	); err != nil {
		l.Error(err)
	}
}

func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// What is patched of a node is put back, beside what somebody else has changed there meanwhile; and what somebody has
// changed of ours is left.
func TestANodeIsPutBackBesideTheChangesOfOthers(t *testing.T) {
	l := newLab(t)
	name := l.worker().Name
	ours, theirs, lost := "example.com/ours-"+l.word, "example.com/theirs-"+l.word, "example.com/lost-"+l.word
	l.somebody(name, fmt.Sprintf(`{"metadata":{"labels":{%q:"before"}}}`, lost))
	t.Cleanup(func() {
		l.Logf("tidying node %s", name)
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:null,%q:null,%q:null}}}`, ours, theirs, lost)
		_, _ = l.typed.CoreV1().Nodes().Patch(context.Background(), name, types.StrategicMergePatchType, []byte(patch),
			metav1.PatchOptions{})
	})
	merge := l.nodePatch(l.client, name, func(p *objects.Patching) {
		p.Merge = map[string]any{"metadata": map[string]any{"labels": map[string]any{ours: "x", lost: nil}}}
	})
	taint := l.nodePatch(l.client, name, func(p *objects.Patching) {
		// A JSON patch as scenarios have it: the list may be there or not, so that it is replaced as a whole.
		p.JSON = []any{map[string]any{"op": "add", "path": "/spec/taints", "value": []any{
			map[string]any{"key": ours, "value": "x", "effect": "PreferNoSchedule"}}}}
	})
	if err := merge.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	plan := l.plan(l.client, merge.Change("label"), taint.Change("taint"))
	plan.Allow.LastGPUNode, plan.Allow.Majority = true, true
	run, err := l.session.Run(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	now := l.node(name)
	if _, is := now.Labels[lost]; is || now.Labels[ours] != "x" || !hasTaint(now, ours) {
		t.Fatalf("%v %v", now.Labels, now.Spec.Taints)
	}
	t.Logf("%s", run.Steps[0].Undo.Data)
	t.Logf("%s", run.Steps[1].Undo.Data)
	l.somebody(name, fmt.Sprintf(
		`{"metadata":{"labels":{%q:"y"}},"spec":{"taints":[{"key":%q,"effect":"PreferNoSchedule"}]}}`, theirs, theirs,
	))

	run, err = l.session.Revert(t.Context(), run.ID, false)
	if err != nil {
		t.Fatal(err)
	}
	now = l.node(name)
	if _, is := now.Labels[ours]; is || now.Labels[lost] != "before" || now.Labels[theirs] != "y" ||
		hasTaint(now, ours) || !hasTaint(now, theirs) {
		t.Errorf("labels %v, taints %v", now.Labels, now.Spec.Taints)
	}
	for _, step := range run.Steps {
		if step.State != ledger.StateReverted {
			t.Errorf("%s: %s", step.State, step.Message)
		}
	}
	if left := l.seals(run); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	l.untaint(name, theirs)

	// And somebody changes what is ours.
	plan = l.plan(l.client, merge.Change("label"))
	plan.Allow.LastGPUNode, plan.Allow.Majority = true, true
	if run, err = l.session.Run(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	l.somebody(name, fmt.Sprintf(`{"metadata":{"labels":{%q:"changed"}}}`, ours))
	if run, err = l.session.Revert(t.Context(), run.ID, false); err != nil {
		t.Fatal(err)
	}
	now = l.node(name)
	if step := run.Steps[0]; step.State != ledger.StateSuperseded || !strings.Contains(step.Message, ours) ||
		now.Labels[ours] != "changed" ||
		now.Labels[lost] != "before" {
		t.Errorf("%s: %s; %v", step.State, step.Message, now.Labels)
	}
}

// A record that only the ledger knows is not followed: without its seal no value of it is written.
func TestAForgedPatchIsNotFollowed(t *testing.T) {
	l := newLab(t)
	name := l.worker().Name
	label := "example.com/forged-" + l.word
	merge := l.nodePatch(l.client, name, func(p *objects.Patching) {
		p.Merge = map[string]any{"metadata": map[string]any{"labels": map[string]any{label: "x"}}}
	})
	plan := l.plan(l.client, merge.Change("label"))
	plan.Allow.LastGPUNode, plan.Allow.Majority = true, true
	run, err := l.session.Run(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	honest := run.Steps[0].Undo.Data
	forge := func(data string) error {
		if _, err := l.session.Ledger.Update(
			t.Context(), run.ID, func(r *ledger.Run) error { r.Steps[0].Undo.Data = []byte(data); return nil },
		); err != nil {
			t.Fatal(err)
		}
		_, err := l.session.Revert(t.Context(), run.ID, false)
		return err
	}
	err = forge(strings.Replace(string(honest), `"ours":"x"`, `"was":"evil","ours":"x"`, 1))
	if err == nil || !strings.Contains(err.Error(), "rejected") || l.node(name).Labels[label] != "x" {
		t.Errorf("%v, %v", err, l.node(name).Labels)
	}
	if err := forge(string(honest)); err != nil {
		t.Error(err)
	}
	if _, is := l.node(name).Labels[label]; is {
		t.Error("the true record was not followed")
	}
}
