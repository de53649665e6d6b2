package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// revertTimeout limits the final revert, which also happens after an interruption.
const revertTimeout = 10 * time.Minute

// Lab is the environment in which an experiment runs.
type Lab struct {
	Client kubernetes.Interface
	// Command runs a command line of this tool that injects a fault, without asking for confirmation, and returns the
	// ID of the run, or "" if there is none. On failure, the ID is that of a run that may have left changes in place.
	Command func(ctx context.Context, line []string) (run string, err error)
	// Targets, if set, returns the current nodes of the target, after its pods were replaced.
	Targets func(ctx context.Context) ([]string, error)
	// Revert reverts a run.
	Revert func(ctx context.Context, run string) error
	// Run, if set, returns the record of a run, which contains the time of the verification. Otherwise, the fault
	// counts as verified when Command returns.
	Run func(ctx context.Context, run string) (*ledger.Run, error)
	// Remediator is needed only by experiments that simulate the remediation.
	Remediator Remediator
	// Load sends requests until ctx ends, if possible from a node that is not in avoid. Only experiments with load need
	// it.
	Load func(ctx context.Context, l check.Load, avoid []string, each func(check.Request)) error
	// Check runs checks. Only experiments with checks need it.
	Check func(ctx context.Context, checks []scenario.Check) ([]check.Result, error)
	// Show, if set, is called with each line on the timeline, and Say with progress messages.
	Show func(Entry)
	Say  func(format string, args ...any)
}

// play is one round of an experiment.
type play struct {
	*Lab
	*Experiment
	observer *Observer
	targets  []string
	meters   []*meter
	abort    context.CancelCauseFunc
	// unobserve ends the observation of the targets.
	unobserve func()
	// stopLoads waits until the pods of the loads are deleted.
	stopLoads func()
	// simulators are the simulators that have acted so far, and cordons contains the IDs of the runs with which they
	// cordoned nodes.
	simulators []*simulator
	cordons    []string

	mu   sync.Mutex
	open []string // runs to revert, oldest first
	runs []string
	left []string
}

// The reasons for ending an experiment early without a failure.
var (
	errNotSteady = errors.New("the steady state does not hold, so nothing was injected")
	errAborted   = errors.New("aborted")
)

// Play runs an experiment on nodes. It always reverts the faults that it has injected. It returns an error if the
// experiment could not be carried out; an unmet steady state or an exceeded limit is a result, not an error.
func (l *Lab) Play(ctx context.Context, e *Experiment, targets []string) (Result, error) {
	var all Result
	switch {
	case len(e.SimulateRemediation) > 0 && l.Remediator == nil:
		return all, errors.New("the experiment simulates remediation, but Lab.Remediator is not set")
	case len(e.Load) > 0 && l.Load == nil:
		return all, errors.New("the experiment has a load, but Lab.Load is not set")
	}
	for round := range max(e.Repeat, 1) {
		r, err := l.round(ctx, e, targets)
		if e.Repeat > 1 {
			number(r.Verdicts, round+1)
		}
		if round == 0 {
			all = r
			if r.Error != "" {
				return all, err
			}
			continue
		}
		all.Ended, all.Passed, all.Error = r.Ended, all.Passed && r.Passed, r.Error
		all.Runs, all.Verdicts = append(all.Runs, r.Runs...), append(all.Verdicts, r.Verdicts...)
		for i := range r.Load {
			r.Load[i].Name += roundSuffix(round + 1)
		}
		all.Load = append(all.Load, r.Load...)
		all.Timeline, all.LeftBehind = append(all.Timeline, r.Timeline...), append(all.LeftBehind, r.LeftBehind...)
		if r.Error != "" {
			return all, err
		}
	}
	return all, nil
}

// number adds the round to verdicts and, from the second round on, also to their names.
func number(all []Verdict, round int) {
	for i := range all {
		if all[i].Round = round; round > 1 {
			all[i].Name += roundSuffix(round)
		}
	}
}

func roundSuffix(round int) string { return fmt.Sprintf(" (%d)", round) }

// complete returns the lab with default functions in place of the optional ones that are not set.
func (l *Lab) complete() *Lab {
	c := *l
	if c.Run == nil {
		c.Run = func(_ context.Context, id string) (*ledger.Run, error) { return &ledger.Run{ID: id}, nil }
	}
	if c.Check == nil {
		c.Check = func(context.Context, []scenario.Check) ([]check.Result, error) {
			return nil, errors.New("the experiment has checks, but Lab.Check is not set")
		}
	}
	if c.Say == nil {
		c.Say = func(string, ...any) {}
	}
	return &c
}

func (l *Lab) round(ctx context.Context, e *Experiment, targets []string) (Result, error) {
	started := time.Now()
	p := &play{Lab: l.complete(), Experiment: e, observer: NewObserver(targets), targets: targets}
	p.observer.Show = l.Show
	err := p.run(ctx)
	p.revertAll(ctx)
	if p.stopLoads != nil {
		p.stopLoads()
	}
	p.uncordonAll(ctx) // last, so that no pod returns to a node that is still faulty
	r := p.observer.Result(e.Metadata.Name, started, slices.Concat(p.runs, p.cordons))
	for _, m := range p.meters {
		r.Load = append(r.Load, m.result())
	}
	r.LeftBehind, r.Simulated = p.left, e.SimulateRemediation
	if err != nil {
		r.Error = err.Error()
	}
	r.Passed = r.Passed && err == nil && len(p.left) == 0
	if errors.Is(err, errNotSteady) || errors.Is(err, errAborted) {
		err = nil
	}
	return r, err
}

func (p *play) run(ctx context.Context) error {
	if len(p.Steady) > 0 {
		p.Say("checking the steady state")
		results, err := p.Check(ctx, p.Steady)
		if err != nil {
			return fmt.Errorf("check the steady state: %w", err)
		}
		for _, r := range results {
			if !r.OK {
				return fmt.Errorf("%w: %s: %s", errNotSteady, r.Name, seen(r))
			}
		}
	}
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	p.abort = abort
	if err := p.observe(ctx); err != nil {
		return err
	}
	defer func() { p.unobserve() }()
	p.stopLoads = p.startLoads(ctx) // the loads end with ctx, but are waited for only after the revert
	if err := p.awaitLoads(ctx); err != nil {
		return err
	}
	return p.steps(ctx, p.Steps)
}

// observe starts to watch the targets, and starts the simulated remediation. Both run until p.unobserve is called.
func (p *play) observe(ctx context.Context) error {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	baseline, err := reaction.Watch(watching, reaction.Options{
		Client: p.Client, Targets: p.targets, AllNodes: p.watchesAll(), Each: p.guard(p.abort),
		Namespace: p.Target.Namespace, Selector: p.Target.Pods,
	})
	if err != nil {
		stop()
		return fmt.Errorf("observe the cluster: %w", err)
	}
	p.observer.Baseline(p.targets, baseline)
	simulated := p.simulate(ctx)
	p.unobserve = func() {
		simulated()
		stop()
	}
	return nil
}

// retarget follows a workload's pods after a preparation step has replaced them. The new pods may be on other nodes and
// belong to another ReplicaSet, so their observation starts again.
func (p *play) retarget(ctx context.Context) error {
	if p.Target.PodsOf == "" || p.Lab.Targets == nil {
		return nil
	}
	targets, err := p.Lab.Targets(ctx)
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	if !slices.Equal(targets, p.targets) {
		p.Say("the pods of %s are now running on %s", p.Target.PodsOf, strings.Join(targets, ", "))
	}
	p.unobserve()
	p.unobserve = func() {}
	p.targets = targets
	return p.observe(ctx)
}

// watchesAll reports whether the experiment has expectations about nodes other than its targets.
func (p *play) watchesAll() bool {
	var isAny func(steps []Step) bool
	isAny = func(steps []Step) bool {
		return slices.ContainsFunc(steps, func(s Step) bool {
			return slices.ContainsFunc(slices.Concat(s.Expect, s.ExpectNot), func(x Expectation) bool {
				return x.Node[celKey] != nil
			}) || isAny(s.Parallel)
		})
	}
	return p.Abort.NodesUnschedulable > 0 || isAny(p.Steps)
}

// guard passes changes to the observer, and ends the experiment if too many nodes are cordoned.
func (p *play) guard(abort context.CancelCauseFunc) func(reaction.News) {
	before, cordoned := map[string]bool{}, map[string]bool{}
	return func(n reaction.News) {
		n.Reactions = p.credit(n.Reactions)
		p.observer.News(n)
		if n.Node == nil || p.Abort.NodesUnschedulable == 0 {
			return
		}
		name, now := n.Node.Name, n.Node.Spec.Unschedulable
		if _, known := before[name]; !known {
			before[name] = now
		}
		if cordoned[name] = now && !before[name]; !now {
			delete(cordoned, name)
		}
		if most := p.Abort.NodesUnschedulable; len(cordoned) > most {
			abort(fmt.Errorf("%w: the limit for cordoned nodes is %d, and these nodes were cordoned: %s", errAborted, most,
				strings.Join(slices.Sorted(maps.Keys(cordoned)), ", ")))
		}
	}
}

// revertAll reverts all open runs, newest first.
func (p *play) revertAll(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), revertTimeout, errors.New("timeout"))
	defer cancel()
	p.mu.Lock()
	open := slices.Clone(p.open)
	p.open = nil
	p.mu.Unlock()
	p.observer.Close()
	for _, id := range slices.Backward(open) {
		began := time.Now()
		if err := p.Revert(ctx, id); err != nil {
			p.mu.Lock()
			p.left = append(p.left, fmt.Sprintf("run %s: %v", id, err))
			p.mu.Unlock()
			continue
		}
		p.observer.Reverted(began, id)
	}
}

// Lines returns the command lines that an experiment runs on nodes, for a dry run. ${run} is not replaced.
func (e *Experiment) Lines(ctx context.Context, targets []string) ([][]string, error) {
	var all [][]string
	var collect func(steps []Step) error
	collect = func(steps []Step) error {
		for _, s := range steps {
			if s.Inject != nil {
				lines, err := s.Inject.commands(ctx, e.Target, targets, "RUN")
				if err != nil {
					return err
				}
				all = append(all, lines...)
			}
			if err := collect(s.Parallel); err != nil {
				return err
			}
		}
		return nil
	}
	return all, collect(e.Steps)
}
