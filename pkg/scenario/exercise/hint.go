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

// ErrNoHints says that all hints were given.
var ErrNoHints = errors.New("there are no more hints")

// Hint gives the next hint of a running exercise, for its cost, and says how many are left. The error wraps ErrNoHints
// after the last one.
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
			return fmt.Errorf("exercise %s: %w (%d were given)", e.ID, ErrNoHints, next)
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

// Submit stores what the candidate thinks is the root cause. It may be given again until the exercise ends: the last
// one counts, and ends the candidate's time if they change nothing after it; see Report.Took.
func (l *Lab) Submit(ctx context.Context, id string, diagnosis scenario.Diagnosis) (*Exercise, error) {
	if strings.TrimSpace(diagnosis.Component+diagnosis.Object+diagnosis.Field+diagnosis.Mechanism) == "" {
		return nil,
			errors.New("the diagnosis is empty: give component, object, field and mechanism, as far as they are known")
	}
	for _, one := range []string{diagnosis.Component, diagnosis.Object, diagnosis.Field, diagnosis.Mechanism} {
		if len(one) > 500 {
			return nil, fmt.Errorf("a field of the diagnosis has %s: what does not fit into 500 goes into explanation",
				count.Of(len(one), "character"))
		}
	}
	const most = 20 << 10
	if len(diagnosis.Explanation) > most {
		return nil,
			fmt.Errorf("the explanation has %d KiB, and at most %d are kept", len(diagnosis.Explanation)>>10, most>>10)
	}
	id, err := l.pick(ctx, id)
	if err != nil {
		return nil, err
	}
	now := l.clock(ctx)()
	state, err := l.stateOf(ctx, id)
	if err != nil {
		l.say("that the candidate's time ends now cannot be noted: %v", err)
	}
	return l.update(ctx, id, func(e *Exercise) error {
		if err := e.must("submit a diagnosis for", e.Open()); err != nil {
			return err
		}
		if !e.Revealed.IsZero() {
			return &PhaseError{
				*e, "submit a diagnosis for", "the answer was told at " + e.Revealed.Format(time.TimeOnly),
			}
		}
		e.Diagnosis, e.Submitted, e.SubmittedState = &diagnosis, now, state
		return nil
	})
}

// Reveal tells the answer, and remembers when: a diagnosis after it is none.
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

// Kubeconfig makes a new kubeconfig for the candidate of a running exercise, until its time box ends.
func (l *Lab) Kubeconfig(ctx context.Context, id string) ([]byte, error) {
	id, err := l.pick(ctx, id)
	if err != nil {
		return nil, err
	}
	e, _, err := l.read(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := e.must("make a kubeconfig for", e.Open()); err != nil {
		return nil, err
	}
	if now := l.clock(ctx)(); !now.Before(e.Until) {
		over := fmt.Sprintf("its time was over at %s, and so is the candidate's access", e.Until.Format(time.RFC3339))
		return nil, &PhaseError{*e, "make a kubeconfig for", over}
	}
	issued, err := l.issue(ctx, e.Account.ID, e.Public.Access, e.Until)
	if err != nil {
		return nil, err
	}
	_, err = l.update(ctx, id, func(e *Exercise) error { e.Account.Until = issued.Until; return nil })
	return issued.Kubeconfig, err
}

// must returns why something cannot be done with an exercise of this phase.
func (e Exercise) must(want string, may bool) error {
	switch {
	case may:
		return nil
	case e.Phase == Ended:
		return &PhaseError{e, want, "it ended at " + e.Ended.Format(time.RFC3339) + "; start another one"}
	case e.Phase == Failed:
		return &PhaseError{e, want, e.Message + "; start another one"}
	}
	why := "nobody has seen it broken yet: wait for its start to finish"
	if e.Phase == Broken {
		why = "it has not been handed over yet: wait for its start to finish"
	}
	return &PhaseError{e, want, why + "; if whoever started it is gone: kubectl gpu-fault scenario end " + e.ID}
}
