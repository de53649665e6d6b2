package exercise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// StartOptions configure the start of an exercise.
type StartOptions struct {
	// For is the time box; zero means the scenario's time box.
	For time.Duration
	// Consent is set if the trainer allows potentially harmful parts of the scenario.
	Consent bool
	// Command is the trainer's command line, for the record.
	Command []string
	// Group is the value for Exercise.Group.
	Group string
	// Terraform gives the candidate the lab's Terraform module, which they may fix instead of the cluster.
	Terraform bool
}

// grace is added to the time box for the expiry of faults, to allow for the start and late grading.
const grace = 30 * time.Minute

func (o StartOptions) timeBox(r *scenario.Resolved) time.Duration {
	if o.For > 0 {
		return o.For
	}
	return time.Duration(r.Metadata.Minutes) * time.Minute
}

// Start creates the broken situation and hands it over. The returned exercise contains the candidate's Kubeconfig.
//
// All changes are one run. If the lab does not become ready, or ctx is done, everything is reverted, and the error
// contains the reason. The exercise is then Failed, and its record is kept. The error wraps a *CheckError if a check
// failed, and a *fault.PreflightError if nothing was started.
func (l *Lab) Start(ctx context.Context, r *scenario.Resolved, options StartOptions) (*Exercise, error) {
	s, err := l.prepare(ctx, r, options)
	if err != nil {
		return nil, err
	}
	if s.before, err = l.capture(ctx, s.whole()); err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	if err = l.addNodes(ctx, r, s.before); err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	run, err := s.session.Run(ctx, s.plan)
	if err == nil {
		s.e.Kubeconfig = s.kubeconfig
		return s.e, nil
	}
	if s.failed != nil && ctx.Err() == nil { // this error describes the failure better than the step's error
		if run == nil || len(run.Pending()) == 0 {
			err = nil
		}
		err = errors.Join(s.failed, err)
	}
	err = fmt.Errorf("%w; %s", err, s.afterwards(run))
	return nil, errors.Join(err, s.giveUp(ctx, run, err))
}

// prepare checks everything that can be checked before a change.
func (l *Lab) prepare(ctx context.Context, r *scenario.Resolved, options StartOptions) (*start, error) {
	if wants := r.NeedsConsent(); len(wants) > 0 && !options.Consent {
		return nil, &ConsentError{r.Metadata.Name, wants}
	}
	s, err := l.begin(ctx, r, options)
	if err != nil {
		return nil, err
	}
	if err := s.session.Preflight(ctx, s.plan); err != nil {
		return nil, err
	}
	return s, nil
}

// afterwards describes the result of reverting.
func (s *start) afterwards(run *ledger.Run) string {
	if run == nil || len(run.Pending()) == 0 {
		if run != nil {
			if left, _ := notAsItWas(*run); len(left) > 0 {
				return "reverted, except for: " + strings.Join(left, "; ")
			}
		}
		return "everything was reverted"
	}
	left := make([]string, 0, len(run.Pending()))
	for _, step := range run.Pending() {
		left = append(left, fmt.Sprintf("%s (%s)", step.Target, step.Action))
	}
	return fmt.Sprintf("could not revert: %s; to retry, run: %s", strings.Join(left, ", "),
		s.lab.Session.Ledger.Command("scenario", "end", run.ID))
}

// giveUp records that the exercise failed, and why, and deletes its snapshots. Steps that could not be reverted remain
// in the ledger.
func (s *start) giveUp(ctx context.Context, run *ledger.Run, why error) error {
	if s.e == nil || run == nil {
		return nil
	}
	ctx, cancel := outlive(ctx)
	defer cancel()
	_, err := s.lab.update(ctx, s.e.ID, func(e *Exercise) error {
		if len(run.Pending()) > 0 { // `end` continues the revert
			e.Message = why.Error()
			return nil
		}
		e.Phase, e.Message, e.Ended, e.Snapshots = Failed, why.Error(), s.clock(), nil
		return nil
	})
	if len(run.Pending()) == 0 {
		err = errors.Join(err, s.lab.forget(ctx, s.e.ID))
	}
	if err != nil {
		return fmt.Errorf("the record of the exercise could not be updated: %w", err)
	}
	return s.lab.prune(ctx)
}

// reached records a new phase of the exercise.
func (s *start) reached(ctx context.Context, change func(e *Exercise, now time.Time)) error {
	now := s.clock()
	e, err := s.lab.update(ctx, s.e.ID, func(e *Exercise) error {
		if !e.Running() {
			return &PhaseError{*e, "start", "the exercise was ended while it was starting"}
		}
		change(e, now)
		return nil
	})
	if err == nil {
		s.e = e
	}
	return err
}

// record stores the exercise and a snapshot of the cluster before any change.
func (s *start) record(ctx context.Context, recorder fault.Recorder) error {
	run := recorder.Run()
	e := &Exercise{
		ID: run.ID, Scenario: s.r.Metadata.Name, Public: s.r.Public, Seed: s.r.Seed, Params: s.r.Drawn,
		Group: s.options.Group, Minutes: int(s.options.timeBox(s.r).Minutes()),
		By: run.By, From: run.From, Phase: Starting, Created: s.clock(),
		Namespaces: s.namespaces, Owned: s.owned, Account: s.account, Nodes: nodesOf(s.r),
		HintsLeft:  len(s.r.Sealed.Hints),
		FaultUntil: run.Until, Probe: s.probe,
	}
	if !s.options.Terraform { // the candidate does not get a module
		e.Public.Terraform = ""
	}
	var err error
	if e.Conditions, err = s.lab.conditions(ctx); err != nil {
		return err
	}
	if err := s.lab.create(ctx, e, s.r); err != nil {
		return err
	}
	s.e = e
	n, err := s.lab.keep(ctx, e, snapBefore, s.before)
	if err != nil {
		return err
	}
	if err := s.write(ctx, recorder, e.seals); err != nil {
		return err
	}
	return s.reached(ctx, func(e *Exercise, _ time.Time) { e.Snapshots = map[string]int{snapBefore: n} })
}

// busy returns an error if another exercise uses a namespace of this one.
func (s *start) busy(ctx context.Context) error {
	all, err := s.lab.List(ctx)
	if err != nil {
		return err
	}
	for _, e := range all {
		if !e.Running() {
			continue
		}
		for _, namespace := range s.namespaces {
			if slices.Contains(e.Namespaces, namespace) {
				return &BusyError{e, namespace, s.lab.Session.Ledger.Command("scenario", "end", e.ID)}
			}
		}
	}
	return nil
}

// startPatience is the minimum timeout of checks that wait for the lab to start or to break. On a busy cluster,
// everything takes longer, which is not an error.
const startPatience = scenario.Duration(90 * time.Second)

// patient returns the checks, with a minimum timeout for those that wait.
func patient(checks []scenario.Check, least scenario.Duration) []scenario.Check {
	longer := slices.Clone(checks)
	for i := range longer {
		if longer[i].Within > 0 {
			longer[i].Within = max(longer[i].Within, least)
		}
	}
	return longer
}

// hold runs checks that must hold for the lab to match the scenario.
func (s *start) hold(ctx context.Context, otherwise string, checks []scenario.Check) (string, error) {
	if len(checks) == 0 {
		return "no checks", nil
	}
	results, err := s.lab.check(ctx, sight{r: s.r, probe: s.probe}, patient(checks, startPatience))
	if err != nil {
		return "", err
	}
	var held []string
	for _, result := range results {
		if !result.OK {
			s.failed = &CheckError{otherwise, results}
			return "", s.failed
		}
		held = append(held, fmt.Sprintf("%s (%s)", result.Name, result.Took.Round(100*time.Millisecond)))
	}
	return strings.Join(held, "; "), nil
}
