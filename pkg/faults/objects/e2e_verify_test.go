//go:build e2e && scenario

package objects_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
)

// undoer is the session's.
func (l *lab) undoer(change func(*objects.Undoer)) {
	u := objects.Undoer{Dynamic: l.dynamic, LedgerNamespace: l.ledger(), Wait: 4 * time.Minute}
	change(&u)
	l.session.Undoers[objects.UndoKind] = u
}

// run makes a run of creations, and fails the test if it cannot.
func (l *lab) run(creation *objects.Creation) *ledger.Run {
	l.Helper()
	run, err := l.session.Run(l.Context(), l.plan(l.client, creation.Change("create")))
	if err != nil {
		l.Fatal(err)
	}
	return run
}

// What a candidate does to an object in the cluster at large: takes its label off (kubectl replace), makes it anew from
// its own YAML (kubectl replace --force), or makes another under its name, since a roleRef cannot be changed. The first
// two are deleted as ours; the third only when whoever ends the exercise says so.
func TestWhatACandidateMadeOfOurObjects(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	role := func(suffix string) string { return l.team() + suffix }
	rules := map[string]any{"rules": []any{}}
	const group = "rbac.authorization.k8s.io/v1"
	run := l.run(l.creation(l.client, object(group, "ClusterRole", "", role("-bare"), rules),
		object(group, "ClusterRole", "", role("-again"), rules),
		object(group, "ClusterRole", "", role("-other"), rules)))
	roles := l.typed.RbacV1().ClusterRoles()
	bare, err := roles.Get(t.Context(), role("-bare"), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bare.Labels = nil
	if _, err := roles.Update(t.Context(), bare, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"-again", "-other"} {
		old, err := roles.Get(t.Context(), role(suffix), metav1.GetOptions{})
		if err == nil {
			err = roles.Delete(t.Context(), old.Name, metav1.DeleteOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		anew := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: old.Name}}
		if suffix == "-again" {
			anew.Labels = old.Labels
		}
		if _, err := roles.Create(t.Context(), anew, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = roles.Delete(context.Background(), role("-other"), metav1.DeleteOptions{}) })

	l.undoer(func(u *objects.Undoer) { u.Successors = true })
	reverted, err := l.session.Revert(t.Context(), run.ID, false)
	if err != nil || reverted.Steps[0].State != ledger.StateReverted {
		t.Fatalf("%v, %+v", err, reverted)
	}
	for _, suffix := range []string{"-bare", "-again", "-other"} {
		if _, err := roles.Get(t.Context(), role(suffix), metav1.GetOptions{}); err == nil {
			t.Errorf("%s is left", role(suffix))
		}
	}
	if left := l.seals(run); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Without being told to, an undo leaves what somebody made under a name of ours, and says so.
func TestASuccessorIsLeftByAPlainRevert(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	run := l.run(l.creation(l.client, object("v1", "ConfigMap", "default", l.team(), nil)))
	maps := l.typed.CoreV1().ConfigMaps("default")
	if err := maps.Delete(t.Context(), l.team(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(
		t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: l.team()}}, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	run, err := l.session.Revert(t.Context(), run.ID, false)
	if err != nil || run.Steps[0].State != ledger.StateSuperseded ||
		!strings.Contains(run.Steps[0].Message, "another client has recreated it") || !run.IsClosed() {
		t.Errorf("%v %+v", err, run)
	}
	if err := maps.Delete(t.Context(), l.team(), metav1.DeleteOptions{}); err != nil {
		t.Errorf("it was not left: %v", err)
	}
}

// Who writes a record by hand gets nobody's object deleted by it: neither by its name and UID, nor by the label that it
// has, nor in a run that is true otherwise.
func TestAForgedListDeletesNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	maps := l.typed.CoreV1().ConfigMaps("default")
	victim, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "victim-" + l.word,
		Labels: map[string]string{objects.LabelInstance: "my-release"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = maps.Delete(context.Background(), victim.Name, metav1.DeleteOptions{}) })
	run := l.run(l.creation(l.client, object("v1", "ConfigMap", "default", l.team(), nil)))
	honest := run.Steps[0].Undo.Data
	forge := func(change func(*objects.Data)) *ledger.Run {
		var d objects.Data
		if err := json.Unmarshal(honest, &d); err != nil {
			t.Fatal(err)
		}
		change(&d)
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		forged, err := l.session.Ledger.Create(t.Context(), ledger.Run{
			Fault: "scenario", Summary: "forged", Phase: ledger.Proven, Created: time.Now(), Deadline: time.Now(),
			Steps: []ledger.Step{{
				ID: "1", Target: run.Steps[0].Target, State: ledger.StateProven,
				Undo: ledger.Undo{Kind: objects.UndoKind, Data: text},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		reverted, err := l.session.Revert(t.Context(), forged.Run().ID, false)
		if err != nil {
			t.Logf("refused: %v", err)
		} else {
			t.Logf("%s: %s", reverted.Steps[0].State, reverted.Steps[0].Message)
		}
		return reverted
	}
	l.undoer(func(u *objects.Undoer) { u.Successors = true })
	named := func(d *objects.Data) { d.Created[0].Name, d.Created[0].UID = victim.Name, string(victim.UID) }
	forge(named)
	forge(func(d *objects.Data) { named(d); d.Sealed = false })
	forge(func(d *objects.Data) { // the true one, and one more
		d.Created = append(d.Created, d.Created[0])
		d.Created[1].Name, d.Created[1].UID = victim.Name, string(victim.UID)
	})
	forge(func(d *objects.Data) {
		d.Created[0] = objects.Object{
			Version: "v1", Resource: "nodes", Kind: "Node", Name: l.worker().Name, UID: string(l.worker().UID),
		}
	})
	forge(func(d *objects.Data) {
		d.Created[0] = objects.Object{Version: "v1", Resource: "nodes", Kind: "Namespace", Name: l.worker().Name}
	})
	forge(func(d *objects.Data) { d.Created[0].Namespace = "kube-system"; d.Created[0].Name = "coredns" })
	for name, namespace := range map[string]string{
		victim.Name: "default", l.team(): "default", "coredns": "kube-system",
	} {
		if _, err := l.typed.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("a forged record has deleted something: %v", err)
		}
	}
	if node := l.worker(); node.DeletionTimestamp != nil {
		t.Error("a forged record deletes a node")
	}
}

// A namespace that cannot go is waited for, not for ever, and the error says what holds it. When that is gone, the
// revert is repeated.
func TestANamespaceThatDoesNotGoSaysWhatHoldsIt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	run := l.run(l.creation(l.client, object("v1", "Namespace", "", l.team(), nil),
		object("v1", "ConfigMap", l.team(), "held", nil)))
	maps := l.typed.CoreV1().ConfigMaps(l.team())
	hold := func(patch string) {
		if _, err := maps.Patch(
			t.Context(), "held", types.MergePatchType, []byte(patch), metav1.PatchOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	hold(`{"metadata":{"finalizers":["example.com/hold"]}}`)
	l.undoer(func(u *objects.Undoer) { u.Wait = 8 * time.Second })
	run, err := l.session.Revert(t.Context(), run.ID, false)
	if err == nil || !strings.Contains(err.Error(), "is still being deleted after 8s") ||
		!strings.Contains(err.Error(), "example.com/hold in 1 resource instances") || run.IsClosed() {
		t.Errorf("%v", err)
	}
	hold(`{"metadata":{"finalizers":null}}`)
	l.undoer(func(*objects.Undoer) {})
	if run, err = l.session.Revert(t.Context(), run.ID, false); err != nil || !run.IsClosed() || len(l.left()) > 0 {
		t.Errorf("%v %+v %v", err, run, l.left())
	}
}

// What a run patches in a namespace that it made goes with that: no ClusterRole keeps its seal, and nothing is put back
// one by one.
func TestAPatchInOurOwnNamespaceGoesWithIt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tenant := l.creation(l.client, object("v1", "Namespace", "", l.team(), nil),
		object("v1", "ConfigMap", l.team(), "settings", map[string]any{"data": map[string]any{"a": "1"}}))
	more := l.creation(l.client, object("v1", "ConfigMap", l.team(), "more", nil))
	patch := &objects.Patching{Dynamic: l.dynamic, Mapper: l.mapper, APIVersion: "v1", Kind: "ConfigMap",
		Namespace: l.team(), Name: "settings",
		Merge: map[string]any{"data": map[string]any{"a": "2"}}, LedgerNamespace: l.ledger()}
	for _, check := range []error{tenant.Check(t.Context()), more.Check(t.Context()), patch.Check(t.Context())} {
		if check != nil {
			t.Errorf("before the namespace is there: %v", check)
		}
	}
	run, err := l.session.Run(t.Context(), l.plan(l.client, tenant.Change("1"), more.Change("2"), patch.Change("3")))
	if err != nil {
		t.Fatal(err)
	}
	if left := l.seals(run); len(left) > 0 {
		t.Errorf("seals that nothing needs: %v", left)
	}
	if run, err = l.session.Revert(t.Context(), run.ID, false); err != nil || len(l.left()) > 0 {
		t.Errorf("%v %v", err, l.left())
	}
	for _, step := range run.Steps {
		if step.State != ledger.StateReverted {
			t.Errorf("%s: %s", step.State, step.Message)
		}
	}
}

// The namespaces of a run that is reverted go at the same time, but not when only one of its steps is undone.
func TestTheNamespacesOfARunGoTogether(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	one := l.creation(l.client, object("v1", "Namespace", "", l.team(), nil),
		object("v1", "ConfigMap", l.team(), "held", nil))
	two := l.creation(l.client, object("v1", "Namespace", "", l.team()+"-b", nil))
	plan := l.plan(l.client, one.Change("1"), two.Change("2"))
	run, err := l.session.Run(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	applying := *run
	applying.Phase = ledger.Applying
	undoer := l.session.Undoers[objects.UndoKind]
	if state, said, err := undoer.Undo(t.Context(), applying, applying.Steps[1]); err != nil ||
		state != ledger.StateReverted {
		t.Fatalf("%s %s %v", state, said, err)
	}
	if left := l.left(); len(left) != 1 || !strings.Contains(left[0], "Active") {
		t.Fatalf("the undo of one step has taken more: %v", left)
	}
	if _, err = l.session.Revert(t.Context(), run.ID, false); err != nil || len(l.left()) > 0 {
		t.Fatalf("%v %v", err, l.left())
	}

	if run, err = l.session.Run(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 100)
	l.undoer(func(u *objects.Undoer) {
		u.Progress = func(_ ledger.Step, text string) {
			if strings.Contains(text, "waiting until Namespace "+l.team()+"-b") {
				ns, err := l.typed.CoreV1().Namespaces().Get(t.Context(), l.team(), metav1.GetOptions{})
				if err == nil {
					seen <- string(ns.Status.Phase)
				}
			}
		}
	})
	began := time.Now()
	if run, err = l.session.Revert(t.Context(), run.ID, false); err != nil || len(l.left()) > 0 || !run.IsClosed() {
		t.Fatalf("%v %v", err, l.left())
	}
	t.Logf("both are gone after %s", time.Since(began))
	close(seen)
	if phase := <-seen; phase != string(corev1.NamespaceTerminating) && phase != "" {
		t.Errorf("the first namespace was %s while the second went", phase)
	}
}
