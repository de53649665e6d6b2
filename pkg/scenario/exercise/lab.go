// Package exercise plays scenarios on a cluster: it builds the broken situation, hands it to a candidate, judges what
// they did, and puts everything back.
//
// All that an exercise changes is one run of a fault.Session, so that `revert` undoes it from any machine even when
// nothing else is left of it. What the exercise remembers besides lies in Secrets in the ledger's namespace, which no
// candidate can read.
package exercise

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/containerdconfig"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/firewall"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/objects"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/access"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/terraform"
)

// Fault is the kind of fault of the runs that exercises are. An exercise's ID is its run's: scenario-x7k2mq.
const Fault = "scenario"

// Lab is where exercises are made: a cluster, with the trainer's rights. It may be used from many goroutines.
type Lab struct {
	Session *fault.Session
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Mapper must forget what it knows when it meets an unknown kind, as restmapper's deferred one does.
	Mapper meta.RESTMapper
	Config *rest.Config
	// LedgerNamespace is where the exercises' Secrets are: the Session's.
	LedgerNamespace string
	// Faults makes the changes of steps that are no plain objects; nil refuses them.
	Faults Faults
	// Allow lifts limits of the blast radius, for every exercise.
	Allow fault.Allowances
	// SimulateGPUs is how many GPUs each exercise advertises on each of some nodes, in a cluster that has none; zero
	// means that it has its own.
	SimulateGPUs int
	// Sample makes a selftest play one solution and one wrong fix for each seed, in place of all.
	Sample bool
	// Workload is the trainer's Deployment, as KIND/NAME, that exercises are played on, in WorkloadNamespace; empty
	// means that they make their own.
	Workload, WorkloadNamespace string
	// Now is the time by which time boxes are measured; nil means the API server's clock, which trainers on several
	// machines share.
	Now func() time.Time
	// Progress hears what goes on, a line at a time; nil is silent. Calls do not overlap.
	Progress func(text string)
	// ProbeImage is what probe pods run; any image with a shell and wget; empty means that of debug pods.
	ProbeImage string

	saying       sync.Mutex
	remember     sync.Mutex
	policiesSeen time.Time
	fake         fakes
}

// Faults turns steps that are faults of nodes or processes into changes, with what they need to be allowed to do.
type Faults interface {
	XID(step scenario.XID) ([]fault.Change, []fault.Permission, error)
	Runtime(step scenario.Runtime) ([]fault.Change, []fault.Permission, error)
	Firewall(step scenario.Firewall) ([]fault.Change, []fault.Permission, error)
	// CUDA looks for the workload, which exists by now. It gives one change, of that workload, and its undo has
	// workload.UndoKind.
	CUDA(ctx context.Context, step scenario.CUDA) ([]fault.Change, []fault.Permission, error)
	// Shim is the library for each architecture, and the state file of a run that is armed from the beginning.
	Shim(what scenario.CUDAFault) (library map[string][]byte, state func(ledger.Run) ([]byte, error), err error)
}

// sight is what checks of a scenario look with.
type sight struct {
	r      *scenario.Resolved
	was    *baseline.Baseline // what expressions compare with; nil where there is nothing yet
	probe  string             // marks the pods of checks
	module *terraform.Module  // that was handed in; nil when none was
}

// check runs checks of a scenario.
func (l *Lab) check(ctx context.Context, with sight, checks []scenario.Check) ([]check.Result, error) {
	if l.fake.check != nil {
		return l.fake.check(ctx, checks)
	}
	checker := &check.Checker{
		Config: l.Config, Client: l.Client, Dynamic: l.Dynamic, Mapper: l.Mapper, Params: with.r.Drawn,
		Facts: with.r.Facts, Module: with.module,
		ProbeImage: l.ProbeImage, Labels: probeLabels(with.probe), Progress: func(text string) { l.say("%s", text) },
	}
	if was := with.was; was != nil {
		checker.Was = func(_ context.Context, ref scenario.Ref) (map[string]any, error) { return was.Get(ref), nil }
		checker.WasList = func(_ context.Context, selector scenario.Selector) ([]any, error) {
			return was.List(selector), nil
		}
	}
	return checker.Run(ctx, checks)
}

// captureTimeout is how long the API server, and those behind it, may take to list everything.
const captureTimeout = 2 * time.Minute

// capture takes a snapshot of the cluster without the ledger. What is in the exercise's namespaces is kept whole.
func (l *Lab) capture(ctx context.Context, namespaces []string) (*baseline.Baseline, error) {
	if l.fake.capture != nil {
		return l.fake.capture(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, captureTimeout,
		fmt.Errorf("the API server did not list everything within %s", captureTimeout))
	defer cancel()
	snapshot, err := baseline.Capture(ctx, l.Dynamic, l.Client.Discovery(),
		baseline.Options{Without: []string{l.LedgerNamespace}, Whole: namespaces})
	if err != nil {
		return nil, fmt.Errorf("see what the cluster is like: %w", err)
	}
	return snapshot, nil
}

func (l *Lab) probeImage() string { return cmp.Or(l.ProbeImage, debugpod.DefaultImage) }

func (l *Lab) say(format string, args ...any) {
	if l.Progress == nil {
		return
	}
	l.saying.Lock()
	defer l.saying.Unlock()
	l.Progress(fmt.Sprintf(format, args...))
}

// fakes stand in for what needs a cluster, in tests.
type fakes struct {
	check   func(context.Context, []scenario.Check) ([]check.Result, error)
	capture func(context.Context) (*baseline.Baseline, error)
	step    func(action string, step scenario.Step) fault.Change
	rights  func() fault.Change
	issue   func(until time.Time) (access.Issued, error)
	stand   func(e *Exercise, r *scenario.Resolved) *candidate
}

// cleanup is how long undoing goes on after the trainer pressed Ctrl-C: namespaces take their time to go.
const cleanup = 3 * time.Minute

// session returns the Lab's with what exercises need besides. Use one for the Preflight and the Run of a plan. With
// restore, a revert also deletes what the candidate deleted and made anew under a name of the exercise's, and puts back
// files and firewalls of nodes that they have changed.
func (l *Lab) session(restore bool) *fault.Session {
	undoers := maps.Clone(l.Session.Undoers)
	if undoers == nil {
		undoers = map[string]fault.Undoer{}
	}
	undoers[UndoKind] = Undoer{}
	if u, is := undoers[objects.UndoKind].(objects.Undoer); is {
		u.Successors = restore
		undoers[objects.UndoKind] = u
	}
	if u, is := undoers[containerdconfig.UndoKind].(containerdconfig.Undoer); is {
		u.Overwrite = restore
		undoers[containerdconfig.UndoKind] = u
	}
	if u, is := undoers[firewall.UndoKind].(firewall.Undoer); is {
		u.Overwrite = restore
		undoers[firewall.UndoKind] = u
	}
	return &fault.Session{
		Client: l.Session.Client, Ledger: l.Session.Ledger, Undoers: undoers, Observer: l.Session.Observer,
		Parallel: l.Session.Parallel,
		Timeout:  l.Session.Timeout, CleanupTimeout: max(l.Session.CleanupTimeout, cleanup), Retry: l.Session.Retry,
		Heartbeat: l.Session.Heartbeat,
		From:      l.Session.From, Version: l.Session.Version, Allow: l.Allow,
	}
}
