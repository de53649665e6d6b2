package fault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

func TestRevertLeavesWhatOthersChanged(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	run, err := c.Run(t.Context(), c.plan("gpu-1"))
	if err != nil {
		t.Fatal(err)
	}
	w.set("gpu-1", "repaired by an operator")
	run, err = c.Revert(t.Context(), run.ID, false)
	if err != nil || states(run) != "superseded" || !run.IsClosed() || w.file("gpu-1") != "repaired by an operator" {
		t.Errorf("%v, %s", err, states(run))
	}
}

func TestRevertStaysOpenUntilAllIsUndone(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	run, err := c.Run(t.Context(), c.plan("gpu-1", "gpu-2"))
	if err != nil {
		t.Fatal(err)
	}
	undo := c.Undoers["file"]
	for name, bad := range map[string]map[string]fault.Undoer{
		`node/gpu-2: undo node/gpu-2: unknown kind of undo "file"; the change was made by a newer version of kubectl gpu-fault`: {},
		"node/gpu-2: undo node/gpu-2: the node is lost": {
			"file": undoing(func() (ledger.State, error) { return "", errors.New("the node is lost") }),
		},
		"node/gpu-2: undo node/gpu-2: panic: a bug": {
			"file": undoing(func() (ledger.State, error) { panic("a bug") }),
		},
		`node/gpu-2: undo node/gpu-2: unexpected final state`: {
			"file": undoing(func() (ledger.State, error) { return ledger.StateProven, nil }),
		},
	} {
		c.Undoers, c.seen = bad, nil
		after, err := c.Revert(t.Context(), run.ID, false)
		wantText(t, err, name)
		// Its state is still proven, which must not be the last word on it.
		if !slices.Contains(c.seen, "gpu-2: not undone") || slices.Contains(c.seen, "gpu-2 proven") {
			t.Errorf("%s: said %q", name, c.seen)
		}
		if after.IsClosed() || states(after) != "proven proven" || after.Steps[1].Message == "" ||
			len(w.state(t).leases) != 2 {
			t.Errorf("%+v", after)
		}
	}
	c.Undoers = map[string]fault.Undoer{"file": undo}
	after, err := c.Revert(t.Context(), run.ID, false)
	if err != nil || states(after) != "reverted reverted" || !after.IsClosed() ||
		len(w.broken())+len(w.state(t).leases) > 0 {
		t.Errorf("%v, %+v", err, after)
	}
}

// Who may write ConfigMaps can make a record immutable. What it names is put back all the same, and its locks are
// freed: a record locks nothing.
func TestARecordThatCannotBeWrittenLocksNothing(t *testing.T) {
	w := newWorld(t)
	run, err := w.client(ledgertest.Hooks{}).Run(t.Context(), w.client(ledgertest.Hooks{}).plan("gpu-1"))
	if err != nil {
		t.Fatal(err)
	}
	c := w.client(ledgertest.Hooks{Before: func(call ledgertest.Call) error {
		if call.Verb == "update" && call.Resource == "configmaps" {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, run.ID, nil)
		}
		return nil
	}})
	_, err = c.Revert(t.Context(), run.ID, false)
	wantText(t, err, "node/gpu-1 was undone (reverted), but this could not be recorded")
	if !slices.Contains(c.seen, "gpu-1: undone, but not recorded") {
		t.Errorf("said %q", c.seen)
	}
	if n := len(w.state(t).leases); len(w.broken()) > 0 || n > 0 {
		t.Errorf("still broken: %v; %d locks", w.broken(), n)
	}
}

// Between the question and the revert, a record may be replaced by one about another node: what was not shown is not
// done.
func TestARunThatChangedSinceItWasShownIsNotReverted(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	run, err := c.Run(t.Context(), c.plan("gpu-1"))
	if err != nil {
		t.Fatal(err)
	}
	shown := run.Clone()
	shown.Steps[0].Target.Name = "gpu-2"
	_, err = c.RevertShown(t.Context(), shown, false)
	wantText(t, err, "the steps of run "+run.ID+" changed after they were shown")
	if len(w.broken()) != 1 {
		t.Error("it was reverted all the same")
	}
	if _, err := c.RevertShown(t.Context(), *run, false); err != nil || len(w.broken()) > 0 {
		t.Errorf("%v; broken: %v", err, w.broken())
	}
}

func TestTheLastChangeOfATargetIsUndoneFirst(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	var order []string
	c.Undoers["file"] = recording{&order, c}
	run, err := c.Run(t.Context(), c.plan("gpu-1", "gpu-1", "gpu-1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Revert(t.Context(), run.ID, false); err != nil || strings.Join(order, "") != "321" {
		t.Errorf("%v, undone in the order %v", err, order)
	}
}

type recording struct {
	order *[]string
	fault.Undoer
}

func (r recording) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	*r.order = append(*r.order, step.ID)
	return r.Undoer.Undo(ctx, run, step)
}

type undoing func() (ledger.State, error)

func (undoing) Describe(ledger.Step) string { return "" }
func (u undoing) Undo(context.Context, ledger.Run, ledger.Step) (ledger.State, string, error) {
	state, err := u()
	return state, "", err
}

func TestARunThatIsBeingMadeIsRevertedOnlyByForce(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	other := w.client(ledgertest.Hooks{})
	plan := c.plan("gpu-1")
	apply := plan.Changes[0].Apply
	plan.Changes[0].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		_, err := other.Revert(ctx, r.Run().ID, false)
		var running *fault.RunningError
		if !errors.As(err, &running) {
			t.Errorf("without force: %v", err)
		}
		wantText(t, err, "is still in progress on alice on host laptop, until 2026-05-04T12:11:00Z (in 11m0s)",
			"--force")
		if after, err := other.Revert(ctx, r.Run().ID, true); err != nil || after.Phase != ledger.Reverted {
			t.Errorf("by force: %v", err)
		}
		return apply(ctx, r) // its Save must fail
	}
	run, err := c.Run(t.Context(), plan)
	wantText(t, err, "the run is closed", "was reverted by another client in the meantime: reverted by alice")
	if run.Phase != ledger.Reverted || len(w.broken())+len(w.state(t).leases) > 0 {
		t.Errorf("%s, broken %v, locks %v", run.Phase, w.broken(), w.state(t).leases)
	}
}

func TestAStepThatLandsDuringARevertIsUndone(t *testing.T) {
	w := newWorld(t)
	c, other := w.client(ledgertest.Hooks{}), w.client(ledgertest.Hooks{})
	plan := c.plan("gpu-1")
	plan.Changes[0].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		if _, err := other.Revert(ctx, r.Run().ID, true); err != nil {
			t.Error(err)
		}
		w.set("gpu-1", r.Run().ID) // it had saved long before, and writes only now
		return []ledger.Evidence{{Text: "landed"}}, nil
	}
	if _, err := c.Run(t.Context(), plan); err == nil || len(w.broken()) > 0 {
		t.Errorf("%v, broken %v", err, w.broken())
	}
}

func TestRevertOfADeadClient(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	if _, err := c.Ledger.EnsureNamespace(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, label := range []string{"runtime-dead22", "runtime-other2"} {
		_, err := c.Client.CoreV1().Pods(ledger.DefaultNamespace).Create(t.Context(),
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: "debug-" + label, Labels: map[string]string{ledger.LabelRun: label},
			}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	run := ledger.Run{
		ID: "runtime-dead22", Fault: "runtime", Phase: ledger.Applying, Deadline: start.Add(10 * time.Minute),
	}
	for i, state := range []ledger.State{
		ledger.StateApplying, ledger.StateApplied, ledger.StateProven, ledger.StatePlanned,
	} {
		node := fmt.Sprintf("gpu-%d", i+1)
		run.Steps = append(run.Steps, ledger.Step{
			ID: fmt.Sprint(i + 1), Target: ledger.Target{Kind: "Node", Name: node}, State: state,
			Undo: ledger.Undo{Kind: "file"},
		})
		if state != ledger.StateApplying && state != ledger.StatePlanned {
			w.set(node, run.ID)
		}
	}
	if _, err := c.Ledger.Create(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	after, err := c.later(12*time.Minute).Revert(t.Context(), run.ID, false)
	if err != nil || states(after) != "reverted reverted reverted skipped" || !after.IsClosed() || len(w.broken()) > 0 {
		t.Errorf("%v, %+v", err, after)
	}
	pods, err := c.Client.CoreV1().Pods(ledger.DefaultNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 1 || pods.Items[0].Labels[ledger.LabelRun] != "runtime-other2" {
		t.Errorf("pods %v, %v", pods.Items, err)
	}
}

func TestRevertOfWhatIsNotThere(t *testing.T) {
	c := newWorld(t).client(ledgertest.Hooks{})
	_, err := c.Revert(t.Context(), "xid-nope22", false)
	wantText(t, err, "run xid-nope22 not found", "list --all")
}

// TestRecordsOfATenant: a namespace without the ledger label is not a ledger. Reverts ignore its records, and runs
// start no privileged pods there.
func TestRecordsOfATenant(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	c.Ledger.Namespace = "default"
	_, err := c.Ledger.Create(t.Context(), ledger.Run{
		ID: "runtime-222222", Fault: "runtime", Phase: ledger.Proven, Deadline: start,
		Steps: []ledger.Step{{
			ID: "1", Target: ledger.Target{Kind: "Node", Name: "gpu-1"}, State: ledger.StateProven,
			Undo: ledger.Undo{Kind: "file"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.set("gpu-1", "runtime-222222")
	after, err := c.Revert(t.Context(), "runtime-222222", true)
	wantText(t, err, `namespace "default" is not marked as a ledger`)
	if after != nil || w.file("gpu-1") == "" {
		t.Errorf("something was undone: %+v", after)
	}
	wantText(t, c.Preflight(t.Context(), c.plan("gpu-2")), `namespace "default" is not marked as a ledger`)
}
