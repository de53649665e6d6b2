package collect

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// fixes is the kind of run that doctor's fixes create. Such runs are not faults.
const fixes = "fix"

// remembered is the time for which a closed run may explain log lines: kernel logs rarely contain older lines.
const remembered = 7 * 24 * time.Hour

// runs reads this tool's own faults from the ledger: open runs, and closed runs whose lines may still be in
// kernel logs.
func (c *collector) runs(ctx context.Context) {
	if c.Ledger == nil {
		return
	}
	all, err := c.Ledger.List(ctx, ledger.All)
	if err != nil {
		if ctx.Err() == nil {
			c.missing("runs", reason(err))
		}
		return
	}
	for _, run := range all.Runs {
		if run.IsClosed() && (!leavesLines(run) || c.s.Meta.Created.Sub(run.Closed) > remembered) {
			continue
		}
		if found, inPlace := converted(run, c.Ledger.Command); inPlace && run.Fault != fixes {
			c.s.Runs = append(c.s.Runs, found)
		}
	}
	for _, damaged := range all.Unreadable {
		c.missing("runs/"+damaged.Name, reason(damaged.Err))
	}
}

// leavesLines reports whether a run (or an exercise) wrote lines to kernel logs that remain after the run has been
// closed.
func leavesLines(run ledger.Run) bool {
	return slices.ContainsFunc(run.Steps,
		func(s ledger.Step) bool { return s.InPlace() && s.Target.Kind == "Node" && s.Undo.IsPermanent() })
}

// converted returns the run in the format of snapshots. It also reports whether any of the run's changes may still be
// in place. Lines in a kernel log always count as in place.
func converted(run ledger.Run, command func(...string) string) (snapshot.Run, bool) {
	found := snapshot.Run{
		ID: run.ID, Fault: run.Fault, Summary: run.Summary, By: run.By, Phase: string(run.Phase), Created: run.Created,
		Until:  run.Until,
		Closed: run.Closed, Revert: command("revert", run.ID),
	}
	for _, step := range run.Steps {
		if !step.InPlace() {
			continue
		}
		target := snapshot.Target{
			Kind: step.Target.Kind, Namespace: step.Target.Namespace, Name: step.Target.Name,
			Permanent: step.Undo.IsPermanent(),
		}
		for _, e := range step.Evidence {
			target.Evidence = append(target.Evidence,
				snapshot.RunEvidence{Source: strings.TrimSpace(e.Source), Time: e.Time, Text: e.Text})
		}
		found.Targets = append(found.Targets, target)
	}
	return found, len(found.Targets) > 0
}
