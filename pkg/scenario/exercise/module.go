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

// maxModule is the maximum size of the module in an exercise's Secret, in bytes of JSON.
const maxModule = 64 << 10

// SubmitModule stores a Terraform module in which the candidate fixed the fault. Grade applies the module. SubmitModule
// may be called again until the exercise ends: the last module counts.
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
		return nil, fmt.Errorf("the module is %d KiB, but the maximum is %d",
			len(text)>>10, maxModule>>10)
	}
	now := l.clock(ctx)()
	return l.update(ctx, id, func(e *Exercise) error {
		const want = "submit a module for"
		if err := e.must(want, e.Open()); err != nil {
			return err
		}
		if began == nil || e.Public.Terraform == "" {
			return &PhaseError{*e, want, "the exercise was started without a module (start --terraform DIR)"}
		}
		if err := module.Within(began.Module, e.Public.Access.Namespaces); err != nil {
			return err
		}
		e.Module, e.ModuleAt = &module, now
		return nil
	})
}

// handsIn makes an attempt in the module, and submits the module as a candidate would: as files that are parsed again.
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

// withoutModule returns the grade without the checks of a module.
func withoutModule(how scenario.Grade) scenario.Grade {
	ofModule := func(one scenario.Check) bool { return one.Terraform != "" }
	how.Fixed = slices.DeleteFunc(slices.Clone(how.Fixed), ofModule)
	how.Unchanged = slices.DeleteFunc(slices.Clone(how.Unchanged), ofModule)
	return how
}

func (g *grading) sight(was *baseline.Baseline) sight {
	return sight{r: g.r, was: was, probe: g.e.Probe, module: g.e.Module, graded: true}
}

// settle is the maximum time for the changes made by a module to take effect.
const settle = 45 * time.Second

// settling extends the timeouts of checks after a module is applied, because a candidate who changes the cluster
// instead can wait before requesting a grade.
func (g *grading) settling(checks []scenario.Check) []scenario.Check {
	if g.report.Applied == nil || len(g.report.Applied.Changes) == 0 {
		return checks
	}
	longer := slices.Clone(checks)
	for i, one := range longer {
		if one.Terraform == "" { // the module itself does not change
			longer[i].Within = max(one.Within, scenario.Duration(settle))
		}
	}
	return longer
}

// apply applies the module with the candidate's own permissions.
func (g *grading) apply(ctx context.Context) error {
	as, err := g.lab.stand(ctx, g.e, g.r)
	if err != nil {
		return fmt.Errorf("apply the module for exercise %s: %w", g.e.ID, err)
	}
	g.lab.say("applying the candidate's module with the candidate's permissions")
	known := slices.Concat(g.r.Terraform.Manages, g.e.Brought)
	before, err := g.stateNow(ctx)
	if err != nil {
		return err
	}
	applied, brought, err := as.apply(ctx, *g.e.Module, known)
	applied.At = g.report.At
	g.report.Applied = &applied
	after := g.e.SubmittedState
	if g.e.waits(before) { // changes by the module do not count as further work of the candidate
		now, unseen := g.stateNow(ctx)
		after, err = now, errors.Join(err, unseen)
	}
	// Store the objects even after a failure, because a later module may omit them.
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

// stateNow returns the digest of everything that the candidate may change, if it is needed.
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

// standFor is the lifetime of the token for applying a module: the minimum that API servers allow.
const standFor = 10 * time.Minute

// stand returns a candidate client with a separate token for the candidate's account.
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

// OK reports whether the whole module was applied, or whether there is no module.
func (a *Applied) OK() bool { return a == nil || len(a.Problems) == 0 }

// results returns the result of applying the module, in the form of a check that must hold.
func (a *Applied) results() []check.Result {
	if a == nil {
		return nil
	}
	result := check.Result{
		Name: "the submitted Terraform module is applied", OK: a.OK(), Saw: "no changes",
	}
	if len(a.Changes) > 0 {
		result.Saw = strings.Join(a.Changes, ", ")
	}
	if !result.OK {
		result.Message = strings.Join(a.Problems, "; ")
	}
	return []check.Result{result}
}
