package exercise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/containerdconfig"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/firewall"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// EndOptions configure End.
type EndOptions struct {
	// Force takes over the run from a client that is still working on it.
	Force bool
	// Restore also reverts differences outside the objects that the run created, if the scenario or the candidate's
	// permissions name them, and restores files on nodes if the files were changed again after the run. Other users may
	// also have made these changes. Without Restore, such differences are only reported, with instructions.
	Restore bool
}

// Leftovers returns what End with Restore would revert outside the objects that the exercise created, for a
// preview. Changes in namespaces that the exercise created are not included: they are deleted with the
// namespace.
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
	now, err := l.captureSince(ctx, before, e.whole())
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
		if !undone(difference) && (surely(e, r, candidate, stoodIn(before), difference.Ref) ||
			difference.Kind == baseline.Created && bindsOnly(e, stoodIn(before), now.Get(difference.Ref))) {
			restored = append(restored, Restored{Difference: difference, How: howFor(difference)})
		}
	}
	added := l.addedFiles(ctx, r, before)
	for _, node := range slices.Sorted(maps.Keys(added)) {
		for _, path := range slices.Sorted(maps.Keys(added[node])) {
			restored = append(restored, removes(node, path))
		}
	}
	return restored, nil
}

// undoes returns a predicate for the differences that reverting the run removes.
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

// End reverts the exercise's run and reports remaining differences. With Restore, it also reverts the candidate's
// changes outside the objects that the exercise created. End may be repeated, from any machine; for an exercise that
// has ended, it returns the stored result.
//
// End works even if only the run or only the exercise still exists. The error is a *NotFoundError, a
// *fault.RunningError, or describes what could not be reverted. In the last case, the exercise stays open, and End may
// be retried.
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
	if err != nil { // revert everything that does not depend on it
		l.say("%v", err)
	}
	if o.Restore && before != nil {
		if err := l.verifySeals(ctx, e, sealExercise, sealScenario, snapBefore); err != nil {
			return nil, err
		}
	}
	var own []string
	if before != nil {
		if err := l.release(ctx, e, r, before); err != nil {
			return nil, err
		}
		own = slices.DeleteFunc(slices.Clone(e.Namespaces), stoodIn(before))
	}
	ending := &Ending{APIVersion: APIVersion, Kind: KindEnding, ID: id}
	// The exercise's record names its cluster-scoped objects; a forged record must not release other users' objects.
	owned := func(ref scenario.Ref) bool { return false }
	if l.verifySeals(ctx, e, sealExercise) == nil {
		owned = e.has
	}
	if before != nil && o.Restore {
		l.removeAdded(ctx, r, before, ending)
	}
	stop := l.unblock(ctx, owned, own, blockedAfter)
	err = l.revert(ctx, id, o, ending)
	stop()
	if errors.As(err, new(*ledger.NotFoundError)) {
		l.say("run %s is no longer in the ledger; its changes are only compared, not reverted", id)
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
		l.leftOnNodes(ctx, r, before, ending)
	}
	now, err := l.conditions(ctx)
	if err != nil {
		l.say("the node conditions could not be compared: %v", err)
	}
	ending.Conditions, ending.NodeShell = newConditions(e.Conditions, now), e.Public.Access.NodeShell
	return ending, l.over(ctx, e, ending)
}

// endRun ends an exercise whose run is the only remaining record.
func (l *Lab) endRun(ctx context.Context, id string, o EndOptions, missing error) (*Ending, error) {
	ending := &Ending{APIVersion: APIVersion, Kind: KindEnding, ID: id, At: l.clock(ctx)()}
	if run, err := l.Session.Ledger.Get(ctx, id); err == nil && run.Fault != Fault {
		return nil, fmt.Errorf("%w; run %s exists, but is not an exercise; to revert the run, use: %s", missing, id,
			l.Session.Ledger.Command("revert", id))
	}
	o.Restore = false // there is no record of the candidate's permissions
	err := l.revert(ctx, id, o, ending)
	if errors.As(err, new(*ledger.NotFoundError)) {
		return nil,
			fmt.Errorf("%w, and its run was not found either; if the ledger was deleted, search for objects with a string of 14 "+
				"lowercase consonants and digits in the label app.kubernetes.io/instance, and for ClusterRoles named "+
				"lab-STRING",
				missing)
	}
	if err != nil {
		return ending, err
	}
	l.say("exercise %s is no longer in the ledger; its run was reverted, but the candidate's changes are unknown", id)
	return ending, l.forget(ctx, id)
}

// revert reverts the run.
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
		return fmt.Errorf("exercise %s has not ended: %w", id, err)
	}
	return nil
}

// notAsItWas describes the steps that could not be fully reverted. files are the steps that left a file or a firewall
// on a node because it was changed after the run.
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

// compare separates differences that the exercise or the candidate caused from other activity in the cluster.
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

// Reasons why a difference is not reverted.
var (
	errWhose = errors.New("not reverted: the candidate or another user may have created or changed it")
	errAsked = errors.New(
		"not reverted without --restore: the scenario names it, but other users may have created or changed it",
	)
)

// blockedAfter is the time after which a deletion is considered blocked.
const blockedAfter = 10 * time.Second

// putBack finds the differences from the state before the exercise. With restore, it reverts those that the scenario
// names.
func (l *Lab) putBack(
	ctx context.Context, e *Exercise, r *scenario.Resolved, before *baseline.Baseline, restore bool, ending *Ending,
) error {
	why := map[scenario.Ref]error{}
	for range 2 { // twice, because a deletion removes dependents and may unblock other changes
		now, err := l.captureSince(ctx, before, e.whole())
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
		if len(why) > 0 { // the difference could not be restored
			return nil
		}
		for _, difference := range left {
			err := errWhose
			if l.candidates(e, r, before, now, difference) {
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
	now, err := l.captureSince(ctx, before, e.whole())
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

// over records that the exercise has ended, and deletes data that is no longer needed.
func (l *Lab) over(ctx context.Context, e *Exercise, ending *Ending) error {
	ctx, cancel := outlive(ctx)
	defer cancel()
	now := l.clock(ctx)()
	ending.At = now
	_, err := l.update(ctx, e.ID, func(e *Exercise) error {
		if e.Phase == Ended { // another trainer ended it
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

// bounded returns a copy of the ending that fits into a Secret.
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
