// Package check evaluates a scenario's checks on a cluster: checks of objects, logs, events, the output of a command in
// a container, an HTTP response, permissions, or the result of a pod.
//
// A source that cannot be read is never treated as a result: the check fails with the reason, regardless of what it
// expects.
package check

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// Checker runs checks against one cluster, given by Config, Client, Dynamic and Mapper. Run may be called
// concurrently.
type Checker struct {
	Config  *rest.Config
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	Mapper  meta.RESTMapper

	// Params and Facts are the variables p and facts of expressions.
	Params map[string]any
	Facts  scenario.Facts

	// Guarded is set if a candidate may have changed the state. In that case, logs of pods in which a debug container
	// has run are rejected, because the container can write to the logs, and pods that a ReplicaSet has replaced are
	// not listed.
	Guarded bool

	// Module is the submitted Terraform module, or nil.
	Module *terraform.Module

	// Was and WasList return an object, or the objects of a selector, at the baseline; nil if the object did not exist.
	// Checks call them concurrently. If they are not set, the was variable is null.
	Was     func(ctx context.Context, ref scenario.Ref) (map[string]any, error)
	WasList func(ctx context.Context, selector scenario.Selector) ([]any, error)

	// Handler reads a runtime handler on a node and returns its type and binaryName, or nil if the handler does not
	// exist. If Handler is not set, checks of handlers fail.
	Handler func(ctx context.Context, what scenario.Handler) (map[string]any, error)

	// ProbeImage is the image for client pods, and for probes that do not specify one; it must contain wget. Empty
	// means the image for debug pods.
	ProbeImage string
	// Labels are set on all pods that a Checker creates, so that pods left by a crash can be found. They must
	// be neutral, because candidates see them.
	Labels map[string]string

	// Progress, if set, receives messages about what the checks are waiting for. Calls do not overlap.
	Progress func(text string)
	// Every is the interval between evaluations; zero means a second. The first evaluations are more frequent.
	Every time.Duration

	// ping tests whether the API server responds; it uses Client, except in tests.
	ping func(ctx context.Context) error
	// execer runs commands in containers; it uses Config, except in tests.
	execer debugpod.Execer
	// saying serializes calls of Progress.
	saying sync.Mutex
}

// Result is the result of a check.
type Result struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Message describes the problem if the check failed: in the scenario's words, or the reason why the source could
	// not be read.
	Message string `json:"message,omitempty"`
	// Saw is short, verbatim evidence: the compared value, or the last line of a log.
	Saw  string        `json:"saw,omitempty"`
	Took time.Duration `json:"took"` // in nanoseconds
	// LookedFrom and LookedUntil are the start and end of the evaluation that determined the result; zero if there was
	// none.
	LookedFrom  time.Time `json:"-"`
	LookedUntil time.Time `json:"-"`
}

// OK reports whether all checks hold.
func OK(results []Result) bool {
	for _, r := range results {
		if !r.OK {
			return false
		}
	}
	return true
}

// Run runs all checks concurrently. Each runs until it has held for the required time, or its time expires. The results
// are in the order of the checks. Run returns an error, with the results so far, if ctx is done or the API server is
// unreachable; other problems are in the results. Run deletes all pods that it created, even if ctx is done, and lists
// those that it could not delete in Message.
func (c *Checker) Run(ctx context.Context, checks []scenario.Check) ([]Result, error) {
	results, errs := make([]Result, len(checks)), make([]error, len(checks))
	base, err := c.variables()
	if err != nil {
		return results, err
	}
	var wg sync.WaitGroup
	for i, one := range checks {
		wg.Go(func() { results[i], errs[i] = c.run(ctx, one, base) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return results, context.Cause(ctx)
	}
	return results, firstOf(errs)
}

// firstOf returns only the first error, because every check reports an error if the API server is unreachable.
func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Checker) progress(format string, args ...any) {
	if c.Progress == nil {
		return
	}
	c.saying.Lock()
	defer c.saying.Unlock()
	c.Progress(fmt.Sprintf(format, args...))
}

func (c *Checker) every() time.Duration {
	if c.Every > 0 {
		return c.Every
	}
	return time.Second
}

// errNoConfig is returned for sources that need their own connections if there is no Config.
var errNoConfig = errors.New("no client configuration for the API server")

// exec returns the execer for commands in containers.
func (c *Checker) exec() (debugpod.Execer, error) {
	switch {
	case c.execer != nil:
		return c.execer, nil
	case c.Config == nil:
		return nil, errNoConfig
	}
	return debugpod.NewExecer(c.Config), nil
}
