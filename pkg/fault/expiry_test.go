package fault_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
)

// What belongs to a run with a TTL must go away though no client comes back: its locks are owned by a Job that the
// cluster deletes.
func TestALockOfARunWithATTLIsOwnedByItsJob(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	plan := c.plan("gpu-1")
	plan.TTL = 30 * time.Minute
	var owner *metav1.OwnerReference
	apply := plan.Changes[0].Apply
	plan.Changes[0].Apply = func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
		owner = r.Run().OwnerReference() // what a debug pod gets
		return apply(ctx, r)
	}
	run, err := c.Run(t.Context(), plan)
	if err != nil || !run.Until.Equal(start.Add(30*time.Minute)) {
		t.Fatalf("%v, until %s", err, run.Until)
	}
	job, err := c.Client.BatchV1().Jobs(ledger.DefaultNamespace).Get(t.Context(), run.ID, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after := *job.Spec.TTLSecondsAfterFinished; *job.Spec.Completions != 0 || *job.Spec.Parallelism != 0 ||
		after < 30*60 || after > 32*60 {
		t.Errorf("it completes at %d of %d, and lives %d s after that", *job.Spec.Completions, *job.Spec.Parallelism,
			after)
	}
	lease, err := c.Client.CoordinationV1().Leases(ledger.DefaultNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(lease.Items) != 1 || len(lease.Items[0].OwnerReferences) != 1 ||
		lease.Items[0].OwnerReferences[0].Name != job.Name {
		t.Errorf("the lock is not the job's: %v, %+v", err, lease.Items)
	}
	if owner == nil || owner.UID != job.UID {
		t.Errorf("a debug pod would not be the job's: %v", owner)
	}
	if _, err := c.Revert(t.Context(), run.ID, false); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.BatchV1().Jobs(ledger.DefaultNamespace).Get(
		t.Context(), run.ID, metav1.GetOptions{},
	); err == nil {
		t.Error("the job outlives the revert")
	}
}

// A cluster that does not let us make Jobs gets the fault nevertheless, with a warning.
func TestWithoutTheJobTheRunGoesOn(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{Before: func(call ledgertest.Call) error {
		if call.Resource == "jobs" {
			return errKilled
		}
		return nil
	}})
	plan := c.plan("gpu-1")
	plan.TTL = time.Minute
	if _, err := c.Run(t.Context(), plan); err != nil || len(c.warnings()) == 0 {
		t.Errorf("%v, warnings %v", err, c.warnings())
	}
}

// Who may create Jobs where debug pods run is root on the nodes: a fault without debug pods must not need it.
func TestAPlanWithoutPodsMakesNoJob(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{Before: func(call ledgertest.Call) error {
		if call.Resource == "jobs" && call.Verb != "delete" && call.Verb != "get" {
			t.Errorf("it asks for jobs: %+v", call)
		}
		return nil
	}})
	plan := c.plan("gpu-1")
	plan.TTL, plan.NoPods = time.Minute, true
	run, err := c.Run(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Revert(t.Context(), run.ID, false); err != nil {
		t.Fatal(err)
	}
}

// A run's Lease locks its target, and its record alone does not: anyone who may write ConfigMaps could keep others from
// every node. After the TTL the Lease is gone, and the target itself refuses what would be built upon a change that is
// still in place.
func TestARecordAloneLocksNothing(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	plan := c.plan("gpu-1")
	plan.TTL = time.Minute
	run, err := c.Run(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	if run.Expired(start) || !run.Expired(start.Add(time.Minute)) {
		t.Error("expired before its time, or not at it")
	}
	later := w.client(ledgertest.Hooks{}).later(time.Hour)
	wantText(t, later.Preflight(t.Context(), later.plan("gpu-1")), "node/gpu-1 is locked by run "+run.ID,
		"the run expired at 2026-05-04T12:01:00Z", "kubectl gpu-fault revert "+run.ID)
	leases := c.Client.CoordinationV1().Leases(ledger.DefaultNamespace)
	list, _ := leases.List(t.Context(), metav1.ListOptions{})
	for _, lease := range list.Items { // the garbage collector's work
		if err := leases.Delete(t.Context(), lease.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []string{"gpu-1", "gpu-2"} {
		if err := later.Preflight(t.Context(), later.plan(node)); err != nil {
			t.Errorf("%s: %v", node, err)
		}
	}
}

// A record that changes one node a thousand times in the same way is rejected before it starts a pod.
func TestARecordThatRepeatsItselfIsRejected(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	if _, err := c.Ledger.EnsureNamespace(t.Context()); err != nil {
		t.Fatal(err)
	}
	undoer := &entering{Undoer: c.Undoers["file"]}
	c.Undoers["file"] = undoer
	run := ledger.Run{ID: "runtime-dead33", Fault: "runtime", Phase: ledger.Proven, Deadline: start}
	for i := range 1000 {
		run.Steps = append(run.Steps, ledger.Step{
			ID: fmt.Sprint(i), Target: ledger.Target{Kind: "Node", Name: "gpu-1"}, State: ledger.StateProven,
			Undo: ledger.Undo{Kind: "file"},
		})
	}
	if _, err := c.Ledger.Create(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	_, err := c.Revert(t.Context(), run.ID, false)
	wantText(t, err, "the record of run runtime-dead33 is rejected", "more than once")
	if undoer.undone.Load() > 0 {
		t.Errorf("%d steps were undone", undoer.undone.Load())
	}
}

// entering is an Undoer that enters nodes.
type entering struct {
	fault.Undoer
	undone atomic.Int32
}

func (*entering) EntersNode(ledger.Step) bool { return true }

func (e *entering) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	e.undone.Add(1)
	return e.Undoer.Undo(ctx, run, step)
}

// A client that was killed in the middle gives no sign of life, so nobody has to wait for its deadline or to force
// anything.
func TestTheRunOfASilentClientIsTakenOver(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	if _, err := c.Ledger.EnsureNamespace(t.Context()); err != nil {
		t.Fatal(err)
	}
	run := ledger.Run{ID: "runtime-dead22", Fault: "runtime", Phase: ledger.Applying,
		Deadline: start.Add(10 * time.Minute), Steps: []ledger.Step{
			{
				ID: "1", Target: ledger.Target{Kind: "Node", Name: "gpu-1"}, State: ledger.StateApplying,
				Undo: ledger.Undo{Kind: "file"},
			},
		}}
	if _, err := c.Ledger.Create(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	w.set("gpu-1", run.ID)
	after, err := c.Revert(t.Context(), run.ID, false)
	if err != nil || after.Phase != ledger.Reverted || len(w.broken()) > 0 {
		t.Errorf("%v, %+v, broken %v", err, after, w.broken())
	}
}

// A node that was replaced meanwhile has the same name, and nothing of ours.
func TestAReplacedNodeIsLeftAlone(t *testing.T) {
	for name, replace := range map[string]func(*testing.T, *client){
		"another UID": func(t *testing.T, c *client) {
			node, _ := c.Client.CoreV1().Nodes().Get(t.Context(), "gpu-9", metav1.GetOptions{})
			node.UID = "new"
			if _, err := c.Client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"no such node": func(t *testing.T, c *client) {
			if err := c.Client.CoreV1().Nodes().Delete(t.Context(), "gpu-9", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, gpuNode("gpu-9", func(n *corev1.Node) { n.UID = "old" }))
			c := w.client(ledgertest.Hooks{})
			run, err := c.Run(t.Context(), c.plan("gpu-9"))
			if err != nil {
				t.Fatal(err)
			}
			replace(t, c)
			after, err := c.Revert(t.Context(), run.ID, false)
			if err != nil || states(after) != "superseded" || !after.IsClosed() || len(w.broken()) != 1 {
				t.Errorf("%v, %+v, broken %v", err, after, w.broken())
			}
		})
	}
}
