package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// RunningError means that the run's client is probably still running.
type RunningError struct {
	Run ledger.Run
	Now time.Time
}

func (e *RunningError) Error() string {
	who := "another client"
	if e.Run.By != "" {
		who = e.Run.By
	}
	if e.Run.From != "" {
		who += " on host " + e.Run.From
	}
	until := e.Run.Deadline.Add(ledger.ClockSkew)
	return fmt.Sprintf("run %s is still in progress on %s, until %s (in %s) at the latest: stop it there, wait, or revert with --force",
		e.Run.ID, who, until.Format(time.RFC3339), until.Sub(e.Now).Round(time.Second))
}

// Revert undoes a run that any client started, regardless of its progress, and closes the record. It may be repeated:
// it continues where the previous revert stopped, and does not change a closed run. If the run's client has not
// finished, Revert waits until the client has missed several heartbeats. If force is set, it does not wait. A client
// that is still running stops at its next step.
//
// The returned run is the updated record. The State and Message of a step show its result: reverted, superseded,
// permanent, skipped, or the previous state if the step could not be undone. The run is nil if nothing was attempted.
// The error is a *RunningError if the run's client may still be running, and a *ledger.NotFoundError if the run does
// not exist. It wraps ledger.ErrNewer if this version cannot read the record. Otherwise it joins a *StepError for each
// step that could not be undone, and the run stays open.
func (s *Session) Revert(ctx context.Context, id string, force bool) (*ledger.Run, error) {
	return s.revert(ctx, id, nil, force)
}

// RevertShown reverts a run after the user has seen its steps and confirmed. If the record now contains different
// steps, another client has written them, and RevertShown changes nothing.
func (s *Session) RevertShown(ctx context.Context, shown ledger.Run, force bool) (*ledger.Run, error) {
	return s.revert(ctx, shown.ID, &shown, force)
}

func (s *Session) revert(ctx context.Context, id string, shown *ledger.Run, force bool) (*ledger.Run, error) {
	if err := s.Ledger.CheckNamespace(ctx); err != nil {
		return nil, fmt.Errorf("revert: %w", err)
	}
	w, err := s.Ledger.Open(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("revert: %w", err)
	}
	run := w.Run()
	if shown != nil && !hasSteps(*shown, run) {
		return nil, fmt.Errorf("revert: the steps of run %s changed after they were shown, so nothing was reverted; "+
			"repeat the command to see the new steps", id)
	}
	if err := s.checkRepetition(run); err != nil {
		return nil, fmt.Errorf("revert: %w", err)
	}
	if err := s.checkRevertAccess(ctx, run); err != nil {
		return nil, err
	}
	if run.IsClosed() {
		return s.revertClosed(ctx, run)
	}
	if now := s.Ledger.Now(); run.InItsWay(now) && !force {
		for _, step := range run.Pending() {
			s.progress(step, "waiting for a sign of life from the run's client")
		}
		lives, err := s.Ledger.Lives(ctx, id, s.heartbeat())
		if err != nil {
			return nil, fmt.Errorf("revert: %w", err)
		}
		if lives {
			return nil, &RunningError{run, now}
		}
		s.warn("the client of run %s shows no sign of life: taking over the run", id)
	}
	by := s.Whoami(ctx)
	if err := s.takeOver(ctx, w, by); err != nil {
		return nil, fmt.Errorf("revert: %w", err)
	}
	for _, step := range w.Run().Pending() {
		if step.Target.Kind == kindNode {
			s.progress(step, "deleting the debug pod")
		}
	}
	// Delete the debug pods first, so that they cannot change what is being undone.
	if err := s.deletePods(ctx, id); err != nil {
		s.warn("%v", err)
	}

	var begun []ledger.Step
	for _, step := range w.Run().Steps {
		if step.InPlace() {
			begun = append(begun, step)
		}
	}
	var errs []error
	outcomes := s.undoAll(ctx, w, begun, by, s.Allow)
	for _, outcome := range outcomes {
		if outcome.err != nil {
			errs = append(errs, &StepError{outcome.step, outcome.err})
		}
	}
	errs = append(errs, s.close(ctx, w, by, outcomes))
	run = w.Run()
	s.runChanged(run)
	return &run, errors.Join(errs...)
}

// hasSteps reports whether every step of the run was shown. It does not compare states, because the run's client may
// have continued. It does not compare undo data, because that is either sealed or not used.
func hasSteps(shown, now ledger.Run) bool {
	for _, step := range now.Steps {
		was := shown.Step(step.ID)
		if was == nil || !was.Target.Same(step.Target) || was.Undo.Kind != step.Undo.Kind {
			return false
		}
	}
	return true
}

// takeOver takes over the run from its client, which may still be running. After that, the client cannot record any
// change, and therefore cannot make one.
func (s *Session) takeOver(ctx context.Context, w *ledger.Writer, by string) error {
	if !inItsWay(w.Run()) { // a run that is not in progress never becomes so again
		return nil
	}
	return w.Save(ctx, func(run *ledger.Run) error {
		if inItsWay(*run) {
			run.Phase, run.Message = ledger.Interrupted, "taken over by a revert"+of(by)
		}
		return nil
	})
}

// close closes the record if nothing is left to undo, and unlocks the targets on which nothing is left to undo. It
// unlocks them even if the record cannot be updated, for example because another client made it immutable.
func (s *Session) close(ctx context.Context, w *ledger.Writer, by string, outcomes []outcome) error {
	ctx, cancel := s.cleanup(ctx)
	defer cancel()
	// Close the record last: if the client dies before that, the run stays open and the next revert cleans it up.
	unlocked := s.unlock(ctx, w.Run(), outcomes...)
	if run := w.Run(); len(run.Pending()) == 0 {
		if err := s.Ledger.EndExpiry(ctx, run); err != nil {
			s.warn("%v", err)
		}
	}
	saved := s.saveSurely(ctx, w, func(run *ledger.Run) error {
		for i := range run.Steps {
			if step := &run.Steps[i]; step.State == ledger.StatePlanned {
				step.State = ledger.StateSkipped
			}
		}
		if n := len(run.Pending()); n > 0 {
			run.Message = fmt.Sprintf("%d of %s could not be undone", n, count.Of(len(run.Steps), "step"))
			return nil
		}
		run.Phase, run.Message, run.Closed = ledger.Reverted, reverted(by), s.Ledger.Now()
		return nil
	})
	if errors.Is(saved, ledger.ErrClosed) { // another revert closed the run, or this one did and the response was lost
		saved = nil
	}
	if saved != nil {
		saved = fmt.Errorf("the result of the revert could not be recorded; repeat the revert: %w", saved)
	}
	return errors.Join(saved, unlocked)
}

func (s *Session) unlock(ctx context.Context, run ledger.Run, outcomes ...outcome) error {
	locks, err := s.Ledger.LocksOf(ctx, run.ID)
	if err != nil {
		return err
	}
	pending := slices.DeleteFunc(run.Pending(), func(step ledger.Step) bool {
		return slices.ContainsFunc(outcomes, func(o outcome) bool { return o.undone && o.step.ID == step.ID })
	})
	return s.Ledger.Unlock(ctx, freed(locks, pending))
}

// revertClosed cleans up after a client that died between closing its run and deleting its resources. It repeats the
// messages about changes that cannot be undone. The record is not changed.
func (s *Session) revertClosed(ctx context.Context, run ledger.Run) (*ledger.Run, error) {
	if err := s.deletePods(ctx, run.ID); err != nil {
		s.warn("%v", err)
	}
	if err := s.Ledger.EndExpiry(ctx, run); err != nil {
		s.warn("%v", err)
	}
	for i, step := range run.Steps {
		// The Undoer of a permanent change only returns a message.
		if step.InPlace() && step.Undo.IsPermanent() {
			if state, said, err := s.undo(ctx, run, step, s.Allow); err == nil {
				run.Steps[i].State, run.Steps[i].Message = state, said
			}
		}
	}
	return &run, s.unlock(ctx, run)
}

func reverted(by string) string {
	if by == "" {
		return "reverted"
	}
	return "reverted by " + by
}

func of(by string) string {
	if by == "" {
		return ""
	}
	return " of " + by
}
