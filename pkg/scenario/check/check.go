// Package check looks at a cluster and reports whether what a scenario expects is so: of objects, logs, events, what a
// command in a container says, what a URL answers, what somebody may do, and what becomes of a pod.
//
// Being unable to see is never taken for an answer: a check whose source cannot be read is false, with the reason,
// whatever it expects.
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

// Checker runs checks against one cluster. Config, Client, Dynamic and Mapper are that cluster's. Run may be called
// from several goroutines.
type Checker struct {
	Config  *rest.Config
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	Mapper  meta.RESTMapper

	// Params and Facts are what expressions have as p and facts.
	Params map[string]any
	Facts  scenario.Facts

	// Module is the Terraform module that was handed in; nil when none was.
	Module *terraform.Module

	// Was and WasList, which several checks call at the same time, give what an object, or those of a selector, were at
	// the baseline; nil of an object that did not exist. Where they are not set, was is null.
	Was     func(ctx context.Context, ref scenario.Ref) (map[string]any, error)
	WasList func(ctx context.Context, selector scenario.Selector) ([]any, error)

	// ProbeImage is the image of pods that ask URLs, and of probes that name none; it has wget. Empty means the debug
	// pods' one.
	ProbeImage string
	// Labels go on all pods that a Checker makes, so that those which a crash left are found. They must be neutral:
	// candidates see them.
	Labels map[string]string

	// Progress, if set, hears what is being waited for. Calls come one at a time.
	Progress func(text string)
	// Every is the pause between two looks: a second when zero. The first looks follow each other faster.
	Every time.Duration

	// ping asks the API server whether it is there: by Client, but in tests.
	ping func(ctx context.Context) error
	// execer runs commands in containers: by Config, but in tests.
	execer debugpod.Execer
	// saying holds back what Progress must not hear at the same time.
	saying sync.Mutex
}

// Result is what became of a check.
type Result struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Message says what is wrong, when something is: the scenario's words, or why nothing could be seen.
	Message string `json:"message,omitempty"`
	// Saw is the evidence, verbatim and short: the value that was compared, the last line of a log.
	Saw  string        `json:"saw,omitempty"`
	Took time.Duration `json:"took"` // in nanoseconds
	// LookedFrom and LookedUntil are when the look that decided it began and ended; zero when there was none.
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

// Run runs all checks at the same time, each until it holds within its time and then stays so for as long as it must.
// The results are in the order of the checks. There is an error when ctx ended, with the results so far, or when the
// API server could not be asked; what a check could not see for other reasons is in its result. All pods that were made
// for it are deleted when Run returns, also when ctx ended; those that could not be are named in Message.
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

// firstOf returns the first error: when the API server is away every check says so.
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

// errNoConfig is for sources that need connections of their own.
var errNoConfig = errors.New("no configuration of the cluster's API server was given")

// exec gives what runs commands in containers.
func (c *Checker) exec() (debugpod.Execer, error) {
	switch {
	case c.execer != nil:
		return c.execer, nil
	case c.Config == nil:
		return nil, errNoConfig
	}
	return debugpod.NewExecer(c.Config), nil
}
