package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// errTakenOver and errTooLate stop a client from making changes when another client may already be undoing its run.
var (
	errTakenOver = errors.New("another client is reverting this run, so no further changes are made")
	errTooLate   = errors.New("the run's deadline has passed, so no further changes are made (was the computer asleep?)")
)

// applyStep applies, verifies, and records one change. If any of these fails, it undoes the change and returns the
// error.
func (s *Session) applyStep(
	ctx context.Context, w *ledger.Writer, change Change, id string, owner *ledger.Owner, results *results,
) error {
	err := s.saveStep(ctx, w, id, func(run *ledger.Run, step *ledger.Step) error {
		run.Phase, step.State, step.Started = ledger.Applying, ledger.StateApplying, s.Ledger.Now()
		run.Owner = owner
		return nil
	})
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	results.begin(id)

	run := w.Run()
	step := *run.Step(id)
	var evidence []ledger.Evidence
	err = guard(func() (err error) {
		evidence, err = change.Apply(ctx, &recorder{s, w, step})
		return err
	})
	if err == nil && len(evidence) == 0 {
		err = errors.New("there is no evidence that the change took effect")
	}
	cleanup, cancel := s.cleanup(ctx)
	defer cancel()
	evidence = ledger.Condense(evidence, ledger.EvidenceLimit(len(run.Steps)))
	if err == nil {
		saved := s.saveSurely(cleanup, w, func(run *ledger.Run) error {
			if !inItsWay(*run) {
				return errTakenOver
			}
			step := run.Step(id)
			step.State, step.Evidence, step.Ended, step.Message = ledger.StateProven, evidence, s.Ledger.Now(), ""
			return nil
		})
		if saved == nil {
			run = w.Run()
			s.stepChanged(run, id)
			results.events.Go(func() { s.injected(ctx, run, id, nil) })
			return nil
		}
		err = fmt.Errorf("the change was made and verified, but could not be recorded: %w", saved)
	}
	return s.giveUp(cleanup, w, id, evidence, err, errors.Is(ctx.Err(), context.Canceled), results)
}

// giveUp undoes a failed step, and records both the failure and the result of the undo.
func (s *Session) giveUp(
	ctx context.Context, w *ledger.Writer, id string, evidence []ledger.Evidence, reason error, stopped bool,
	results *results,
) error {
	run := w.Run()
	step := *run.Step(id)
	step.Evidence = evidence
	state, said, undoErr := s.undo(ctx, run, step, results.allow)
	saved := s.saveSurely(ctx, w, func(run *ledger.Run) error {
		step := run.Step(id)
		step.State, step.Evidence, step.Ended, step.Message = ledger.StateFailed, evidence, s.Ledger.Now(), text(reason)
		switch {
		case undoErr != nil:
			step.Message = text(errors.Join(reason, undoErr))
		case state == ledger.StateReverted || state == ledger.StateSuperseded:
			step.Undone = s.Ledger.Now()
			if stopped { // the user interrupted the step, so it did not fail
				step.State, step.Message = state, said
			}
		}
		return nil
	})
	if saved == nil {
		run = w.Run()
		s.stepChanged(run, id)
		if run.Step(id).InPlace() {
			results.events.Go(func() { s.injected(ctx, run, id, reason) })
		}
	} else if errors.Is(saved, ledger.ErrClosed) {
		reason = errors.Join(reason, errors.New("another client has closed the run, so the run's record does not "+
			"show this error"))
	} else if !errors.Is(reason, saved) {
		reason = errors.Join(reason, fmt.Errorf("the failure could not be recorded: %w", saved))
	}
	return errors.Join(reason, undoErr)
}

// saveStep records what the client is about to do. If it returns an error, the client must not proceed.
func (s *Session) saveStep(
	ctx context.Context, w *ledger.Writer, id string, change func(*ledger.Run, *ledger.Step) error,
) error {
	err := w.Save(ctx, func(run *ledger.Run) error {
		if !inItsWay(*run) {
			return errTakenOver
		}
		// Use the wall clock, because the timer of ctx pauses while the computer sleeps.
		if !s.Ledger.Now().Before(run.Deadline) {
			return errTooLate
		}
		return change(run, run.Step(id))
	})
	if err != nil {
		return err
	}
	s.stepChanged(w.Run(), id)
	return nil
}

// inItsWay reports whether the run is still owned by its client.
func inItsWay(run ledger.Run) bool {
	return run.Phase == ledger.Planned || run.Phase == ledger.Applying
}

// saveSurely records what has been done, and retries if the API server fails.
func (s *Session) saveSurely(ctx context.Context, w *ledger.Writer, change func(*ledger.Run) error) error {
	err := fmt.Errorf("write the record of run %s: no time left", w.Run().ID)
	_ = wait.ExponentialBackoffWithContext(ctx, s.retry(), func(ctx context.Context) (bool, error) {
		err = w.Save(ctx, change)
		return err == nil || isFinal(err), nil
	})
	return err
}

// isFinal reports whether retrying cannot succeed.
func isFinal(err error) bool {
	return errors.Is(err, ledger.ErrClosed) || errors.Is(err, ledger.ErrNewer) || errors.Is(err, errTakenOver) ||
		errors.As(err, new(*ledger.NotFoundError)) || errors.As(err, new(*ledger.TooLargeError)) ||
		apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}

// recorder is the Recorder of one step.
type recorder struct {
	session *Session
	writer  *ledger.Writer
	step    ledger.Step // state when the step started
}

func (r *recorder) Run() ledger.Run { return r.writer.Run() }

func (r *recorder) Save(ctx context.Context, change func(*ledger.Step)) error {
	return r.session.saveStep(ctx, r.writer, r.step.ID, func(_ *ledger.Run, step *ledger.Step) error {
		change(step)
		step.ID, step.Target = r.step.ID, r.step.Target // the lock is for this target
		return nil
	})
}

func (r *recorder) Progress(text string) { r.session.progress(r.step, text) }

// maxMessage is the maximum length of a message in the ledger in bytes, so that a record has room for the messages of
// many failed steps.
const maxMessage = 1000

func text(err error) string {
	if err == nil {
		return ""
	}
	return shorten(err.Error(), maxMessage)
}

// shorten truncates a string to at most limit bytes.
func shorten(text string, limit int) string {
	const dots = "..."
	if len(text) <= limit {
		return text
	}
	if limit <= len(dots) {
		return ""
	}
	return strings.ToValidUTF8(text[:limit-len(dots)], "") + dots
}
