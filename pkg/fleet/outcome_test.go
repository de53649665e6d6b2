package fleet

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

func step(node string, state ledger.State, message string) ledger.Step {
	return ledger.Step{Target: ledger.Target{Kind: "Node", Name: node}, State: state, Message: message}
}

// proven is a step that cannot be undone, and was proven.
func proven(node string) ledger.Step {
	s := step(node, ledger.StatePermanent, "")
	s.Evidence = []ledger.Evidence{{Source: "/dev/kmsg sequence 1"}}
	return s
}

// Did it land on all nodes, and why not on the others: nodes with the same reason are one group, although each message
// names its own node and pod.
func TestOutcome(t *testing.T) {
	t.Parallel()
	plan := testPlan(13, 2)
	first, second := ledger.FleetRun(id, 0), ledger.FleetRun(id, 1)
	unready := func(run, node string) string {
		return "pod " + debugpod.PodName(run, node) + " on " + node + ": NodeNotReady\nmore"
	}
	got := Of(plan, []ledger.Run{
		{ID: first, Phase: ledger.Failed, Steps: []ledger.Step{
			step("gpu-0", ledger.StateProven, ""), step("gpu-1", ledger.StateFailed, unready(first, "gpu-1")),
		}},
		{ID: second, Phase: ledger.Failed, Steps: []ledger.Step{
			step("gpu-2", ledger.StateFailed, unready(second, "gpu-2")), proven("gpu-3"),
		}},
		{ID: ledger.FleetRun(id, 2), Phase: ledger.Interrupted, Message: "stopped by the user", Steps: []ledger.Step{
			step("gpu-4", ledger.StateSkipped, ""), step("gpu-5", ledger.StatePermanent, ""),
		}},
	}, map[int]string{3: "run " + id + "-3: no rights", 4: "run " + id + "-4: no rights"}, "did not run")
	want := Outcome{Nodes: 13, Landed: []string{"gpu-0", "gpu-3"}, Missed: []Missed{
		{Reason: "run RUN: no rights", Nodes: []string{"gpu-6", "gpu-7", "gpu-8", "gpu-9"}},
		{Reason: "did not run", Nodes: []string{"gpu-10", "gpu-11", "gpu-12"}},
		{Reason: "pod POD on NODE: NodeNotReady", Nodes: []string{"gpu-1", "gpu-2"}},
		{Reason: "skipped: stopped by the user", Nodes: []string{"gpu-4"}},
		{Reason: "the fault may be in place, but could not be verified", Nodes: []string{"gpu-5"}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// `list` shows a fleet as one run that is open while any of its runs is, and other runs as they are.
func TestFold(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	run := func(run string, phase ledger.Phase, closed time.Time, node string) ledger.Run {
		return ledger.Run{ID: run, Fleet: id, Phase: phase, Created: at, Closed: closed,
			Steps: []ledger.Step{step(node, ledger.StateProven, "")}}
	}
	other := ledger.Run{ID: "xid-222222", Phase: ledger.Proven}
	got := Fold([]ledger.Run{
		run(id+"-1", ledger.Proven, time.Time{}, "b"), other, run(id+"-0", ledger.Failed, at, "a"),
	})
	if len(got) != 2 || got[1].ID != other.ID {
		t.Fatalf("%+v", got)
	}
	fleet := got[0]
	if fleet.ID != id || fleet.Phase != "Failed,Proven" || fleet.IsClosed() || len(fleet.Targets()) != 2 {
		t.Errorf("%+v", fleet)
	}
	closed := Merge(id, []ledger.Run{run(id+"-0", ledger.Reverted, at, "a"), run(id+"-1", ledger.Reverted, at, "b")})
	if !closed.IsClosed() || closed.Phase != ledger.Reverted {
		t.Errorf("%+v", closed)
	}
}
