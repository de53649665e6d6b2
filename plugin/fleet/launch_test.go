package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// world is a launch on two nodes, with a pod for each, and what it prints.
type world struct {
	*Launch
	out, talk bytes.Buffer
}

func newWorld(t *testing.T, output string) *world {
	t.Helper()
	client := ledgertest.New(t).Client(ledgertest.Hooks{})
	store := ledger.New(client, ledger.DefaultNamespace)
	if _, err := store.EnsureNamespace(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := &world{}
	pods := podflags.New()
	pods.Image = "r.example/i:gpu-fault-0123456789ab-amd64-0123456789ab"
	w.Launch = &Launch{
		Flags: &Flags{InCluster: true, NodesPerPod: 1, command: []string{"xid", "79"}}, Pods: &pods,
		Format:  printer.Format{Output: output},
		Streams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: &w.out, ErrOut: &w.talk},
		Session: &fault.Session{Client: client, Ledger: store, From: "laptop", Heartbeat: time.Millisecond},
		Fault:   "xid", Summary: "XID 79", Nodes: []string{"gpu-1", "gpu-2"}, Parallel: 10, PerNode: time.Minute,
		every: time.Millisecond,
	}
	plan := fault.Plan{}
	if err := w.Prepare(t.Context(), &plan); err != nil {
		t.Fatal(err)
	}
	if len(plan.Needs) == 0 || len(plan.Checks) != 1 {
		t.Errorf("the preflight does not check the fleet: %+v", plan)
	}
	return w
}

// record writes the record of a shard's run, as its pod does.
func (w *world) record(t *testing.T, shard int, phase ledger.Phase, state ledger.State) {
	t.Helper()
	run := ledger.Run{
		ID: ledger.FleetRun(w.plan.ID, shard), Fleet: w.plan.ID, Fault: "xid", Summary: "XID 79", Phase: phase,
		Deadline: time.Now().Add(time.Hour),
		Steps: []ledger.Step{{
			ID: "1", Target: ledger.Target{Kind: "Node", Name: w.Nodes[shard]}, State: state,
			Message: "as the test wants", Undo: ledger.Undo{Kind: ledger.UndoNone},
		}},
	}
	if _, err := w.Session.Ledger.Create(t.Context(), run); err != nil {
		t.Error(err)
	}
}

// pods plays the Job controller and the pods: once the Job exists, both make their records.
func (w *world) pods(t *testing.T, second ledger.Phase, state ledger.State, end batchv1.JobConditionType) func() {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		jobs := w.Session.Client.BatchV1().Jobs(ledger.DefaultNamespace)
		for t.Context().Err() == nil {
			job, err := jobs.Get(t.Context(), w.plan.ID, metav1.GetOptions{})
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			w.record(t, 0, ledger.Proven, ledger.StateProven)
			w.record(t, 1, second, state)
			job.Status.Conditions = []batchv1.JobCondition{{Type: end, Status: corev1.ConditionTrue}}
			if _, err := jobs.Update(t.Context(), job, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
			return
		}
	}()
	return func() { <-done }
}

// jobs returns the number of Jobs.
func (w *world) jobs(t *testing.T) int {
	t.Helper()
	list, err := w.Session.Client.BatchV1().Jobs(ledger.DefaultNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// A fleet that lands everywhere ends without an error and without its Job; one table says so, and the next step is
// named.
func TestLanded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	wait := w.pods(t, ledger.Proven, ledger.StateProven, batchv1.JobComplete)
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait()
	if !strings.Contains(w.out.String(), "landed   2                gpu-1,gpu-2") ||
		!strings.Contains(w.talk.String(), "landed on 2 of 2 nodes; undo: kubectl gpu-fault revert "+w.plan.ID) {
		t.Errorf("stdout:\n%s\nstderr:\n%s", w.out.String(), w.talk.String())
	}
	if n := w.jobs(t); n != 0 {
		t.Errorf("%d Jobs are left", n)
	}
}

// If one shard fails, the command fails, and says on which nodes the fault is in place.
func TestOneShardFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "json")
	wait := w.pods(t, ledger.Failed, ledger.StateFailed, batchv1.JobFailed)
	err := w.Run(t.Context())
	wait()
	if err == nil || !strings.Contains(err.Error(), "landed on 1 of 2 nodes; undo: kubectl gpu-fault revert") {
		t.Errorf("error %v", err)
	}
	var got result
	if err := json.Unmarshal(w.out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Kind != "Fleet" || len(got.Runs) != 2 || len(got.Missed) != 1 ||
		got.Missed[0].Reason != "as the test wants" {
		t.Errorf("%+v", got)
	}
}

// After Ctrl-C, the Job is gone, so that its pods undo what they did, and the user learns what is left.
func TestCtrlC(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("interrupted")
	go func() {
		for w.jobs(t) == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel(stopped)
	}()
	err := w.Run(ctx)
	if !errors.Is(err, stopped) || !strings.Contains(err.Error(), "landed on 0 of 2 nodes") {
		t.Errorf("error %v", err)
	}
	if n := w.jobs(t); n != 0 {
		t.Errorf("%d Jobs are left", n)
	}
}

// Whatever the previous pod of a shard has left, the next one injects nothing twice.
func TestEarlier(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		phase ledger.Phase
		state ledger.State
		want  string // of the error
		after ledger.Phase
	}{
		"finished":  {ledger.Proven, ledger.StateProven, "", ledger.Proven},
		"failed":    {ledger.Failed, ledger.StateFailed, "an earlier pod of this shard created run", ledger.Failed},
		"evicted":   {ledger.Interrupted, ledger.StateSkipped, "Interrupted", ledger.Interrupted},
		"lost":      {ledger.Applying, ledger.StateApplying, "the fault is not injected again", ledger.Reverted},
		"not begun": {ledger.Planned, ledger.StatePlanned, "the fault is not injected again", ledger.Reverted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			f := Flags{shard: &fleet.Shard{Header: w.plan.Header, Index: 1, Nodes: []string{"gpu-2"}}}
			if done, err := f.Earlier(t.Context(), w.Session); done || err != nil {
				t.Fatalf("without a record: %v %v", done, err)
			}
			w.record(t, 1, test.phase, test.state)
			done, err := f.Earlier(t.Context(), w.Session)
			if !done || !says(err, test.want) {
				t.Errorf("done %v, error %v, wanted %q", done, err, test.want)
			}
			run, err := w.Session.Ledger.Get(t.Context(), f.shard.Run())
			if err != nil || run.Phase != test.after {
				t.Errorf("the record is %s: %v", run.Phase, err)
			}
		})
	}
}

// undoer counts what it undoes.
type undoer struct{ undone int }

func (u *undoer) Describe(ledger.Step) string { return "undo" }

func (u *undoer) Undo(context.Context, ledger.Run, ledger.Step) (ledger.State, string, error) {
	u.undone++
	return ledger.StateReverted, "", nil
}

// A pod that is killed while it undoes its run leaves the rest in place. The pod that replaces it undoes the rest, and
// injects nothing.
func TestEarlierFinishesTheUndo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	u := &undoer{}
	w.Session.Undoers = map[string]fault.Undoer{"test": u}
	f := Flags{shard: &fleet.Shard{Header: w.plan.Header, Index: 0, Nodes: []string{"gpu-1"}}}
	step := func(id string, state ledger.State) ledger.Step {
		return ledger.Step{ID: id, Target: ledger.Target{Kind: "Object", Name: id}, State: state,
			Undo: ledger.Undo{Kind: "test"}}
	}
	run := ledger.Run{
		ID: f.shard.Run(), Fleet: w.plan.ID, Fault: "runtime", Summary: "broken", Phase: ledger.Interrupted,
		Deadline: time.Now().Add(time.Hour),
		Steps:    []ledger.Step{step("1", ledger.StateReverted), step("2", ledger.StateProven)},
	}
	if _, err := w.Session.Ledger.Create(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	done, err := f.Earlier(t.Context(), w.Session)
	if !done || !says(err, "the fault is not injected again") || u.undone != 1 {
		t.Errorf("done %v, error %v, %d steps undone", done, err, u.undone)
	}
	now, err := w.Session.Ledger.Get(t.Context(), run.ID)
	if err != nil || !now.IsClosed() || len(now.Pending()) > 0 {
		t.Errorf("%+v, %v", now, err)
	}
}

// The record of a shard names its user: according to the API server, its client is the service account.
func TestOriginAndName(t *testing.T) {
	t.Parallel()
	f := New()
	var plan fault.Plan
	if f.Name(&plan); plan.ID != "" || f.Origin("laptop") != "laptop" {
		t.Errorf("outside a fleet: %q, %q", plan.ID, f.Origin("laptop"))
	}
	f.shard = &fleet.Shard{Header: fleet.Header{ID: "fleet-7k3f9q", By: "alice", From: "laptop"}, Index: 3}
	f.Name(&plan)
	if got := f.Origin("pod"); got != "pod, for alice on host laptop" || plan.ID != "fleet-7k3f9q-3" ||
		plan.Fleet != "fleet-7k3f9q" {
		t.Errorf("%q, %+v", got, plan)
	}
}

// says reports whether an error contains a text, or is nil if the text is empty.
func says(err error, text string) bool {
	if err == nil || text == "" {
		return err == nil && text == ""
	}
	return strings.Contains(err.Error(), text)
}
