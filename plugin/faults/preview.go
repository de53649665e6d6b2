package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/containerdconfig"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// mostPreviewed is the maximum number of steps that the preview lists for a run.
const mostPreviewed = 20

// preview describes what reverting the run does. Each step is verified in the cluster. Information that only the record
// contains is marked as such.
func (f *revertFlags) preview(ctx context.Context, s *fault.Session, run ledger.Run) string {
	var text strings.Builder
	text.WriteString(heading(run))
	var steps []ledger.Step
	for _, step := range run.Steps {
		if step.InPlace() && step.Undo.Kind != ledger.UndoNone {
			steps = append(steps, step)
		}
	}
	lines := make([]string, min(len(steps), mostPreviewed))
	var group errgroup.Group
	group.SetLimit(fault.DefaultParallel)
	for i := range lines {
		group.Go(func() error { lines[i] = f.previewStep(ctx, s, run, steps[i]); return nil })
	}
	_ = group.Wait() // errors are in lines
	for _, line := range lines {
		fmt.Fprintf(&text, "\n  %s", printer.Clean(line))
	}
	switch {
	case len(steps) > mostPreviewed:
		fmt.Fprintf(&text, "\n  and %s", count.Of(len(steps)-mostPreviewed, "more step"))
	case len(steps) == 0:
		text.WriteString("\n  nothing is in place; the record will be closed")
	}
	return text.String()
}

// heading returns the first line of the preview. It starts with the ID, so that untrusted text from the record cannot
// start a line.
func heading(run ledger.Run) string {
	return printer.Clean(
		fmt.Sprintf("%s: %s on %s (recorded by %s)", run.ID, run.Summary, targets(run),
			cmp.Or(run.By, "an unknown user")),
	)
}

func (f *revertFlags) previewStep(ctx context.Context, s *fault.Session, run ledger.Run, step ledger.Step) string {
	undoer, known := s.Undoers[step.Undo.Kind]
	target := targetName(step.Target)
	if !known {
		return fmt.Sprintf("%s: not supported by this version: %s", target, step.Undo.Kind)
	}
	if !step.Undo.IsPermanent() {
		if err := s.CheckUndo(ctx, run, step); err != nil {
			return fmt.Sprintf("%s: not undone: %v", target, err)
		}
	}
	does := undoer.Describe(step)
	if entering, ok := undoer.(fault.NodeUndoer); ok && entering.EntersNode(step) {
		does = fmt.Sprintf("starts a privileged pod with image %s in namespace %s, to %s", f.pods.Image,
			s.Ledger.Namespace, does)
	}
	if recorded := recordedImage(step); recorded != "" && recorded != f.pods.Image {
		does += fmt.Sprintf(" (the record names image %q; if you trust it, pass --image)", recorded)
	}
	return target + ": " + does
}

// recordedImage returns the image of the debug pod that made the change, according to the record.
func recordedImage(step ledger.Step) string {
	var claim containerdconfig.Claim
	if step.Undo.Kind != containerdconfig.UndoKind || json.Unmarshal(step.Undo.Data, &claim) != nil {
		return ""
	}
	return claim.Image
}

// waits returns a rank that determines the order in which runs are reverted: first runs that require no waiting, then
// those that wait for a sign of life from a client, then those that wait for a lost node to restore itself. This way,
// no run delays the others.
func waits(run ledger.Run, now time.Time) int {
	for _, step := range run.Pending() {
		var claim containerdconfig.Claim
		if step.Undo.Kind == containerdconfig.UndoKind && json.Unmarshal(step.Undo.Data, &claim) == nil &&
			claim.NodeLoss &&
			now.Before(run.Until) {
			return 2
		}
	}
	if run.InItsWay(now) {
		return 1
	}
	return 0
}
