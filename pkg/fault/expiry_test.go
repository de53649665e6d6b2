package fault_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger/ledgertest"
)

// What belongs to a run with a TTL must go away though no client comes back: its locks are owned by a Job that the cluster deletes.
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
	if after := *job.Spec.TTLSecondsAfterFinished; *job.Spec.Completions != 0 || *job.Spec.Parallelism != 0 || after < 30*60 || after > 32*60 {
		t.Errorf("it completes at %d of %d, and lives %d s after that", *job.Spec.Completions, *job.Spec.Parallelism, after)
	}
	lease, err := c.Client.CoordinationV1().Leases(ledger.DefaultNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(lease.Items) != 1 || len(lease.Items[0].OwnerReferences) != 1 || lease.Items[0].OwnerReferences[0].Name != job.Name {
		t.Errorf("the lock is not the job's: %v, %+v", err, lease.Items)
	}
	if owner == nil || owner.UID != job.UID {
		t.Errorf("a debug pod would not be the job's: %v", owner)
	}
	if _, err := c.Revert(t.Context(), run.ID, false); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.BatchV1().Jobs(ledger.DefaultNamespace).Get(t.Context(), run.ID, metav1.GetOptions{}); err == nil {
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
		if call.Resource == "jobs" && call.Verb != "delete" {
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

// After the TTL the lock is gone. The target is still not free: nobody has confirmed that it is as it was.
func TestAnExpiredRunKeepsItsTarget(t *testing.T) {
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
	leases := c.Client.CoordinationV1().Leases(ledger.DefaultNamespace)
	list, _ := leases.List(t.Context(), metav1.ListOptions{})
	for _, lease := range list.Items { // the garbage collector's work
		if err := leases.Delete(t.Context(), lease.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	later := w.client(ledgertest.Hooks{}).later(time.Hour)
	err = later.Preflight(t.Context(), later.plan("gpu-1"))
	wantText(t, err, "node/gpu-1 is locked by run "+run.ID, "its time was up at 2026-05-04T12:01:00Z", "kubectl gpu-fault revert "+run.ID)
	if err := later.Preflight(t.Context(), later.plan("gpu-2")); err != nil {
		t.Errorf("another node: %v", err)
	}
}

// A client that was killed in the middle gives no sign of life, so nobody has to wait for its deadline or to force anything.
func TestTheRunOfASilentClientIsTakenOver(t *testing.T) {
	w := newWorld(t)
	c := w.client(ledgertest.Hooks{})
	if _, err := c.Ledger.EnsureNamespace(t.Context()); err != nil {
		t.Fatal(err)
	}
	run := ledger.Run{ID: "runtime-dead22", Fault: "runtime", Phase: ledger.Applying, Deadline: start.Add(10 * time.Minute), Steps: []ledger.Step{
		{ID: "1", Target: ledger.Target{Kind: "Node", Name: "gpu-1"}, State: ledger.StateApplying, Undo: ledger.Undo{Kind: "file"}},
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
