package faults

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/containerdconfig"
)

// TestWhoWaitsComesLast: a forged record of a node that is lost for years, or of a client that is still at work, delays
// nobody else's revert.
func TestWhoWaitsComesLast(t *testing.T) {
	t.Parallel()
	now := time.Now()
	lost := step("node-a", ledger.StateProven, "")
	lost.Undo = ledger.Undo{Kind: containerdconfig.UndoKind, Data: json.RawMessage(`{"files":[],"nodeLoss":true}`)}
	runs := []ledger.Run{
		{
			ID: "lost for years", Phase: ledger.Proven, Until: now.Add(10 * 365 * 24 * time.Hour),
			Steps: []ledger.Step{lost},
		},
		{ID: "at work", Phase: ledger.Applying, Deadline: now.Add(time.Hour)},
		{ID: "genuine", Phase: ledger.Proven, Steps: []ledger.Step{step("node-b", ledger.StateProven, "")}},
		{
			ID: "lost, and its time is up", Phase: ledger.Proven, Until: now.Add(-time.Minute),
			Steps: []ledger.Step{lost},
		},
	}
	slices.SortStableFunc(runs, func(a, b ledger.Run) int { return waits(a, now) - waits(b, now) })
	var order []string
	for _, run := range runs {
		order = append(order, run.ID)
	}
	if want := []string{
		"genuine", "lost, and its time is up", "at work", "lost for years",
	}; !slices.Equal(order, want) {
		t.Errorf("order %q, wanted %q", order, want)
	}
}
