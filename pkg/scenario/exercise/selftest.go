package exercise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/suggest"
)

// Verdicts of a Row.
const (
	Passed  = "passed"
	NotPass = "failed"
	Errored = "error"
)

// Row is one attempt of a selftest: a solution or a wrong fix, made with the candidate's own permissions in a
// separate exercise.
type Row struct {
	Scenario string `json:"scenario"`
	Seed     int64  `json:"seed"`
	Attempt  string `json:"attempt"`
	Solution bool   `json:"solution"`
	Wanted   string `json:"wanted"` // Passed or NotPass
	Got      string `json:"got"`    // Passed or NotPass, or Errored if the attempt could not be graded
	OK       bool   `json:"ok"`
	// Why is the reason for an unexpected result, or the reason why a wrong fix failed.
	Why   string `json:"why,omitempty"`
	Score int    `json:"score"`
	// Durations, in nanoseconds: from the start until the symptom was verified, for grading, and in total.
	Broken time.Duration `json:"broken"`
	Grade  time.Duration `json:"grade"`
	Took   time.Duration `json:"took"`
}

// SelftestError means that an attempt was not graded as expected, or that a change remained.
type SelftestError struct{ Wrong, Of int }

func (e *SelftestError) Error() string {
	return fmt.Sprintf("%d of %s not graded as expected", e.Wrong, count.Of(e.Of, "attempt"))
}

// Selftest runs a scenario with each of the seeds, once for each of its solutions, which must pass, and each of its
// wrong fixes, which must fail. No exercise may leave any changes or reveal the answer to the candidate. each is called
// after each attempt.
//
// The error is a *SelftestError if a result is unexpected; any other error means that Selftest could not continue.
func (l *Lab) Selftest(ctx context.Context, s *scenario.Scenario, seeds []int64, each func(Row)) error {
	return l.SelftestAll(ctx, []*scenario.Scenario{s}, seeds, 1, each)
}

// SelftestAll is like Selftest, for several scenarios. It runs up to parallel attempts concurrently, if they share no
// resources.
func (l *Lab) SelftestAll(
	ctx context.Context, all []*scenario.Scenario, seeds []int64, parallel int, each func(Row),
) error {
	var trials []*trial
	known := map[string]bool{}
	for _, s := range all {
		planned := map[string]bool{}
		for _, seed := range seeds {
			more, err := l.trials(ctx, s, seed)
			if err != nil {
				return fmt.Errorf("scenario %s, seed %d: %w", s.Metadata.Name, seed, err)
			}
			more = l.wanted(more, known)
			if l.Once {
				more = unplanned(more, planned)
			}
			trials = append(trials, more...)
		}
	}
	if err := l.unknown(known); err != nil {
		return err
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

// trial is a planned attempt.
type trial struct {
	lab      *Lab
	scenario *scenario.Scenario
	seed     int64
	name     string
	solution bool
	search   bool     // also check whether the candidate can find the answer
	keys     []string // the keys that the trial needs exclusively
}

// trials returns the trials for a scenario and a seed.
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
		return nil, errors.New("the scenario has neither solutions nor wrong fixes")
	}
	return all, nil
}

// wanted returns the trials for the requested attempts, and adds the names of all attempts to known.
func (l *Lab) wanted(trials []*trial, known map[string]bool) []*trial {
	var left []*trial
	for _, t := range trials {
		known[t.name] = true
		if len(l.Attempts) == 0 || slices.Contains(l.Attempts, t.name) {
			t.search = len(left) == 0
			left = append(left, t)
		}
	}
	return left
}

// unknown returns an error if a requested attempt does not exist.
func (l *Lab) unknown(known map[string]bool) error {
	for _, name := range l.Attempts {
		if !known[name] {
			names := slices.Sorted(maps.Keys(known))
			if near := suggest.Nearest(name, names); near != "" {
				return fmt.Errorf("no attempt %q for these seeds; did you mean %q?", name, near)
			}
			return fmt.Errorf("no attempt %q for these seeds; supported values: %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}

// unplanned returns the trials of a seed that no previous seed has, and adds them to the planned ones.
func unplanned(trials []*trial, planned map[string]bool) []*trial {
	var left []*trial
	for _, t := range trials {
		if !planned[t.name] {
			planned[t.name] = true
			t.search = len(left) == 0
			left = append(left, t)
		}
	}
	return left
}

// sampled returns one of the attempts, selected by the seed: consecutive seeds cycle through all of them.
func sampled(attempts []scenario.Attempt, seed int64) []scenario.Attempt {
	n := int64(len(attempts))
	if n == 0 {
		return nil
	}
	drawn := (seed%n + n) % n
	return attempts[drawn : drawn+1]
}

// run runs the trial and returns the result.
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

// play starts an exercise, makes the attempt, grades it, and ends it. The error reports unexpected problems
// other than the verdict.
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
	// End the exercise even after Ctrl-C, so that no changes remain.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*cleanup)
	defer cancel()
	ending, err := t.lab.End(clean, e.ID, EndOptions{Restore: true})
	switch {
	case err != nil:
		problem = errors.Join(problem, fmt.Errorf("end: %w", err))
	case !ending.Clean():
		problem = errors.Join(problem, fmt.Errorf("not reverted: %s", ending.inWords()))
	}
	return problem
}

// judge makes the attempt and grades it with the correct diagnosis, so that the result depends only on the attempt.
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
		refused = err.Error() // a forbidden attempt counts as failed
		if made == 0 {        // nothing was changed
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
				fmt.Errorf("the scenario's own value for %s, %q, is graded as incorrect", score.Field, score.Got))
		}
	}
	return problem
}

// find finds an attempt by name in a scenario that was resolved again.
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
	return scenario.Attempt{}, fmt.Errorf("attempt %q does not exist with the current facts of the cluster", name)
}

// rightOf returns the correct diagnosis.
func rightOf(root scenario.RootCause) scenario.Diagnosis {
	return scenario.Diagnosis{
		Component: root.Component.Value, Object: root.Object.Value, Field: root.Field.Value,
		Mechanism: root.Mechanism.Value, Explanation: "selftest",
	}
}

// inWords describes the remaining differences.
func (e Ending) inWords() string {
	if !e.Compared {
		return "unknown, because there was no baseline for the comparison"
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
