package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// outcome is the result of one step in a revert.
type outcome struct {
	// step is the step as recorded afterwards. Its state is reverted, superseded, or permanent, or the previous state
	// if err is set.
	step ledger.Step
	err  error
	// undone reports whether the change was undone, even if the record could not be updated.
	undone bool
}

// undo verifies and undoes one step. It does not record the result.
func (s *Session) undo(
	ctx context.Context, run ledger.Run, step ledger.Step, allow Allowances,
) (state ledger.State, said string, err error) {
	undoer, ok := s.Undoers[step.Undo.Kind]
	switch {
	case !ok && step.Undo.IsPermanent():
		return ledger.StatePermanent, "this cannot be undone", nil
	case !ok:
		return "", "", fmt.Errorf(
			"undo %s: unknown kind of undo %q; the change was made by a newer version of kubectl gpu-fault: upgrade this installation", step.Target,
			step.Undo.Kind,
		)
	}
	if gone, err := s.verify(ctx, run, step, allow); err != nil {
		return "", "", fmt.Errorf("undo %s: %w", step.Target, err)
	} else if gone != "" {
		return ledger.StateSuperseded, gone, nil
	}
	err = guard(func() (err error) {
		state, said, err = undoer.Undo(ctx, run, step)
		return err
	})
	if err != nil {
		return "", "", fmt.Errorf("undo %s: %w", step.Target, err)
	}
	switch state {
	case ledger.StateReverted, ledger.StateSuperseded, ledger.StatePermanent:
		return state, said, nil
	}
	return "", "", fmt.Errorf("undo %s: unexpected final state %q", step.Target, state)
}

// undoAll undoes steps and records each result. The steps of each target are undone in reverse order. If the run is in
// order, all steps are undone in reverse order. If it has UndoTogether, all steps are undone in parallel. A step that
// cannot be undone does not prevent others from being undone.
func (s *Session) undoAll(
	ctx context.Context, w *ledger.Writer, steps []ledger.Step, by string, allow Allowances,
) []outcome {
	outcomes := make([]outcome, len(steps))
	run := w.Run()
	var group errgroup.Group
	all := chains(run.InOrder, steps)
	if run.UndoTogether {
		all = slices.Collect(slices.Chunk(slices.Concat(all...), 1))
	}
	group.SetLimit(s.parallel(len(all)))
	var events sync.WaitGroup
	for _, chain := range all {
		group.Go(func() error {
			for _, i := range slices.Backward(chain) {
				outcomes[i] = s.undoStep(ctx, w, run, steps[i], allow)
				if outcomes[i].err != nil {
					continue
				}
				if done := outcomes[i].step; done.State != ledger.StatePermanent {
					events.Go(func() { s.reverted(ctx, run, done, by) })
				}
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in outcomes, by step
	events.Wait()
	return outcomes
}

func (s *Session) undoStep(
	ctx context.Context, w *ledger.Writer, run ledger.Run, step ledger.Step, allow Allowances,
) outcome {
	if err := ctx.Err(); err != nil {
		return outcome{step: step, err: fmt.Errorf("undo %s: %w", step.Target, context.Cause(ctx))}
	}
	state, said, undoErr := s.undo(ctx, run, step, allow)
	undone := undoErr == nil
	// Record the result even if the user interrupts the revert.
	cleanup, cancel := s.cleanup(ctx)
	defer cancel()
	err := s.saveSurely(cleanup, w, func(run *ledger.Run) error {
		step := run.Step(step.ID)
		if undoErr != nil {
			step.Message = text(undoErr)
			return nil
		}
		step.State, step.Message = state, shorten(said, ledger.MessageLimit(len(run.Steps)))
		if state != ledger.StatePermanent {
			step.Undone = s.Ledger.Now()
		}
		return nil
	})
	if errors.Is(err, ledger.ErrClosed) { // another revert closed the run with the same result
		err = nil
	}
	if undoErr == nil && err != nil {
		undoErr = fmt.Errorf("%s was undone (%s), but this could not be recorded: %w", step.Target, state, err)
	}
	now := w.Run()
	switch {
	case undone && undoErr != nil:
		s.progress(step, "undone, but not recorded")
	case undoErr != nil:
		s.progress(step, "not undone") // showing the previous state would look like a success
	default:
		s.stepChanged(now, step.ID)
	}
	return outcome{*now.Step(step.ID), undoErr, undone}
}
