package check

import (
	"context"
	"errors"
	"maps"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// source is the state that a check inspects. It is used by a single goroutine.
type source interface {
	// look reads the current state. An error means that the state cannot be read.
	look(ctx context.Context) (view, error)
	// close deletes everything that the look method created, even if ctx is done.
	close(ctx context.Context) error
}

// view is the state of a source at one time.
type view struct {
	vars expr.Vars
	// evidence is reported in addition to the values that the expression compares.
	evidence string
	// early means that it is too early to evaluate the check. A source is early only for a limited time.
	early bool
	// starts means that the time so far, such as for starting a pod, does not count: the check's time starts now.
	starts bool
}

// passive is a source that creates nothing.
type passive func(ctx context.Context) (view, error)

func (p passive) look(ctx context.Context) (view, error) { return p(ctx) }
func (passive) close(context.Context) error              { return nil }

// errNoSource is for a check without a source, which Parse rejects.
var errNoSource = errors.New(
	"the check has no source: must have one of object, objects, logs, events, exec, http, can, probe, handler, terraform",
)

// source creates the source of a check. It provides the variables of scenario.Check.Variables.
func (c *Checker) source(check scenario.Check, wantsWas bool) (source, error) {
	main, err := c.mainSource(check, wantsWas)
	if err != nil || len(check.With) == 0 {
		return main, err
	}
	return compared{main, c, check.With}, nil
}

// compared is a source with the additional objects of the check.
type compared struct {
	source
	checker *Checker
	with    map[string]scenario.Selector
}

func (s compared) look(ctx context.Context) (view, error) {
	seen, err := s.source.look(ctx)
	if err != nil || seen.early {
		return seen, err
	}
	lists := map[string]any{}
	for name, selector := range s.with {
		more, err := s.checker.objects(ctx, selector, false)
		if err != nil {
			return view{}, err
		}
		lists[name] = more.vars["list"]
	}
	seen.vars = maps.Clone(seen.vars)
	seen.vars["with"] = lists
	return seen, nil
}

func (c *Checker) mainSource(check scenario.Check, wantsWas bool) (source, error) {
	switch {
	case check.Object != nil:
		return passive(func(ctx context.Context) (view, error) { return c.object(ctx, *check.Object, wantsWas) }), nil
	case check.Objects != nil:
		return passive(func(ctx context.Context) (view, error) { return c.objects(ctx, *check.Objects, wantsWas) }), nil
	case check.Logs != nil:
		return passive(func(ctx context.Context) (view, error) { return c.logs(ctx, *check.Logs) }), nil
	case check.Events != nil:
		return passive(func(ctx context.Context) (view, error) { return c.events(ctx, *check.Events) }), nil
	case check.Exec != nil:
		return passive(func(ctx context.Context) (view, error) { return c.command(ctx, *check.Exec) }), nil
	case check.HTTP != nil && check.HTTP.Service != "":
		return passive(func(ctx context.Context) (view, error) { return c.service(ctx, *check.HTTP) }), nil
	case check.HTTP != nil:
		return newAsker(c, *check.HTTP), nil
	case check.Can != nil:
		return passive(func(ctx context.Context) (view, error) { return c.can(ctx, *check.Can) }), nil
	case check.Probe != nil:
		return newProbe(c, check), nil
	case check.Handler != nil:
		return c.handler(*check.Handler), nil
	case check.Terraform != "":
		return passive(func(context.Context) (view, error) { return c.resources(check.Terraform) }), nil
	}
	return nil, errNoSource
}
