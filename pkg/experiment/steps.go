package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

func (p *play) steps(ctx context.Context, steps []Step) error {
	for _, s := range steps {
		if err := p.step(ctx, s); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

func (p *play) step(ctx context.Context, s Step) error {
	switch {
	case s.Inject != nil:
		prepares, err := p.inject(ctx, *s.Inject, p.last())
		if err == nil && prepares {
			err = p.retarget(ctx)
		}
		return err
	case s.Wait > 0:
		p.Say("waiting for %s", s.Wait)
		pause(ctx, s.Wait.Std())
	case len(s.Parallel) > 0:
		errs := make([]error, len(s.Parallel))
		last := p.last() // not the last run of another parallel step
		if slices.ContainsFunc(s.Parallel, func(one Step) bool { return one.Inject != nil }) {
			defer p.observer.inject()() // one fault, even if one injection ends before another begins
		}
		var all sync.WaitGroup
		for i, one := range s.Parallel {
			all.Go(func() {
				if one.Inject != nil {
					_, errs[i] = p.inject(ctx, *one.Inject, last)
					return
				}
				errs[i] = p.step(ctx, one)
			})
		}
		all.Wait()
		return errors.Join(errs...)
	case s.Revert != nil:
		p.observer.Begin()
		if p.revertAll(ctx); len(p.left) > 0 {
			return fmt.Errorf("revert: left behind: %s", strings.Join(p.left, "; "))
		}
		p.enter(PhaseReverted)
		p.observer.RevertDone()
	default:
		return p.expect(ctx, s)
	}
	return nil
}

// last returns the last run, or "".
func (p *play) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.runs) == 0 {
		return ""
	}
	return p.runs[len(p.runs)-1]
}

// inject runs the commands for a fault. It reports whether they only prepare a fault.
func (p *play) inject(ctx context.Context, i Inject, last string) (prepares bool, err error) {
	lines, err := i.commands(ctx, p.Target, p.targets, last)
	if err != nil {
		return false, err
	}
	prepares = !slices.ContainsFunc(lines, func(line []string) bool { return !IsPreparation(line) })
	if !prepares {
		p.enter(PhaseFault)
	}
	// Anything that happens after the injection of the first layer is a reaction to the fault, even if the other layers
	// have not been verified yet.
	defer p.observer.inject()()
	for _, line := range lines {
		shown := strings.Join(line, " ")
		began := time.Now()
		p.observer.Did(WhatInject, shown)
		id, err := p.Command(ctx, line)
		proof := time.Now()
		if id != "" {
			p.mu.Lock()
			if !slices.Contains(p.runs, id) {
				p.runs, p.open = append(p.runs, id), append(p.open, id)
			}
			p.mu.Unlock()
			if run, err := p.Run(ctx, id); err == nil {
				if at := ProofOf(run); !at.IsZero() {
					proof = at
				}
			}
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", shown, err)
		}
		if line[0] == LayerCUDA && line[1] == "inject" {
			p.observer.RolledOut()
		}
		p.observer.ProvenSince(began, proof, shown)
	}
	if !prepares {
		p.observer.injected()
	}
	return prepares, nil
}

// expect waits for the expectations of a step. A negative verdict does not end the experiment.
func (p *play) expect(ctx context.Context, s Step) error {
	all, err := prepare(s.Expect, s.ExpectNot)
	if err != nil {
		return err
	}
	p.Say("waiting for %s", names(all))
	checking, stop := context.WithCancel(ctx)
	defer stop()
	var checks sync.WaitGroup
	p.observer.expect(all) // sets the start of their times
	for _, one := range all {
		what := one.Check
		if one.Steady != "" {
			what = p.steady(one.Steady)
		}
		if what != nil {
			checks.Go(func() { p.check(checking, one, *what) })
		}
		if one.Load != "" {
			checks.Go(func() { p.measure(checking, one) })
		}
	}
	p.observer.await(ctx, all)
	stop()
	checks.Wait()
	return nil
}

// check repeats a check until it holds or its deadline expires.
func (p *play) check(ctx context.Context, x *pending, what scenario.Check) {
	what.Name, what.Within = cmp.Or(what.Name, x.Name), scenario.Duration(x.limit())
	results, err := p.Check(ctx, []scenario.Check{what})
	at := time.Now()
	switch {
	case ctx.Err() != nil:
	case err != nil:
		p.observer.checked(x, at, false, "", err)
	case len(results) == 1:
		p.observer.checked(x, at, results[0].OK, seen(results[0]), nil)
	}
}

// seen returns the evidence of a check: the problem, and the observed state.
func seen(r check.Result) string {
	if r.Message == "" || r.Saw == "" {
		return r.Message + r.Saw
	}
	return r.Message + "; seen: " + r.Saw
}

// checked records the result of a check.
func (o *Observer) checked(x *pending, at time.Time, ok bool, text string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x.text, x.err = text, err
	if ok {
		x.met = at
		o.add(Entry{Time: at, What: x.Name, Text: text})
	}
	o.signal()
}

// recordLast records the last observation for an expectation that is not yet met.
func (o *Observer) recordLast(x *pending, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x.text = text
}

func names(all []*pending) string {
	var words []string
	for _, p := range all {
		word := p.Name
		if p.not {
			word = "not " + word
		}
		words = append(words, word+" ("+p.limit().String()+")")
	}
	return strings.Join(words, ", ")
}
