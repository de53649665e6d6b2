package check

import (
	"context"
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// source is what a check looks at. One goroutine uses it.
type source interface {
	// look reads it as it is now. An error means that it cannot be seen, for the reason that it tells.
	look(ctx context.Context) (view, error)
	// close removes what looking has made. It does so also when ctx has ended.
	close(ctx context.Context) error
}

// view is what a source looks like at one moment.
type view struct {
	vars expr.Vars
	// evidence is what is shown of it besides the values that the expression compares.
	evidence string
	// early means that it is too early to judge. A source is early for a bounded time only.
	early bool
	// starts means that what it took to get here, as the start of a pod, does not count: the check's time begins now.
	starts bool
}

// passive is a source that leaves nothing behind.
type passive func(ctx context.Context) (view, error)

func (p passive) look(ctx context.Context) (view, error) { return p(ctx) }
func (passive) close(context.Context) error              { return nil }

// errNoSource is for a check that says nothing of where to look, which Parse refuses.
var errNoSource = errors.New(
	"the check has no source: it needs object, objects, logs, events, exec, http, can, probe or terraform",
)

// source makes the source of a check. The variables that it gives are those of scenario.Check.Variables.
func (c *Checker) source(check scenario.Check, wantsWas bool) (source, error) {
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
	case check.Terraform != "":
		return passive(func(context.Context) (view, error) { return c.resources(check.Terraform) }), nil
	}
	return nil, errNoSource
}
