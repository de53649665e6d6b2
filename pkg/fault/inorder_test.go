package fault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

// ordered returns a plan whose changes build upon each other, on targets of their own; log gets what was done and
// undone.
func (c *client) ordered(log *journal, nodes ...string) fault.Plan {
	plan := c.plan(nodes...)
	plan.InOrder, plan.Quiet, plan.Allow = true, true, fault.Allowances{Majority: true, LastGPUNode: true}
	for i, node := range nodes {
		apply := plan.Changes[i].Apply
		plan.Changes[i].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			log.add("do " + node)
			return apply(ctx, r)
		}
	}
	c.Undoers = map[string]fault.Undoer{"file": logged{c, log}}
	return plan
}

// journal is what happened, in its order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

// logged is an Undoer whose work is noted.
type logged struct {
	*client
	log *journal
}

func (l logged) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	l.log.add("undo " + step.Target.Name)
	return l.client.Undo(ctx, run, step)
}

// A plan in order does one thing after the other, and a revert from elsewhere undoes the last first, though the targets
// differ.
func TestAPlanInOrderIsMadeAndUndoneOneAfterTheOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, log := w.client(ledgertest.Hooks{}), &journal{}
	plan := c.ordered(log, "gpu-1", "gpu-3", "gpu-2", "gpu-1")
	slow := plan.Changes[0].Apply
	plan.Changes[0].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		defer log.add("done gpu-1")
		return slow(ctx, r)
	}
	run, err := c.Run(t.Context(), plan)
	if err != nil || !run.InOrder || !run.Quiet {
		t.Fatalf("%v %+v", err, run)
	}
	other := w.client(ledgertest.Hooks{})
	other.Undoers = map[string]fault.Undoer{"file": logged{other, log}}
	if run, err = other.Revert(t.Context(), run.ID, false); err != nil || !run.IsClosed() {
		t.Fatalf("%v %+v", err, run)
	}
	want := []string{
		"do gpu-1", "done gpu-1", "do gpu-3", "do gpu-2", "do gpu-1", "undo gpu-1", "undo gpu-2", "undo gpu-3",
		"undo gpu-1",
	}
	if diff := cmp.Diff(want, log.lines); diff != "" {
		t.Error(diff)
	}
	if events := w.state(t).events; len(events) > 0 {
		t.Errorf("a quiet run tells of itself: %+v", events)
	}
}

// Steps do not wait for each other to be undone if the plan allows that, even those of one target.
func TestUndoTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, log := w.client(ledgertest.Hooks{}), &journal{}
	plan := c.ordered(log, "gpu-1", "gpu-2", "gpu-1")
	plan.UndoTogether = true
	run, err := c.Run(t.Context(), plan)
	if err != nil || !run.UndoTogether {
		t.Fatalf("%v %+v", err, run)
	}
	other := w.client(ledgertest.Hooks{})
	other.Undoers = map[string]fault.Undoer{"file": &meeting{
		Undoer: logged{other, log}, missing: len(plan.Changes), met: make(chan struct{}),
	}}
	if run, err = other.Revert(t.Context(), run.ID, false); err != nil || !run.IsClosed() {
		t.Fatalf("%v %+v", err, run)
	}
	if states(run) != "reverted reverted reverted" {
		t.Error(states(run))
	}
}

// meeting is an Undoer whose undos wait for each other.
type meeting struct {
	fault.Undoer
	mu      sync.Mutex
	missing int
	met     chan struct{}
}

func (m *meeting) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	m.mu.Lock()
	if m.missing--; m.missing == 0 {
		close(m.met)
	}
	m.mu.Unlock()
	select {
	case <-m.met:
	case <-time.After(time.Minute):
		return "", "", errors.New("not all steps are undone at the same time")
	}
	return m.Undoer.Undo(ctx, run, step)
}

// The first failure stops a plan in order, and undoes all that was done before, the last first.
func TestAFailureInOrderUndoesAllThatWasDoneBefore(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(context.Context, *client, fault.Recorder) ([]ledger.Evidence, error){
		"an error": func(context.Context, *client, fault.Recorder) ([]ledger.Evidence, error) {
			return nil, errors.New("no image")
		},
		"a panic":     func(context.Context, *client, fault.Recorder) ([]ledger.Evidence, error) { panic("a bug") },
		"no evidence": func(context.Context, *client, fault.Recorder) ([]ledger.Evidence, error) { return nil, nil },
		"half of it": func(_ context.Context, c *client, r fault.Recorder) ([]ledger.Evidence, error) {
			c.world.set("gpu-3", r.Run().ID)
			return nil, errors.New("half of it")
		},
		"its time": func(ctx context.Context, _ *client, _ fault.Recorder) ([]ledger.Evidence, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c, log := w.client(ledgertest.Hooks{}), &journal{}
			plan := c.ordered(log, "gpu-1", "gpu-2", "gpu-3", "gpu-4")
			c.Timeout = time.Minute
			if name == "its time" {
				c.Timeout = 300 * time.Millisecond
			}
			plan.Changes[2].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
				return fails(ctx, c, r)
			}
			run, err := c.Run(t.Context(), plan)
			wantText(t, err, "node/gpu-3: ")
			if run.Phase != ledger.Failed || !run.IsClosed() || states(run) != "reverted reverted failed skipped" ||
				!strings.Contains(run.Message, "all changes were undone") {
				t.Errorf("%s %q: %s", run.Phase, run.Message, states(run))
			}
			if diff := cmp.Diff(
				[]string{"do gpu-1", "do gpu-2", "undo gpu-3", "undo gpu-2", "undo gpu-1"}, log.lines,
			); diff != "" {
				t.Error(diff)
			}
			if now := w.state(t); len(w.broken())+len(now.leases) > 0 {
				t.Errorf("broken %v, locks %v", w.broken(), now.leases)
			}
		})
	}
}

// What cannot be undone after a failure does not keep the rest from it, and stays recorded and locked for the next
// revert.
func TestAFailureInOrderLeavesOnRecordWhatCannotBeUndone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, log := w.client(ledgertest.Hooks{}), &journal{}
	plan := c.ordered(log, "gpu-1", "gpu-2", "gpu-3")
	plan.Changes[2].Apply = func(context.Context, fault.Recorder) ([]ledger.Evidence, error) {
		return nil, errors.New("no image")
	}
	c.Undoers = map[string]fault.Undoer{"file": stubborn{logged{c, log}, "gpu-2"}}
	run, err := c.Run(t.Context(), plan)
	wantText(t, err, "no image", "node/gpu-2: undo", "revert "+run.ID)
	if run.Phase != ledger.Failed || run.IsClosed() || states(run) != "reverted proven failed" ||
		!slices.Equal(w.state(t).leases, []string{"Node/gpu-2"}) {
		t.Errorf("%s: %s, locks %v", run.Phase, states(run), w.state(t).leases)
	}
	c.Undoers = map[string]fault.Undoer{"file": c}
	if run, err = c.Revert(t.Context(), run.ID, false); err != nil || !run.IsClosed() || len(w.broken()) > 0 {
		t.Errorf("%v %+v", err, run)
	}
}

// stubborn cannot undo a node.
type stubborn struct {
	logged
	node string
}

func (s stubborn) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if step.Target.Name == s.node {
		return "", "", errors.New("its finalizer holds it")
	}
	return s.logged.Undo(ctx, run, step)
}

// Ctrl-C in the middle of a plan in order undoes it, the last first.
func TestCtrlCInOrderUndoesTheLastFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, log := w.client(ledgertest.Hooks{}), &journal{}
	ctx, cancel := context.WithCancel(t.Context())
	plan := c.ordered(log, "gpu-1", "gpu-2", "gpu-3")
	plan.Changes[2].Apply = func(ctx context.Context, _ fault.Recorder) ([]ledger.Evidence, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	run, err := c.Run(ctx, plan)
	if !errors.Is(err, context.Canceled) || run.Phase != ledger.Interrupted || !run.IsClosed() ||
		states(run) != "reverted reverted reverted" {
		t.Errorf("%v %s: %s", err, run.Phase, states(run))
	}
	if diff := cmp.Diff(
		[]string{"do gpu-1", "do gpu-2", "undo gpu-3", "undo gpu-2", "undo gpu-1"}, log.lines,
	); diff != "" {
		t.Error(diff)
	}
}

// A revert from elsewhere that takes a run in order over has the say: the client that finds out undoes nothing more
// than its own step.
func TestARunInOrderThatIsTakenOverIsUndoneByTheOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, log := w.client(ledgertest.Hooks{}), &journal{}
	plan := c.ordered(log, "gpu-1", "gpu-2", "gpu-3")
	middle := plan.Changes[1].Apply
	plan.Changes[1].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		evidence, err := middle(ctx, r)
		if _, err := w.client(ledgertest.Hooks{}).Revert(ctx, r.Run().ID, true); err != nil {
			t.Error(err)
		}
		return evidence, err
	}
	run, err := c.Run(t.Context(), plan)
	wantText(t, err, "was reverted by another client")
	if run.Phase != ledger.Reverted || !run.IsClosed() || len(w.broken()) > 0 ||
		slices.Contains(log.lines, "do gpu-3") || slices.Contains(log.lines, "undo gpu-1") {
		t.Errorf("%s: %s; %v, broken %v", run.Phase, states(run), log.lines, w.broken())
	}
}

// TestAClientInOrderMayDieAfterEveryWrite is TestAClientMayDieAfterEveryWrite for plans in order, one of which fails at
// its last step: a revert finds all that is left, and undoes the last first.
func TestAClientInOrderMayDieAfterEveryWrite(t *testing.T) {
	t.Parallel()
	for _, landed := range []bool{false, true} {
		for _, fails := range []bool{false, true} {
			for after, done := 1, false; !done; after++ {
				name := fmt.Sprintf("%d landed=%v fails=%v", after, landed, fails)
				done = survivesInOrder(t, name, fails, &killed{after: after, landed: landed})
				if after > 100 {
					t.Fatal("it never gets through")
				}
			}
		}
	}
}

func survivesInOrder(t *testing.T, name string, fails bool, k *killed) (finished bool) {
	t.Helper()
	w := newWorld(t)
	victim := w.client(k.hooks())
	victim.dead = k.dead
	plan := victim.ordered(&journal{}, "gpu-1", "gpu-2", "gpu-3")
	apply := plan.Changes[2].Apply
	plan.Changes[2].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		evidence, err := apply(ctx, r)
		if fails {
			return nil, errors.Join(err, errors.New("it did not land"))
		}
		return evidence, err
	}
	run, _ := victim.Run(t.Context(), plan)
	if !k.dead() && run != nil && !run.IsClosed() {
		_, _ = victim.Revert(t.Context(), run.ID, false) // and die in there
	}
	log := &journal{}
	fresh := w.client(ledgertest.Hooks{}).later(time.Hour)
	fresh.Undoers = map[string]fault.Undoer{"file": logged{fresh, log}}
	for _, run := range w.state(t).runs {
		if _, err := fresh.Revert(t.Context(), run.ID, false); err != nil {
			t.Errorf("%s: revert: %v", name, err)
		}
	}
	if !slices.IsSortedFunc(log.lines, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("%s: undone in the order %v", name, log.lines)
	}
	now := w.state(t)
	if len(w.broken())+len(now.leases)+len(now.events) > 0 {
		t.Errorf("%s: after the revert: broken %v, locks %v, %d Events", name, w.broken(), now.leases, len(now.events))
	}
	for _, run := range now.runs {
		if !run.IsClosed() || len(run.Pending()) > 0 {
			t.Errorf("%s: after the revert: %+v", name, run)
		}
	}
	return !k.dead()
}
