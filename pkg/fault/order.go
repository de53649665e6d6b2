package fault

import (
	"context"
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// chains returns the indices of the steps that must run one after another: one chain per target, or a single chain if
// all steps run in order regardless of their targets.
func chains(inOrder bool, steps []ledger.Step) [][]int {
	targets := (ledger.Run{Steps: steps}).Targets()
	if inOrder {
		targets = targets[:min(1, len(targets))]
	}
	all := make([][]int, len(targets))
	for t, target := range targets {
		for i, step := range steps {
			if inOrder || step.Target.Same(target) {
				all[t] = append(all[t], i)
			}
		}
	}
	return all
}

// undoInterrupted undoes all pending steps of a run that the user interrupted.
func (s *Session) undoInterrupted(ctx context.Context, w *ledger.Writer, results *results) {
	s.undoPending(ctx, w, results, ledger.Interrupted, "stopped by the user")
}

// undoFailed undoes the pending steps of an in-order run after a step failed. It does nothing if another client has
// taken over the run.
func (s *Session) undoFailed(ctx context.Context, w *ledger.Writer, results *results) {
	if inItsWay(w.Run()) {
		s.undoPending(ctx, w, results, ledger.Failed, "a step failed, and the previous steps are undone")
	}
}

// undoPending records why the run is being undone, and undoes its pending steps. It does nothing if another client has
// taken over the failed run.
func (s *Session) undoPending(ctx context.Context, w *ledger.Writer, results *results, phase ledger.Phase, why string) {
	cleanup, cancel := s.cleanup(ctx)
	defer cancel()
	err := s.saveSurely(cleanup, w, func(run *ledger.Run) error {
		if phase == ledger.Failed && !inItsWay(*run) {
			return errTakenOver
		}
		run.Phase, run.Message = phase, why
		return nil
	})
	if errors.Is(err, errTakenOver) {
		return
	}
	if err != nil {
		s.warn("could not record in run %s: %s: %v", w.Run().ID, why, err)
	} else {
		s.runChanged(w.Run())
	}
	for _, outcome := range s.undoAll(cleanup, w, w.Run().Pending(), "", results.allow) {
		if outcome.err != nil {
			results.fail(outcome.step.ID, outcome.err)
		}
	}
}
