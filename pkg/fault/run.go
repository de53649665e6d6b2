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

// StepError says what went wrong with one step.
type StepError struct {
	Step ledger.Step
	Err  error
}

func (e *StepError) Error() string { return e.Step.Target.String() + ": " + e.Err.Error() }

// Unwrap returns what went wrong.
func (e *StepError) Unwrap() error { return e.Err }

// Run makes the changes of a plan: it preflights, writes the record, locks the targets, applies and proves.
//
// When a step fails, it is undone, later steps on its target are skipped, and the steps on other targets go on: what
// lands there is what the user asked for, and one Revert undoes it. The error joins a *StepError for each. A plan in
// order stops there, and all that was done before is undone too.
//
// When ctx ends, everything is undone that can be, and the error wraps ctx's cause. Undoing and recording go on for
// CleanupTimeout.
//
// The returned run is the record as last stored; nil when there is none. Locks stay with the targets where something
// has to be undone. A run that is proven stays open until Revert, also one that cannot be undone; others are closed
// when nothing is left in place.
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
		fmt.Errorf("not done within %s", s.timeout()))
	defer cancel()
	results := s.applyAll(limited, w, plan, run.Owner)
	return s.finish(ctx, w, locks, results, nil)
}

// expire arranges that what belongs to the run goes away when its time is up.
func (s *Session) expire(ctx context.Context, run ledger.Run) *ledger.Owner {
	if run.Until.IsZero() {
		return nil
	}
	owner, err := s.Ledger.Expire(ctx, run)
	if err != nil {
		s.warn("locks and debug pods of run %s go away only when it is reverted: %v", run.ID, err)
	}
	return owner
}

// beat renews a lock until it is stopped, so that others see that this client lives. Stopping it waits for a renewal
// under way.
func (s *Session) beat(ctx context.Context, locks []ledger.Lock) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // a client that is stopped still undoes
	var beating sync.WaitGroup
	if len(locks) > 0 {
		beating.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(s.heartbeat()):
				}
				// Best effort: who cannot renew can be taken over, and then finds that it may not write.
				once, done := context.WithTimeout(ctx, 2*s.heartbeat())
				_, _ = s.Ledger.Heartbeat(once, locks[0])
				done()
			}
		})
	}
	return func() { cancel(); beating.Wait() }
}

// draft returns the record of a plan before anything happens.
func (s *Session) draft(ctx context.Context, plan Plan, seen clearance) ledger.Run {
	now := s.Ledger.Now()
	run := ledger.Run{
		Fault: plan.Fault, Summary: plan.Summary, Command: plan.Command, By: s.whoami(ctx), From: s.From,
		Client:  s.Version,
		Created: now, Deadline: now.Add(s.timeout()), Reason: plan.Reason, Phase: ledger.Planned, InOrder: plan.InOrder,
		Quiet: plan.Quiet,
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

// Planned returns the record as a run of the plan would begin, for dry runs: without ID, owner and times.
func (p Plan) Planned() ledger.Run {
	return ledger.Run{
		APIVersion: ledger.APIVersion, Kind: ledger.KindRun,
		Fault: p.Fault, Summary: p.Summary, Command: p.Command, Reason: p.Reason, Phase: ledger.Planned,
		Steps:   p.steps(),
		InOrder: p.InOrder, Quiet: p.Quiet,
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

// record writes the record, in a namespace that is created when it does not exist.
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

// results collects what the steps of a run came to, by step ID.
type results struct {
	mu     sync.Mutex
	begun  map[string]bool
	failed map[string]error
	events sync.WaitGroup
	// allow is what the plan allowed, for the undo of what it did.
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

// applyAll makes the changes: in their order on each target, on many targets at the same time unless the run is in
// order.
func (s *Session) applyAll(ctx context.Context, w *ledger.Writer, plan Plan, owner *ledger.Owner) *results {
	results := &results{allow: plan.Allow}
	harmless := func(change Change) bool { return change.Harmless }
	results.allow.ControlPlane = plan.Allow.ControlPlane || slices.ContainsFunc(plan.Changes, harmless)
	run := w.Run()
	var group errgroup.Group
	group.SetLimit(s.parallel())
	for _, chain := range chains(run, run.Steps) {
		group.Go(func() error {
			for _, i := range chain {
				id := run.Steps[i].ID
				if err := s.applyStep(ctx, w, plan.Changes[i], id, owner, results); err != nil {
					results.fail(id, err)
					break // what comes after it in this chain was meant to follow it
				}
			}
			return nil
		})
	}
	_ = group.Wait() // the errors are in results, by step
	return results
}

// finish undoes a run that the user stopped, writes how the run ended, frees the locks of targets where nothing is left
// to undo, and says what went wrong. early is why no step was begun.
func (s *Session) finish(
	ctx context.Context, w *ledger.Writer, locks []ledger.Lock, results *results, early error,
) (*ledger.Run, error) {
	stopped := ctx.Err() != nil // asked once: a Ctrl-C from now on comes too late
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
			// One whose beginning could not be recorded was not begun, whatever the record says.
			if step := &run.Steps[i]; !results.begun[step.ID] {
				step.State, step.Message = ledger.StateSkipped, text(results.failed[step.ID])
			}
		}
		switch {
		case run.Phase == ledger.Interrupted && !stopped: // by a revert from elsewhere, which has the say now
		case stopped:
			run.Phase, run.Message = ledger.Interrupted, "stopped by the user"
		case early != nil:
			run.Phase, run.Message = ledger.Failed, text(early)
		case len(results.failed) > 0:
			run.Phase, run.Message = ledger.Failed,
				fmt.Sprintf("%d of %s failed", len(results.failed), count.Of(len(run.Steps), "step"))
			if run.InOrder && !slices.ContainsFunc(run.Steps, ledger.Step.InPlace) {
				run.Message = fmt.Sprintf("a step of %d failed, and all was undone", len(run.Steps))
			}
		default:
			run.Phase, run.Message = ledger.Proven, ""
		}
		// A run that left something in place stays in everybody's sight, also when nothing of it can be undone.
		if run.Phase != ledger.Proven && !slices.ContainsFunc(run.Steps, ledger.Step.InPlace) {
			run.Closed = s.Ledger.Now()
		}
		return nil
	}
	// A record is closed last: a client that dies before leaves an open run, which the next revert tidies up.
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
	if _, err := s.Ledger.Prune(cleanup, ledger.HistoryLimit); err != nil {
		s.warn("old records are kept: %v", err)
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
		errs = append(errs, fmt.Errorf("run %s was reverted by somebody else meanwhile: %s", run.ID, run.Message))
	case saveErr != nil && !errors.Is(saveErr, ledger.ErrClosed): // closed is a close whose answer was lost
		errs = append(errs, fmt.Errorf("the ledger does not say how the run ended: %w", saveErr))
	}
	if len(pending) > 0 && errors.Join(errs...) != nil {
		errs = append(errs, fmt.Errorf("changes of run %s may be in place; undo them with: %s", run.ID,
			s.Ledger.Command("revert", run.ID)))
	}
	return &run, errors.Join(errs...)
}

// tidy frees the locks of targets where nothing is left in place, and lets the run's Job end when it is of no use any
// more.
func (s *Session) tidy(ctx context.Context, run ledger.Run, locks []ledger.Lock) {
	if err := s.Ledger.Unlock(ctx, freed(locks, run.Pending())); err != nil {
		s.warn("%v", err) // a lock of a finished run is taken over by the next
	}
	ended := s.Ledger.ExpireOnTime
	if run.IsClosed() {
		ended = s.Ledger.EndExpiry
	}
	if err := ended(ctx, run); err != nil {
		s.warn("%v", err)
	}
}

// freed returns the locks of targets where nothing is left in place.
func freed(locks []ledger.Lock, pending []ledger.Step) []ledger.Lock {
	return slices.DeleteFunc(slices.Clone(locks), func(lock ledger.Lock) bool {
		return slices.ContainsFunc(pending, func(step ledger.Step) bool { return step.Target.Same(lock.Target) })
	})
}
