package exercise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// maxModule bounds the module in an exercise's Secret, in bytes of JSON.
const maxModule = 64 << 10

// SubmitModule stores a Terraform module in which the candidate has mended the lab. Grade applies it. It may be handed
// in again until the exercise ends: the last one counts.
func (l *Lab) SubmitModule(ctx context.Context, id string, module terraform.Module) (*Exercise, error) {
	id, err := l.pick(ctx, id)
	if err != nil {
		return nil, err
	}
	_, r, err := l.load(ctx, id)
	if err != nil {
		return nil, err
	}
	began, err := r.Module()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(module)
	if err != nil {
		return nil, err
	}
	if len(text) > maxModule {
		return nil, fmt.Errorf("the module has %d KiB, and at most %d are kept: what it began with has a few",
			len(text)>>10, maxModule>>10)
	}
	now := l.clock(ctx)()
	return l.update(ctx, id, func(e *Exercise) error {
		const want = "hand in a module for"
		if err := e.must(want, e.Open()); err != nil {
			return err
		}
		if began == nil || e.Public.Terraform == "" {
			return &PhaseError{*e, want, "it was started without one (start --terraform DIR)"}
		}
		if err := module.Within(began.Module, e.Public.Access.Namespaces); err != nil {
			return err
		}
		e.Module, e.ModuleAt = &module, now
		return nil
	})
}

// handsIn makes an attempt in the module, and hands it in as a candidate would: as text that is read.
func (l *Lab) handsIn(ctx context.Context, e *Exercise, r *scenario.Resolved, attempt scenario.Attempt) error {
	source, err := r.ModuleAfter(attempt)
	if err != nil {
		return err
	}
	files, err := source.Write()
	if err != nil {
		return err
	}
	module, err := terraform.Read(files)
	if err != nil {
		return err
	}
	_, err = l.SubmitModule(ctx, e.ID, *module)
	return err
}

// withoutModule returns a grade for who handed in no module.
func withoutModule(how scenario.Grade) scenario.Grade {
	ofModule := func(one scenario.Check) bool { return one.Terraform != "" }
	how.Fixed = slices.DeleteFunc(slices.Clone(how.Fixed), ofModule)
	how.Unchanged = slices.DeleteFunc(slices.Clone(how.Unchanged), ofModule)
	return how
}

func (g *grading) sight(was *baseline.Baseline) sight {
	return sight{r: g.r, was: was, probe: g.e.Probe, module: g.e.Module}
}

// settle is how long what a module has changed may take to show.
const settle = 45 * time.Second

// settling are checks that get their time after a module was applied: who mends the cluster waits before they say that
// it is mended.
func (g *grading) settling(checks []scenario.Check) []scenario.Check {
	if g.report.Applied == nil || len(g.report.Applied.Changes) == 0 {
		return checks
	}
	longer := slices.Clone(checks)
	for i, one := range longer {
		if one.Terraform == "" { // the module itself stays as it is
			longer[i].Within = max(one.Within, scenario.Duration(settle))
		}
	}
	return longer
}

// apply brings the module into the cluster with the candidate's own rights.
func (g *grading) apply(ctx context.Context) error {
	as, err := g.lab.stand(ctx, g.e, g.r)
	if err != nil {
		return fmt.Errorf("apply the module of exercise %s: %w", g.e.ID, err)
	}
	g.lab.say("the candidate's module is applied, with their rights")
	known := slices.Concat(g.r.Terraform.Manages, g.e.Brought)
	before, err := g.stateNow(ctx)
	if err != nil {
		return err
	}
	applied, brought, err := as.apply(ctx, *g.e.Module, known)
	applied.At = g.report.At
	g.report.Applied = &applied
	after := g.e.SubmittedState
	if g.e.waits(before) { // what the module changes is not the candidate's going on
		now, unseen := g.stateNow(ctx)
		after, err = now, errors.Join(err, unseen)
	}
	// Also when it failed midway: a later module may be without it
	_, stored := g.lab.update(ctx, g.e.ID, func(e *Exercise) error {
		for _, ref := range brought {
			if !slices.Contains(e.Brought, ref) && !slices.Contains(g.r.Terraform.Manages, ref) {
				e.Brought = append(e.Brought, ref)
			}
		}
		if e.Submitted.Equal(g.e.Submitted) {
			e.SubmittedState = after
		}
		return nil
	})
	g.e.SubmittedState = after
	return errors.Join(err, stored)
}

// stateNow returns the state of what the candidate may change, where it is asked for.
func (g *grading) stateNow(ctx context.Context) (string, error) {
	if g.e.Submitted.IsZero() {
		return "", nil
	}
	now, err := g.lab.capture(ctx, g.e.Namespaces)
	if err != nil {
		return "", err
	}
	return g.e.state(now, g.lab.Mapper), nil
}

// standFor is how long the token is good by which a module is applied: the least that API servers give.
const standFor = 10 * time.Minute

// stand returns the candidate's, by a token of their account that nobody else gets.
func (l *Lab) stand(ctx context.Context, e *Exercise, r *scenario.Resolved) (*candidate, error) {
	if l.fake.stand != nil {
		return l.fake.stand(e, r), nil
	}
	issued, err := l.issue(ctx, e.Account.ID, e.Public.Access, l.clock(ctx)().Add(standFor))
	if err != nil {
		return nil, err
	}
	own := *e
	own.Kubeconfig, own.Account.Until = issued.Kubeconfig, issued.Until
	return l.as(ctx, &own, r)
}

// OK reports whether all of the module is in the cluster; without one there is nothing that is not.
func (a *Applied) OK() bool { return a == nil || len(a.Problems) == 0 }

// results returns the applying as one of the results that must be right.
func (a *Applied) results() []check.Result {
	if a == nil {
		return nil
	}
	result := check.Result{
		Name: "the Terraform module that was handed in is applied", OK: a.OK(), Saw: "nothing had to be changed",
	}
	if len(a.Changes) > 0 {
		result.Saw = strings.Join(a.Changes, ", ")
	}
	if !result.OK {
		result.Message = strings.Join(a.Problems, "; ")
	}
	return []check.Result{result}
}
