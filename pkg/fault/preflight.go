package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// PreflightError lists all problems that prevent a plan from running.
type PreflightError struct{ Problems []error }

func (e *PreflightError) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].Error()
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s:", count.Of(len(e.Problems), "problem"))
	for _, problem := range e.Problems {
		fmt.Fprintf(&text, "\n  - %s", strings.ReplaceAll(problem.Error(), "\n", "\n    "))
	}
	return text.String()
}

// Unwrap returns the problems.
func (e *PreflightError) Unwrap() []error { return e.Problems }

// clearance is the result of a successful preflight, with the data that Run needs from it.
type clearance struct {
	at   time.Time
	uids map[string]string // node UIDs by node name
}

// clearanceLife is the time for which Run trusts a preflight. If the user takes longer to confirm, Run repeats the
// preflight.
const clearanceLife = 30 * time.Second

// Preflight runs all checks that are possible before a change, and changes nothing. The error is a *PreflightError with
// every problem, or the error of ctx.
func (s *Session) Preflight(ctx context.Context, plan Plan) error {
	seen, err := s.preflight(ctx, plan)
	if err != nil {
		return err
	}
	s.clearing.Lock()
	defer s.clearing.Unlock()
	if s.cleared == nil {
		s.cleared = map[string]clearance{}
	}
	s.cleared[fingerprint(plan)] = seen
	return nil
}

// clear returns the plan's clearance. A clearance is valid for one run, because a run changes the cluster.
func (s *Session) clear(ctx context.Context, plan Plan) (clearance, error) {
	s.clearing.Lock()
	key := fingerprint(plan)
	seen, ok := s.cleared[key]
	delete(s.cleared, key)
	s.clearing.Unlock()
	if ok && s.Ledger.Now().Sub(seen.at) < clearanceLife {
		return seen, nil
	}
	return s.preflight(ctx, plan)
}

func fingerprint(plan Plan) string {
	var targets []string
	for _, change := range plan.Changes {
		targets = append(targets, fmt.Sprintf("%+v %q %q", change.Target, change.Action, change.Undo.Kind))
	}
	return fmt.Sprintf("%q %q %q %+v %+v %s %q %d", plan.Fault, plan.Summary, targets, plan.Needs, plan.Allow, plan.TTL,
		plan.Reason, len(plan.Checks))
}

func (s *Session) preflight(ctx context.Context, plan Plan) (clearance, error) {
	seen := clearance{at: s.Ledger.Now(), uids: map[string]string{}}
	if err := s.validate(plan); err != nil {
		return seen, &PreflightError{[]error{err}}
	}
	var (
		nodes              []corev1.Node
		refusals           []*ledger.LockedError
		nodesErr, locksErr error
		accessErr          error
		markErr            error
		othersErr          error
		checkErrs          = make([]error, len(plan.Checks))
		group              errgroup.Group
	)
	group.SetLimit(DefaultParallel)
	if len(nodeTargets(plan)) > 0 {
		group.Go(func() error { nodes, nodesErr = s.nodes(ctx); return nil })
	}
	group.Go(func() error { refusals, locksErr = s.Ledger.Refusals(ctx); return nil })
	group.Go(func() error { accessErr = s.checkAccess(ctx, plan); return nil })
	group.Go(func() error { markErr = s.Ledger.CheckNamespace(ctx); return nil })
	if !plan.NoPods {
		group.Go(func() error { othersErr = s.checkNamespaceAccess(ctx); return nil })
	}
	for i, check := range plan.Checks {
		group.Go(func() error { checkErrs[i] = guard(func() error { return check(ctx) }); return nil })
	}
	_ = group.Wait()
	if ctx.Err() != nil {
		return seen, fmt.Errorf("preflight: %w", context.Cause(ctx))
	}

	problems := checkNamespaces(plan, s.Ledger.Namespace)
	if nodesErr == nil {
		problems = append(problems, checkNodes(plan, nodes)...)
		problems = append(problems, checkBlastRadius(plan, nodes, refusals)...)
	}
	for _, refusal := range refusals {
		if hasTarget(plan, refusal.Target) {
			problems = append(problems, refusal)
		}
	}
	problems = append(problems, accessErr)
	for _, err := range append([]error{markErr, othersErr, nodesErr, locksErr}, checkErrs...) {
		// accessErr already reports missing permissions, with more detail.
		if accessErr == nil || !apierrors.IsForbidden(err) {
			problems = append(problems, err)
		}
	}
	if problems = compact(problems); len(problems) > 0 {
		return seen, &PreflightError{problems}
	}
	for _, node := range nodes {
		seen.uids[node.Name] = string(node.UID)
	}
	return seen, nil
}

// validate rejects plans that could not be undone. Such a plan is a bug in the fault.
func (s *Session) validate(plan Plan) error {
	if plan.Fault == "" || len(plan.Changes) == 0 {
		return errors.New("the plan changes nothing")
	}
	for _, change := range plan.Changes {
		_, known := s.Undoers[change.Undo.Kind]
		switch {
		case change.Apply == nil || change.Target.Kind == "" || change.Target.Name == "":
			return fmt.Errorf("the plan for %s is incomplete", change.Target)
		case !known && change.Undo.Kind != ledger.UndoNone:
			return fmt.Errorf("the plan for %s has an unknown kind of undo %q", change.Target,
				change.Undo.Kind)
		}
	}
	return nil
}

func hasTarget(plan Plan, target ledger.Target) bool {
	for _, change := range plan.Changes {
		if change.Target.Same(target) {
			return true
		}
	}
	return false
}

// compact drops nil errors and duplicate messages, because several changes can fail for the same reason.
func compact(errs []error) []error {
	said := map[string]bool{}
	return slices.DeleteFunc(errs, func(err error) bool {
		if err == nil || said[err.Error()] {
			return true
		}
		said[err.Error()] = true
		return false
	})
}
