package exercise

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// ErrNoHints means that all hints have been given.
var ErrNoHints = errors.New("no more hints")

// Hint gives the next hint of a running exercise, which costs points, and returns the number of remaining hints. After
// the last hint, the error wraps ErrNoHints.
func (l *Lab) Hint(ctx context.Context, id string) (Taken, int, error) {
	id, err := l.pick(ctx, id)
	if err != nil {
		return Taken{}, 0, err
	}
	_, r, err := l.load(ctx, id)
	if err != nil {
		return Taken{}, 0, err
	}
	now := l.clock(ctx)()
	var taken Taken
	left := 0
	_, err = l.update(ctx, id, func(e *Exercise) error {
		if err := e.must("give a hint for", e.Open()); err != nil {
			return err
		}
		next := len(e.Hints)
		if next >= len(r.Sealed.Hints) {
			return fmt.Errorf("exercise %s: %w (%d given)", e.ID, ErrNoHints, next)
		}
		hint := r.Sealed.Hints[next]
		taken = Taken{At: now, Cost: hint.Cost, Text: hint.Text}
		e.Hints = append(e.Hints, taken)
		e.HintsLeft = len(r.Sealed.Hints) - len(e.Hints)
		left = e.HintsLeft
		return nil
	})
	return taken, left, err
}

// Submit stores the candidate's diagnosis. It may be repeated until the exercise ends. The last diagnosis counts, and
// ends the candidate's time unless something is changed afterwards; see Report.Took.
func (l *Lab) Submit(ctx context.Context, id string, diagnosis scenario.Diagnosis) (*Exercise, error) {
	if strings.TrimSpace(diagnosis.Component+diagnosis.Object+diagnosis.Field+diagnosis.Mechanism) == "" {
		return nil,
			errors.New(
				"the diagnosis is empty: specify component, object, field and mechanism, as far as you know them",
			)
	}
	for _, one := range []string{diagnosis.Component, diagnosis.Object, diagnosis.Field, diagnosis.Mechanism} {
		if len(one) > 500 {
			return nil,
				fmt.Errorf("a field of the diagnosis has %s, but the maximum is 500: move details to the explanation "+
					"field",
					count.Of(len(one), "character"))
		}
	}
	const most = 20 << 10
	if len(diagnosis.Explanation) > most {
		return nil,
			fmt.Errorf("the explanation is %d KiB, but the maximum is %d", len(diagnosis.Explanation)>>10, most>>10)
	}
	id, err := l.pick(ctx, id)
	if err != nil {
		return nil, err
	}
	now := l.clock(ctx)()
	state, err := l.stateOf(ctx, id)
	if err != nil {
		l.say("failed to record the end of the candidate's time: %v", err)
	}
	return l.update(ctx, id, func(e *Exercise) error {
		if err := e.must("submit a diagnosis for", e.Open()); err != nil {
			return err
		}
		if !e.Revealed.IsZero() {
			return &PhaseError{
				*e, "submit a diagnosis for", "the answer was revealed at " + e.Revealed.Format(time.TimeOnly),
			}
		}
		e.Diagnosis, e.Submitted, e.SubmittedState = &diagnosis, now, state
		return nil
	})
}

// Reveal returns the answer and records the time: no diagnosis is accepted afterwards.
func (l *Lab) Reveal(ctx context.Context, id string) (*scenario.Sealed, error) {
	id, err := l.pick(ctx, id)
	if err != nil {
		return nil, err
	}
	_, r, err := l.load(ctx, id)
	if err != nil {
		return nil, err
	}
	now := l.clock(ctx)()
	_, err = l.update(ctx, id, func(e *Exercise) error {
		if e.Revealed.IsZero() {
			e.Revealed = now
		}
		return nil
	})
	return &r.Sealed, err
}

// Kubeconfig creates a new kubeconfig for the candidate of a running exercise. The kubeconfig is valid until the
// exercise's time box ends.
func (l *Lab) Kubeconfig(ctx context.Context, id string) ([]byte, error) {
	id, err := l.pick(ctx, id)
	if err != nil {
		return nil, err
	}
	e, _, err := l.read(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := e.must("create a kubeconfig for", e.Open()); err != nil {
		return nil, err
	}
	if now := l.clock(ctx)(); !now.Before(e.Until) {
		over := fmt.Sprintf("its time box and the candidate's access expired at %s", e.Until.Format(time.RFC3339))
		return nil, &PhaseError{*e, "create a kubeconfig for", over}
	}
	issued, err := l.issue(ctx, e.Account.ID, e.Public.Access, e.Until)
	if err != nil {
		return nil, err
	}
	_, err = l.update(ctx, id, func(e *Exercise) error { e.Account.Until = issued.Until; return nil })
	return issued.Kubeconfig, err
}

// must returns an error if the exercise's phase does not allow an operation.
func (e Exercise) must(want string, may bool) error {
	switch {
	case may:
		return nil
	case e.Phase == Ended:
		return &PhaseError{e, want, "the exercise ended at " + e.Ended.Format(time.RFC3339) + "; start another one"}
	case e.Phase == Failed:
		return &PhaseError{e, want, e.Message + "; start another one"}
	}
	why := "the fault has not been verified yet: wait until the exercise has started"
	if e.Phase == Broken {
		why = "the lab has not been handed over yet: wait until the exercise has started"
	}
	return &PhaseError{e, want, why + "; if the start was interrupted, run: kubectl gpu-fault scenario end " + e.ID}
}
