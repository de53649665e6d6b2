package exercise

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// The verdicts of a Row.
const (
	Passed  = "passed"
	NotPass = "failed"
	Errored = "error"
)

// Row is one attempt of a selftest: a solution or a wrong fix, made by the candidate's own rights in an exercise of its
// own.
type Row struct {
	Scenario string `json:"scenario"`
	Seed     int64  `json:"seed"`
	Attempt  string `json:"attempt"`
	Solution bool   `json:"solution"`
	Wanted   string `json:"wanted"` // Passed or NotPass
	Got      string `json:"got"`    // these, or Errored when it could not be judged
	OK       bool   `json:"ok"`
	// Why says what is not as it should be, and otherwise why a wrong fix has failed.
	Why   string `json:"why,omitempty"`
	Score int    `json:"score"`
	// These are in nanoseconds: from the start to confirmed broken, grading, and all of it.
	Broken time.Duration `json:"broken"`
	Grade  time.Duration `json:"grade"`
	Took   time.Duration `json:"took"`
}

// SelftestError says that a solution was not graded as passed, a wrong fix not as failed, or that something was left.
type SelftestError struct{ Wrong, Of int }

func (e *SelftestError) Error() string {
	return fmt.Sprintf("%d of %s not graded as expected", e.Wrong, count.Of(e.Of, "attempt"))
}

// Selftest plays a scenario with each of the seeds, once for each of its solutions, which must pass, and each of its
// wrong fixes, which must not. Of each exercise nothing may be left, and the candidate may find no answer. each hears
// of each attempt when it is over.
//
// The error is a *SelftestError when something is not as it should be, or says why it could not go on.
func (l *Lab) Selftest(ctx context.Context, s *scenario.Scenario, seeds []int64, each func(Row)) error {
	return l.SelftestAll(ctx, []*scenario.Scenario{s}, seeds, 1, each)
}

// SelftestAll is Selftest for many, some at the same time: as many as parallel, as far as they have nothing in common.
func (l *Lab) SelftestAll(
	ctx context.Context, all []*scenario.Scenario, seeds []int64, parallel int, each func(Row),
) error {
	var trials []*trial
	for _, s := range all {
		for _, seed := range seeds {
			more, err := l.trials(ctx, s, seed)
			if err != nil {
				return fmt.Errorf("scenario %s, seed %d: %w", s.Metadata.Name, seed, err)
			}
			trials = append(trials, more...)
		}
	}
	wrong, done := 0, 0
	jobs := make([]job, len(trials))
	for i, t := range trials {
		jobs[i] = job{keys: t.keys, do: func() (report func()) {
			row := t.run(ctx)
			return func() {
				done++
				if !row.OK {
					wrong++
				}
				if each != nil {
					each(row)
				}
			}
		}}
	}
	runJobs(ctx, jobs, parallel)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case wrong > 0:
		return &SelftestError{wrong, done}
	}
	return nil
}

// trial is one attempt that is going to be made.
type trial struct {
	lab      *Lab
	scenario *scenario.Scenario
	seed     int64
	name     string
	solution bool
	search   bool     // also looks whether the candidate finds the answer
	keys     []string // what it must have for itself
}

// trials returns those of a scenario and a seed.
func (l *Lab) trials(ctx context.Context, s *scenario.Scenario, seed int64) ([]*trial, error) {
	r, err := l.Resolve(ctx, s, seed, nil)
	if err != nil {
		return nil, err
	}
	keys := keysOf(r)
	var all []*trial
	for _, solution := range []bool{true, false} {
		attempts := r.Sealed.WrongFixes
		if solution {
			attempts = r.Sealed.Solutions
		}
		if l.Sample {
			attempts = sampled(attempts, seed)
		}
		for _, attempt := range attempts {
			all = append(all, &trial{
				lab: l, scenario: s, seed: seed, name: attempt.Name, solution: solution, search: len(all) == 0,
				keys: keys,
			})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("it has neither solutions nor wrong fixes")
	}
	return all, nil
}

// sampled returns one of the attempts, drawn by the seed: consecutive seeds draw each of them in turn.
func sampled(attempts []scenario.Attempt, seed int64) []scenario.Attempt {
	n := int64(len(attempts))
	if n == 0 {
		return nil
	}
	drawn := (seed%n + n) % n
	return attempts[drawn : drawn+1]
}

// run makes the attempt and says what came of it.
func (t *trial) run(ctx context.Context) Row {
	row := Row{
		Scenario: t.scenario.Metadata.Name, Seed: t.seed, Attempt: t.name, Solution: t.solution, Wanted: NotPass,
		Got: Errored,
	}
	if t.solution {
		row.Wanted = Passed
	}
	began := time.Now()
	problem := t.play(ctx, &row)
	row.Took = time.Since(began)
	row.OK = problem == nil && row.Got == row.Wanted
	if problem != nil {
		row.Why = strings.Join(strings.Fields(problem.Error()), " ")
	}
	return row
}

// play starts an exercise, makes the attempt, grades it, and ends it. The error is what should not be, besides the
// verdict.
func (t *trial) play(ctx context.Context, row *Row) error {
	r, err := t.lab.Resolve(ctx, t.scenario, t.seed, nil)
	if err != nil {
		return err
	}
	attempt, err := find(r, t.name, t.solution)
	if err != nil {
		return err
	}
	began := time.Now()
	e, err := t.lab.Start(ctx, r,
		StartOptions{Consent: true, Terraform: attempt.Terraform, Command: []string{"selftest"}})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	row.Broken = e.BrokenAt.Sub(e.Created)
	if row.Broken <= 0 {
		row.Broken = time.Since(began)
	}
	problem := t.judge(ctx, e, r, attempt, row)
	// Also after Ctrl-C: nothing is left behind.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*cleanup)
	defer cancel()
	ending, err := t.lab.End(clean, e.ID, EndOptions{Restore: true})
	switch {
	case err != nil:
		problem = errors.Join(problem, fmt.Errorf("end: %w", err))
	case !ending.Clean():
		problem = errors.Join(problem, fmt.Errorf("left after the end: %s", ending.inWords()))
	}
	return problem
}

// judge makes the attempt and has it graded, with the right diagnosis: what counts is what was done.
func (t *trial) judge(
	ctx context.Context, e *Exercise, r *scenario.Resolved, attempt scenario.Attempt, row *Row,
) error {
	c, err := t.lab.as(ctx, e, r)
	if err != nil {
		return err
	}
	var problem error
	if t.search {
		found, err := c.leaks(ctx)
		if err != nil {
			return err
		}
		if len(found) > 0 {
			problem = fmt.Errorf("the candidate can read the answer: %s",
				strings.Join(found[:min(5, len(found))], "; "))
		}
	}
	refused, patience := "", full
	if !t.solution {
		patience = hasty
	}
	if attempt.Terraform {
		if err := t.lab.handsIn(ctx, e, r, attempt); err != nil {
			return errors.Join(problem, err)
		}
	} else if made, err := c.attempt(ctx, attempt.Steps); err != nil {
		if t.solution || !apierrors.IsForbidden(err) {
			return errors.Join(problem, err)
		}
		refused = err.Error() // that it may not be done is a way to fail
		if made == 0 {        // it is as broken as it was
			patience = none
		}
	}
	if _, err := t.lab.Submit(ctx, e.ID, rightOf(r.Sealed.RootCause)); err != nil {
		return errors.Join(problem, err)
	}
	began := time.Now()
	report, err := t.lab.grade(ctx, e.ID, patience, nil)
	if err != nil {
		return errors.Join(problem, err)
	}
	row.Grade, row.Score, row.Got, row.Why = time.Since(began), report.Score, NotPass,
		strings.Join(report.Reasons, "; ")
	if report.Passed {
		row.Got = Passed
	}
	if refused != "" {
		row.Why = "not allowed: " + refused
	}
	for _, score := range report.Diagnosed {
		if !score.Right {
			problem = errors.Join(problem,
				fmt.Errorf("the scenario's own %s %q does not count as right", score.Field, score.Got))
		}
	}
	return problem
}

// find finds an attempt again in a scenario that was resolved anew.
func find(r *scenario.Resolved, name string, solution bool) (scenario.Attempt, error) {
	attempts := r.Sealed.WrongFixes
	if solution {
		attempts = r.Sealed.Solutions
	}
	for _, attempt := range attempts {
		if attempt.Name == name {
			return attempt, nil
		}
	}
	return scenario.Attempt{}, fmt.Errorf("with what the cluster is like now it has no attempt %q", name)
}

// rightOf returns the diagnosis that is right.
func rightOf(root scenario.RootCause) scenario.Diagnosis {
	return scenario.Diagnosis{
		Component: root.Component.Value, Object: root.Object.Value, Field: root.Field.Value,
		Mechanism: root.Mechanism.Value, Explanation: "selftest",
	}
}

// inWords returns what was left.
func (e Ending) inWords() string {
	if !e.Compared {
		return "nobody knows: there was nothing to compare with"
	}
	var left []string
	for _, one := range e.Left {
		text := inWords(one.Difference)
		if one.Why != "" {
			text += ": " + one.Why
		}
		left = append(left, text)
	}
	return strings.Join(append(left, e.Files...), "; ")
}
