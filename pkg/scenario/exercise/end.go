package exercise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/containerdconfig"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/firewall"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// EndOptions say how far End goes.
type EndOptions struct {
	// Force takes the run away from a client that is still making it.
	Force bool
	// Restore also puts back what differs outside of what the run made, as far as the scenario or the candidate's
	// rights name it, and files of nodes that the run changed and somebody changed after it. Others may have changed
	// that meanwhile, too: without it such differences are told, with what to do, and left.
	Restore bool
}

// Leftovers returns what End with Restore would put back of what the candidate has done outside of what the exercise
// made: to tell before. What is in namespaces that the exercise made goes with them, and is not in it.
func (l *Lab) Leftovers(ctx context.Context, id string) ([]Restored, error) {
	id, err := l.pick(ctx, id)
	if err != nil {
		return nil, err
	}
	e, r, err := l.load(ctx, id)
	if err != nil {
		return nil, err
	}
	before, err := l.snapshot(ctx, e, snapBefore)
	if err != nil || before == nil {
		return nil, err
	}
	now, err := l.capture(ctx, e.whole())
	if err != nil {
		return nil, err
	}
	undone, err := l.undoes(ctx, id)
	if err != nil {
		return nil, err
	}
	left, _, err := l.compare(ctx, e, r, before, now)
	if err != nil {
		return nil, err
	}
	candidate := writersOf(r.Public.Access, l.Mapper)
	var restored []Restored
	for _, difference := range left {
		if !undone(difference) && surely(e, r, candidate, stoodIn(before), difference.Ref) {
			restored = append(restored, Restored{Difference: difference, How: howFor(difference)})
		}
	}
	return restored, nil
}

// undoes returns which differences the revert of the run takes away.
func (l *Lab) undoes(ctx context.Context, id string) (func(baseline.Difference) bool, error) {
	run, err := l.Session.Ledger.Get(ctx, id)
	if errors.As(err, new(*ledger.NotFoundError)) {
		return func(baseline.Difference) bool { return false }, nil
	}
	if err != nil {
		return nil, err
	}
	var namespaces []string
	var refs []scenario.Ref
	for _, step := range run.Pending() {
		for _, ref := range refsOf(run, step) {
			refs = append(refs, ref)
			if isNamespace(ref) {
				namespaces = append(namespaces, ref.Name)
			}
		}
	}
	return func(difference baseline.Difference) bool {
		return within(difference.Ref, namespaces) ||
			slices.ContainsFunc(refs, func(ref scenario.Ref) bool { return sameObject(ref, difference.Ref) })
	}, nil
}

// End puts everything back: it reverts the run, with Restore also deletes or changes back what the candidate left
// outside of what the exercise made, and says what is different from before. It may be repeated, from anywhere; of an
// exercise that ended it says again what was left.
//
// It works also when of the exercise only the run is there, or the run is not there any more. The error is a
// *NotFoundError, a *fault.RunningError, or says what could not be undone; then the exercise goes on, and End may be
// tried again.
func (l *Lab) End(ctx context.Context, id string, o EndOptions) (*Ending, error) {
	id, err := l.pick(ctx, id)
	if err != nil {
		return nil, err
	}
	e, r, err := l.load(ctx, id)
	if errors.As(err, new(*NotFoundError)) {
		return l.endRun(ctx, id, o, err)
	}
	if err != nil {
		return nil, err
	}
	if e.Phase == Ended && e.Ending != nil {
		return e.Ending, nil
	}
	before, err := l.snapshot(ctx, e, snapBefore)
	if err != nil { // what can be undone without it is undone
		l.say("%v", err)
	}
	if o.Restore && before != nil {
		if err := l.verifySeals(ctx, e, sealExercise, sealScenario, snapBefore); err != nil {
			return nil, err
		}
	}
	ending := &Ending{APIVersion: APIVersion, Kind: KindEnding, ID: id}
	err = l.revert(ctx, id, o, ending)
	if errors.As(err, new(*ledger.NotFoundError)) {
		l.say("the ledger has no run %s any more: what it made is only compared", id)
		err = nil
	}
	if err != nil {
		return ending, err
	}
	if err := l.sweep(ctx, e, 0); err != nil {
		l.say("%v", err)
	}
	if before != nil {
		if err := l.putBack(ctx, e, r, before, o.Restore, ending); err != nil {
			return ending, err
		}
	}
	return ending, l.over(ctx, e, ending)
}

// endRun ends an exercise of which only the run is left.
func (l *Lab) endRun(ctx context.Context, id string, o EndOptions, missing error) (*Ending, error) {
	ending := &Ending{APIVersion: APIVersion, Kind: KindEnding, ID: id, At: l.clock(ctx)()}
	if run, err := l.Session.Ledger.Get(ctx, id); err == nil && run.Fault != Fault {
		return nil, fmt.Errorf("%w; there is a run of that name, which is no exercise: undo it with: %s", missing,
			l.Session.Ledger.Command("revert", id))
	}
	o.Restore = false // nothing says what the candidate may have made
	err := l.revert(ctx, id, o, ending)
	if errors.As(err, new(*ledger.NotFoundError)) {
		return nil,
			fmt.Errorf("%w, and no run either: if its ledger was deleted, nobody knows what it made; look for objects with a word of 14 "+
				"small letters and digits, without vowels, in the label app.kubernetes.io/instance, and for ClusterRoles lab-WORD",
				missing)
	}
	if err != nil {
		return ending, err
	}
	l.say("the ledger has no exercise %s any more: its run was reverted, and what the candidate left is not known", id)
	return ending, l.forget(ctx, id)
}

// revert undoes the run.
func (l *Lab) revert(ctx context.Context, id string, o EndOptions, ending *Ending) error {
	run, err := l.session(o.Restore).Revert(ctx, id, o.Force)
	if run != nil {
		ending.Reverted, ending.Files = notAsItWas(*run)
	}
	var missing *ledger.NotFoundError
	if errors.As(err, &missing) && ending.ID != "" {
		return err
	}
	if err != nil {
		return fmt.Errorf("exercise %s is not ended: %w", id, err)
	}
	return nil
}

// notAsItWas returns what became of steps that could not simply be undone; files are those of them that leave a file or
// a firewall of a node as somebody has changed it.
func notAsItWas(run ledger.Run) (said, files []string) {
	for _, step := range run.Steps {
		switch {
		case step.Undo.Kind == UndoKind:
		case step.State == ledger.StateSuperseded, step.State == ledger.StatePermanent, step.Pending():
			said = append(said, fmt.Sprintf("%s: %s: %s", step.Target, step.State, step.Message))
			if slices.Contains([]string{containerdconfig.UndoKind, firewall.UndoKind}, step.Undo.Kind) &&
				step.State == ledger.StateSuperseded {
				files = append(files, said[len(said)-1])
			}
		}
	}
	return said, files
}

// compare tells differences that are the exercise's or the candidate's from the cluster's own life.
func (l *Lab) compare(
	ctx context.Context, e *Exercise, r *scenario.Resolved, before, now *baseline.Baseline,
) (left []baseline.Difference, elsewhere int, err error) {
	others, err := l.others(ctx, e)
	if err != nil {
		return nil, 0, err
	}
	candidate := writersOf(r.Public.Access, l.Mapper)
	for _, difference := range baseline.Diff(before, now) {
		ref := difference.Ref
		switch {
		case others(ref):
		case e.has(ref), candidate.may(ref), surely(e, r, candidate, stoodIn(before), ref):
			left = append(left, difference)
		default:
			elsewhere++
		}
	}
	return left, elsewhere, nil
}

// Why something is left as it is.
var (
	errWhose = errors.New("the candidate could do that, and so could others: it is left to you")
	errAsked = errors.New(
		"the scenario names it, and others could have changed it too: it is left to you, as nobody asked to restore it",
	)
)

// putBack sees what is different from before, and with restore undoes what the candidate left, as far as the scenario
// names it.
func (l *Lab) putBack(
	ctx context.Context, e *Exercise, r *scenario.Resolved, before *baseline.Baseline, restore bool, ending *Ending,
) error {
	why := map[scenario.Ref]error{}
	for range 2 { // what is deleted takes others along, and what was in the way of something may be gone
		now, err := l.capture(ctx, e.whole())
		if err != nil {
			return err
		}
		left, elsewhere, err := l.compare(ctx, e, r, before, now)
		if err != nil {
			return err
		}
		ending.Compared, ending.Elsewhere, ending.Left = true, elsewhere, nil
		if len(left) == 0 {
			return nil
		}
		for _, difference := range left {
			ending.Left = append(ending.Left,
				Left{Difference: difference, Why: text(why[difference.Ref]), ByHand: byHand(difference)})
		}
		if len(why) > 0 { // it was tried
			return nil
		}
		for _, difference := range left {
			err := errWhose
			if surely(e, r, writersOf(r.Public.Access, l.Mapper), stoodIn(before), difference.Ref) {
				if err = errAsked; restore {
					err = l.restore(ctx, before, now, difference)
				}
			}
			why[difference.Ref] = err
			if err == nil {
				ending.Restored = append(ending.Restored, Restored{Difference: difference, How: howFor(difference)})
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	now, err := l.capture(ctx, e.whole())
	if err != nil {
		return err
	}
	left, elsewhere, err := l.compare(ctx, e, r, before, now)
	ending.Elsewhere, ending.Left = elsewhere, nil
	for _, difference := range left {
		ending.Left = append(ending.Left,
			Left{Difference: difference, Why: text(why[difference.Ref]), ByHand: byHand(difference)})
	}
	return err
}

// over stores that the exercise has ended, and forgets what is of no use any more.
func (l *Lab) over(ctx context.Context, e *Exercise, ending *Ending) error {
	ctx, cancel := outlive(ctx)
	defer cancel()
	now := l.clock(ctx)()
	ending.At = now
	_, err := l.update(ctx, e.ID, func(e *Exercise) error {
		if e.Phase == Ended { // by another trainer, which came to the same
			return nil
		}
		if e.Phase != Failed {
			e.Phase = Ended
		}
		e.Ended, e.Ending, e.Snapshots = now, bounded(*ending), nil
		return nil
	})
	if errors.As(err, new(*NotFoundError)) {
		err = nil
	}
	return errors.Join(err, l.forget(ctx, e.ID), l.prune(ctx))
}

// bounded returns an ending that fits into a Secret.
func bounded(e Ending) *Ending {
	const most = 50
	e.Restored, e.Left = e.Restored[:min(most, len(e.Restored))], e.Left[:min(most, len(e.Left))]
	return &e
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return strings.TrimSpace(err.Error())
}
