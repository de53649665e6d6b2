package fault_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

func TestARunIsRecordedLockedProvenAndReverted(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	run, err := c.Run(t.Context(), c.plan("gpu-1"))
	if err != nil {
		t.Fatal(err)
	}
	step := run.Steps[0]
	if run.Phase != ledger.Proven || run.By != ledgertest.User || run.From != "laptop" || run.IsClosed() ||
		step.State != ledger.StateProven ||
		len(step.Evidence) != 1 || step.Target.UID == "" || string(step.Undo.Data) != `""` {
		t.Errorf("%+v", run)
	}
	now := w.state(t)
	if diff := cmp.Diff([]string{"Node/gpu-1"}, now.leases); diff != "" {
		t.Errorf("a change that stands keeps its lock: %s", diff)
	}
	want := []string{
		"run Planned", "gpu-1 applying", "gpu-1 applying", "gpu-1: breaking it", "gpu-1 proven", "run Proven",
	}
	if diff := cmp.Diff(want, c.seen); diff != "" {
		t.Errorf("observer (-want +got)\n%s", diff)
	}

	other := w.client(ledgertest.Hooks{})
	_, err = other.Run(t.Context(), other.plan("gpu-1"))
	wantText(t, err, "node/gpu-1 is locked by run "+run.ID, "alice on host laptop", "kubectl gpu-fault revert "+run.ID)

	for range 2 { // the second finds nothing to do
		run, err = other.Revert(t.Context(), run.ID, false)
		if err != nil || run.Phase != ledger.Reverted || !run.IsClosed() || states(run) != "reverted" ||
			run.Steps[0].Message != "the file is back" {
			t.Errorf("%v, %+v", err, run)
		}
	}
	now = w.state(t)
	if len(now.leases)+len(w.broken()) > 0 || len(now.events) != 2 {
		t.Errorf("locks %v, broken %v, %d events", now.leases, w.broken(), len(now.events))
	}
	for _, event := range now.events {
		if event.Namespace != "default" || event.InvolvedObject.UID == "" ||
			string(event.InvolvedObject.UID) != step.Target.UID ||
			!strings.Contains(event.Message, run.ID) || !strings.Contains(event.Message, "alice") {
			t.Errorf("%+v", event)
		}
	}
}

func TestWhatCannotBeUndoneFreesItsLockAndStaysOpen(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	plan := c.plan("gpu-1")
	plan.Changes[0].Undo = ledger.Undo{Kind: ledger.UndoNone}
	run, err := c.Run(t.Context(), plan)
	if err != nil || run.IsClosed() || len(w.state(t).leases) > 0 {
		t.Fatalf("%v, %+v", err, run)
	}
	run, err = c.Revert(t.Context(), run.ID, false)
	if err != nil || states(run) != "permanent" || !run.IsClosed() || run.Phase != ledger.Reverted {
		t.Errorf("%v, %+v", err, run)
	}
}

func TestARunOnOneNodeTakesFewCalls(t *testing.T) {
	var calls []string
	w := newWorld(t)
	c := w.client(
		ledgertest.Hooks{Before: func(call ledgertest.Call) error { calls = append(calls, call.String()); return nil }},
	)
	// On a busy machine a run takes longer than the heartbeat of these tests, which would be counted
	c.Heartbeat = time.Minute
	if _, err := c.Ledger.EnsureNamespace(t.Context()); err != nil { // as after the first run
		t.Fatal(err)
	}
	calls = nil
	plan := c.plan("gpu-1")
	plan.Changes[0].Undo = ledger.Undo{Kind: ledger.UndoNone}
	plan.Changes[0].Apply = func(context.Context, fault.Recorder) ([]ledger.Evidence, error) {
		return []ledger.Evidence{{Text: "seen"}}, nil
	}
	if err := c.Preflight(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	if len(calls) > 5 { // side by side
		t.Errorf("preflight: %v", calls)
	}
	if _, err := c.Run(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	if len(calls) > 14 {
		t.Errorf("%d calls:\n%s", len(calls), strings.Join(calls, "\n"))
	}
}

func TestOneFailureDoesNotStopTheOthers(t *testing.T) {
	for name, test := range map[string]struct {
		apply func(*client, fault.Recorder) ([]ledger.Evidence, error)
		want  string
	}{
		"an error": {
			func(*client, fault.Recorder) ([]ledger.Evidence, error) { return nil, errors.New("no image") },
			"node/gpu-2: no image",
		},
		"a panic": {
			func(*client, fault.Recorder) ([]ledger.Evidence, error) { panic("a bug") }, "node/gpu-2: panic: a bug",
		},
		"no evidence": {func(*client, fault.Recorder) ([]ledger.Evidence, error) { return nil, nil }, "is no evidence"},
		"an error after the change": {func(c *client, r fault.Recorder) ([]ledger.Evidence, error) {
			c.world.set("gpu-2", r.Run().ID)
			return []ledger.Evidence{{Text: "half of it"}}, errors.New("half of it")
		}, "half of it"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.client(ledgertest.Hooks{})
			plan := c.plan("gpu-1", "gpu-2", "gpu-3", "gpu-2")
			plan.Allow = fault.Allowances{Majority: true}
			plan.Changes[1].Apply = func(_ context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
				return test.apply(c, r)
			}
			run, err := c.Run(t.Context(), plan)
			wantText(t, err, test.want, "kubectl gpu-fault revert "+run.ID)
			if run.Phase != ledger.Failed || run.IsClosed() || states(run) != "proven failed proven skipped" ||
				run.Steps[1].Undone.IsZero() {
				t.Errorf("%s: %s, %+v", run.Phase, states(run), run.Steps[1])
			}
			if got := w.file("gpu-2"); got != "" {
				t.Error("the failed step was not undone")
			}
			if diff := cmp.Diff([]string{"Node/gpu-1", "Node/gpu-3"}, sorted(w.state(t).leases)); diff != "" {
				t.Error(diff)
			}
			run, err = c.Revert(t.Context(), run.ID, false)
			if err != nil || !run.IsClosed() || len(w.broken()) > 0 ||
				states(run) != "reverted failed reverted skipped" {
				t.Errorf("%v %s, broken %v", err, states(run), w.broken())
			}
		})
	}
}

func TestCtrlCUndoesEverything(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	ctx, cancel := context.WithCancel(t.Context())
	plan := c.plan("gpu-1", "gpu-2", "gpu-3")
	plan.Allow.Majority = true
	c.Parallel = 2
	first := plan.Changes[0].Apply
	proven := make(chan struct{})
	plan.Changes[0].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		defer close(proven)
		return first(ctx, r)
	}
	plan.Changes[1].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		<-proven
		c.world.set("gpu-2", r.Run().ID)
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	plan.Changes[2].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	run, err := c.Run(ctx, plan)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	if run.Phase != ledger.Interrupted || !run.IsClosed() || run.Message != "stopped by the user" ||
		strings.Contains(states(run), "failed") {
		t.Errorf("%s: %s", run.Phase, states(run))
	}
	if now := w.state(t); len(w.broken())+len(now.leases) > 0 {
		t.Errorf("broken %v, locks %v", w.broken(), now.leases)
	}
}

func TestCtrlCWhileTheRecordIsWritten(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := w.client(ledgertest.Hooks{After: func(call ledgertest.Call) error {
		if call.Verb == "create" && call.Resource == "configmaps" {
			cancel()
			return context.Canceled // as the client does, though the record is there
		}
		return nil
	}})
	if _, err := c.Run(ctx, c.plan("gpu-1")); !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	if now := w.state(t); len(now.runs)+len(now.leases)+len(w.broken()) > 0 {
		t.Errorf("%+v", now)
	}
}

func TestNothingIsChangedBeforeTheLedgerHasIt(t *testing.T) {
	for name, fails := range map[string]func(ledgertest.Call) bool{
		"create": func(c ledgertest.Call) bool { return c.Verb == "create" && c.Resource == "configmaps" },
		"lock":   func(c ledgertest.Call) bool { return c.Verb == "create" && c.Resource == "leases" },
		"update": func(c ledgertest.Call) bool { return c.Verb == "update" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.client(ledgertest.Hooks{Before: func(call ledgertest.Call) error {
				if fails(call) {
					return errors.New("etcd is down")
				}
				return nil
			}})
			plan := c.plan("gpu-1")
			plan.Changes[0].Apply = func(context.Context, fault.Recorder) ([]ledger.Evidence, error) {
				t.Error("the change was begun")
				return nil, nil
			}
			_, err := c.Run(t.Context(), plan)
			wantText(t, err, "nothing was changed", "etcd is down")
			if now := w.state(t); len(now.leases) > 0 {
				t.Errorf("locks %v", now.leases)
			}
		})
	}
}

func TestAChangeThatTheLedgerMissesIsUndoneLoudly(t *testing.T) {
	var down atomic.Bool
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{Before: func(call ledgertest.Call) error {
		if down.Load() && call.Verb == "update" {
			return errors.New("etcd is down")
		}
		return nil
	}})
	plan := c.plan("gpu-1")
	apply := plan.Changes[0].Apply
	plan.Changes[0].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		defer down.Store(true)
		return apply(ctx, r)
	}
	run, err := c.Run(t.Context(), plan)
	wantText(t, err, "the change was made and verified, but could not be recorded", "etcd is down",
		"kubectl gpu-fault revert "+run.ID)
	if len(w.broken()) > 0 {
		t.Error("it was not undone")
	}
	// The ledger knows no better than that it was begun, and so keeps the lock.
	if now := w.state(t); now.runs[0].Steps[0].State != ledger.StateApplying || len(now.leases) != 1 {
		t.Errorf("%+v", now)
	}
	down.Store(false)
	if run, err := c.later(time.Hour).Revert(t.Context(), run.ID, false); err != nil || !run.IsClosed() ||
		len(w.state(t).leases) > 0 {
		t.Errorf("%v, %+v", err, run)
	}
}

func TestAComputerThatSleptChangesNothing(t *testing.T) {
	w := newWorld(t)
	now := start
	slept := w.client(ledgertest.Hooks{Before: func(call ledgertest.Call) error {
		if call.Verb == "update" {
			now = start.Add(time.Hour)
		}
		return nil
	}})
	slept.Ledger.Clock = func() time.Time { return now }
	slept.Timeout = 30 * time.Minute
	_, err := slept.Run(t.Context(), slept.plan("gpu-1"))
	wantText(t, err, "was the computer asleep?")
	if len(w.broken()) > 0 {
		t.Error("it was changed")
	}
}

func TestEventsThatAreForbiddenAreAWarning(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{Before: func(call ledgertest.Call) error {
		if call.Resource == "events" {
			return errors.New("forbidden")
		}
		return nil
	}})
	if _, err := c.Run(t.Context(), c.plan("gpu-1")); err != nil {
		t.Fatal(err)
	}
	if got := c.warnings(); len(got) != 1 || !strings.Contains(got[0], "no Event on node/gpu-1") {
		t.Errorf("%q", got)
	}
}
