package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// StepError describes why a step failed.
type StepError struct {
	Step ledger.Step
	Err  error
}

func (e *StepError) Error() string { return e.Step.Target.String() + ": " + e.Err.Error() }

// Unwrap returns the underlying error.
func (e *StepError) Unwrap() error { return e.Err }

// Run runs a plan: it preflights, writes the record, locks the targets, and applies and verifies the changes.
//
// If a step fails, it is undone, later steps on its target are skipped, and steps on other targets continue. The error
// joins a *StepError for each failed step. The user can undo the successful steps with one Revert. If the plan is in
// order, Run stops at the first failure and also undoes all previous steps.
//
// If ctx is canceled, Run undoes every step that can be undone, and the error wraps the cause of ctx. Undoing and
// recording may take up to CleanupTimeout.
//
// The returned run is the record as last stored, or nil if there is no record. Targets with changes to undo stay
// locked. A run in phase Proven stays open until Revert, even if it cannot be undone. Other runs are closed if no
// change is left in place.
func (s *Session) Run(ctx context.Context, plan Plan) (*ledger.Run, error) {
	seen, err := s.clear(ctx, plan)
	if err != nil {
		return nil, err
	}
	w, err := s.record(ctx, s.draft(ctx, plan, seen))
	if err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	run := w.Run()
	s.runChanged(run)

	if !plan.NoPods {
		run.Owner = s.expire(ctx, run)
	}
	locks, err := s.Ledger.Lock(ctx, run, run.Targets())
	if err != nil {
		err = fmt.Errorf("nothing was changed: %w", err)
		return s.finish(ctx, w, nil, &results{}, err)
	}
	stop := s.beat(ctx, locks)
	defer stop()
	limited, cancel := context.WithTimeoutCause(ctx, run.Deadline.Sub(s.Ledger.Now()),
		fmt.Errorf("timed out after %s", s.timeout()))
	defer cancel()
	results := s.applyAll(limited, w, plan, run.Owner)
	return s.finish(ctx, w, locks, results, nil)
}

// expire creates the Job that deletes the run's resources when its TTL expires.
func (s *Session) expire(ctx context.Context, run ledger.Run) *ledger.Owner {
	if run.Until.IsZero() {
		return nil
	}
	owner, err := s.Ledger.Expire(ctx, run)
	if err != nil {
		s.warn("the locks and debug pods of run %s remain until it is reverted: %v", run.ID, err)
	}
	return owner
}

// beat renews a lock until stop is called, to show other clients that this one is running. The stop function waits for
// a renewal in progress.
func (s *Session) beat(ctx context.Context, locks []ledger.Lock) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // an interrupted client still undoes its changes
	var beating sync.WaitGroup
	if len(locks) > 0 {
		beating.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(s.heartbeat()):
				}
				// Best effort: if renewal fails, another client can take over the run, and the next write of this
				// client then fails.
				once, done := context.WithTimeout(ctx, 2*s.heartbeat())
				_, _ = s.Ledger.Heartbeat(once, locks[0])
				done()
			}
		})
	}
	return func() { cancel(); beating.Wait() }
}

// draft returns the record of a plan before the run starts.
func (s *Session) draft(ctx context.Context, plan Plan, seen clearance) ledger.Run {
	now := s.Ledger.Now()
	run := ledger.Run{
		ID: plan.ID, Fleet: plan.Fleet,
		Fault: plan.Fault, Summary: plan.Summary, Command: plan.Command, By: s.Whoami(ctx), From: s.From,
		Client:  s.Version,
		Created: now, Deadline: now.Add(s.timeout()), Reason: plan.Reason, Phase: ledger.Planned, InOrder: plan.InOrder,
		UndoTogether: plan.UndoTogether, Quiet: plan.Quiet,
	}
	if plan.TTL > 0 {
		run.Until = now.Add(plan.TTL)
	}
	run.Steps = plan.steps()
	for i := range run.Steps {
		if target := &run.Steps[i].Target; target.UID == "" && target.Kind == kindNode {
			target.UID = seen.uids[target.Name]
		}
	}
	return run
}

// Planned returns the record with which a run of the plan would start, for dry runs. It has no ID, owner, or times.
func (p Plan) Planned() ledger.Run {
	return ledger.Run{
		APIVersion: ledger.APIVersion, Kind: ledger.KindRun,
		Fault: p.Fault, Summary: p.Summary, Command: p.Command, Reason: p.Reason, Phase: ledger.Planned,
		Steps:   p.steps(),
		InOrder: p.InOrder, UndoTogether: p.UndoTogether, Quiet: p.Quiet,
	}
}

func (p Plan) steps() []ledger.Step {
	var steps []ledger.Step
	for i, change := range p.Changes {
		steps = append(steps, ledger.Step{
			ID: fmt.Sprint(i + 1), Target: change.Target, Action: change.Action, State: ledger.StatePlanned,
			Undo: change.Undo,
		})
	}
	return steps
}

// record writes the record. It creates the namespace if it does not exist.
func (s *Session) record(ctx context.Context, run ledger.Run) (*ledger.Writer, error) {
	w, err := s.Ledger.Create(ctx, run)
	if !apierrors.IsNotFound(err) {
		return w, err
	}
	if _, err := s.Ledger.EnsureNamespace(ctx); err != nil {
		return nil, err
	}
	return s.Ledger.Create(ctx, run)
}

// results collects the results of the steps of a run, by step ID.
type results struct {
	mu     sync.Mutex
	begun  map[string]bool
	failed map[string]error
	events sync.WaitGroup
	// allow contains the allowances of the plan, which also apply when its steps are undone.
	allow Allowances
}

func (r *results) begin(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun == nil {
		r.begun = map[string]bool{}
	}
	r.begun[id] = true
}

func (r *results) fail(id string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = map[string]error{}
	}
	r.failed[id] = errors.Join(r.failed[id], err)
}

// applyAll applies the changes in order on each target. It works on different targets in parallel unless the run is in
// order.
func (s *Session) applyAll(ctx context.Context, w *ledger.Writer, plan Plan, owner *ledger.Owner) *results {
	results := &results{allow: plan.Allow}
	harmless := func(change Change) bool { return change.Harmless }
	results.allow.ControlPlane = plan.Allow.ControlPlane || slices.ContainsFunc(plan.Changes, harmless)
	run := w.Run()
	var group errgroup.Group
	all := chains(run.InOrder, run.Steps)
	group.SetLimit(s.parallel(len(all)))
	for _, chain := range all {
		group.Go(func() error {
			for _, i := range chain {
				id := run.Steps[i].ID
				if err := s.applyStep(ctx, w, plan.Changes[i], id, owner, results); err != nil {
					results.fail(id, err)
					break // later steps in this chain depend on the failed one
				}
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in results, by step
	return results
}

// finish undoes the run if the user interrupted it, records the result, releases the locks of targets that have nothing
// left to undo, and returns the errors. early is the reason why no step was started.
func (s *Session) finish(
	ctx context.Context, w *ledger.Writer, locks []ledger.Lock, results *results, early error,
) (*ledger.Run, error) {
	stopped := ctx.Err() != nil // checked once: a Ctrl-C after this has no effect
	switch {
	case early != nil:
	case stopped:
		s.undoInterrupted(ctx, w, results)
	case w.Run().InOrder && len(results.failed) > 0:
		s.undoFailed(ctx, w, results)
	}
	cleanup, cancel := s.cleanup(ctx)
	defer cancel()
	end := func(run *ledger.Run) error {
		for i := range run.Steps {
			// A step whose start could not be recorded did not start, regardless of its recorded state.
			if step := &run.Steps[i]; !results.begun[step.ID] {
				step.State, step.Message = ledger.StateSkipped, text(results.failed[step.ID])
			}
		}
		switch {
		case run.Phase == ledger.Interrupted && !stopped: // another client has reverted the run and now owns it
		case stopped:
			run.Phase, run.Message = ledger.Interrupted, "stopped by the user"
		case early != nil:
			run.Phase, run.Message = ledger.Failed, text(early)
		case len(results.failed) > 0:
			run.Phase, run.Message = ledger.Failed,
				fmt.Sprintf("%d of %s failed", len(results.failed), count.Of(len(run.Steps), "step"))
			if run.InOrder && !slices.ContainsFunc(run.Steps, ledger.Step.InPlace) {
				run.Message = fmt.Sprintf("one of %s failed, and all changes were undone",
					count.Of(len(run.Steps), "step"))
			}
		default:
			run.Phase, run.Message = ledger.Proven, ""
		}
		// A run with a change in place stays open and visible, even if none of its changes can be undone.
		if run.Phase != ledger.Proven && !slices.ContainsFunc(run.Steps, ledger.Step.InPlace) {
			run.Closed = s.Ledger.Now()
		}
		return nil
	}
	// Close the record last: if the client dies before that, the run stays open and the next revert cleans it up.
	ahead := w.Run()
	if _ = end(&ahead); ahead.IsClosed() {
		s.tidy(cleanup, ahead, locks)
	}
	saveErr := s.saveSurely(cleanup, w, end)
	run := w.Run()
	for _, step := range run.Steps {
		if step.State == ledger.StateSkipped {
			s.stepChanged(run, step.ID)
		}
	}
	s.runChanged(run)
	pending := run.Pending()
	if !ahead.IsClosed() {
		s.tidy(cleanup, run, locks)
	}
	if run.Fleet == "" { // for a fleet, its client prunes once
		if _, err := s.Ledger.Prune(cleanup, ledger.HistoryLimit); err != nil {
			s.warn("old records are kept: %v", err)
		}
	}
	results.events.Wait()

	var errs []error
	if stopped {
		errs = append(errs, fmt.Errorf("run %s was stopped: %w", run.ID, context.Cause(ctx)))
	}
	errs = append(errs, early)
	for _, step := range run.Steps {
		if err := results.failed[step.ID]; err != nil {
			errs = append(errs, &StepError{step, err})
		}
	}
	switch {
	case run.Phase == ledger.Reverted || run.Phase == ledger.Interrupted && !stopped:
		errs = append(errs, fmt.Errorf("run %s was reverted by another client in the meantime: %s", run.ID, run.Message))
	case saveErr != nil && !errors.Is(saveErr, ledger.ErrClosed): // ErrClosed: a response was lost
		errs = append(errs, fmt.Errorf("the result of the run could not be recorded: %w", saveErr))
	}
	if len(pending) > 0 && errors.Join(errs...) != nil {
		errs = append(errs, fmt.Errorf("changes of run %s may be in place; undo them with: %s", run.ID,
			s.Ledger.Command("revert", run.ID)))
	}
	return &run, errors.Join(errs...)
}

// tidy releases the locks of targets that have no change in place, and deletes the run's Job or shortens its TTL if
// possible.
func (s *Session) tidy(ctx context.Context, run ledger.Run, locks []ledger.Lock) {
	if err := s.Ledger.Unlock(ctx, freed(locks, run.Pending())); err != nil {
		s.warn("%v", err) // the next run takes over the lock of a finished run
	}
	ended := s.Ledger.ExpireOnTime
	if run.IsClosed() {
		ended = s.Ledger.EndExpiry
	}
	if err := ended(ctx, run); err != nil {
		s.warn("%v", err)
	}
}

// freed returns the locks of targets that have no change in place.
func freed(locks []ledger.Lock, pending []ledger.Step) []ledger.Lock {
	return slices.DeleteFunc(slices.Clone(locks), func(lock ledger.Lock) bool {
		return slices.ContainsFunc(pending, func(step ledger.Step) bool { return step.Target.Same(lock.Target) })
	})
}
