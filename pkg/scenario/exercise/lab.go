// Package exercise runs scenarios on a cluster: it creates the broken situation, hands it to a candidate, grades the
// result, and reverts everything.
//
// All changes in an exercise are one run of a fault.Session, so `revert` undoes them from any machine, even if no other
// record of the exercise remains. Other state of the exercise is stored in Secrets in the ledger's namespace, which
// candidates cannot read.
package exercise

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
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

// Fault is the kind of fault for runs of exercises. The ID of an exercise is the ID of its run: scenario-x7k2mq.
const Fault = "scenario"

// Lab runs exercises on a cluster with the trainer's permissions. It is safe for concurrent use.
type Lab struct {
	Session *fault.Session
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Mapper must refresh when it encounters an unknown kind, like restmapper's deferred mapper.
	Mapper meta.RESTMapper
	Config *rest.Config
	// LedgerNamespace is the namespace for the exercises' Secrets. It must be the Session's namespace.
	LedgerNamespace string
	// Faults creates changes for steps that are not plain objects; if nil, such steps are rejected.
	Faults Faults
	// Allow lifts blast radius limits, for every exercise.
	Allow fault.Allowances
	// SimulateGPUs is the number of GPUs that each exercise advertises on each of its nodes, in a cluster without GPUs.
	// Zero means that the cluster has real GPUs.
	SimulateGPUs int
	// Once makes a selftest run each solution and wrong fix only with the first seed for which it exists.
	Once bool
	// Attempts are the names of the solutions and wrong fixes that a selftest runs; empty means all.
	Attempts []string
	// Sample makes a selftest run one solution and one wrong fix for each seed, instead of all.
	Sample bool
	// Workload is the trainer's Deployment, as KIND/NAME in WorkloadNamespace, that exercises use. If empty,
	// they create their own.
	Workload, WorkloadNamespace string
	// Now returns the time for time boxes. If nil, the API server's clock is used, which is the same for trainers on
	// several machines.
	Now func() time.Time
	// Progress receives progress messages, one line at a time; nil discards them. Calls do not overlap.
	Progress func(text string)
	// ProbeImage is the image for probe pods, which must contain a shell and wget; empty means the image for debug
	// pods.
	ProbeImage string

	saying       sync.Mutex
	remember     sync.Mutex
	policiesSeen time.Time
	fake         fakes
}

// Faults turns steps that are node or process faults into changes, with the permissions that they need.
type Faults interface {
	XID(step scenario.XID) ([]fault.Change, []fault.Permission, error)
	// Runtime encrypts the node's record if the candidate can become root on the node.
	Runtime(step scenario.Runtime, encrypted bool) ([]fault.Change, []fault.Permission, error)
	Firewall(step scenario.Firewall) ([]fault.Change, []fault.Permission, error)
	Device(step scenario.Device) ([]fault.Change, []fault.Permission, error)
	// CUDA finds the workload, which must exist. It returns one change to this workload. The undo of the change has the
	// kind workload.UndoKind.
	CUDA(ctx context.Context, step scenario.CUDA) ([]fault.Change, []fault.Permission, error)
	// Handler reads a runtime handler on a node and returns its type and binaryName, or nil if the container runtime
	// does not have a handler with this name.
	Handler(ctx context.Context, what scenario.Handler) (map[string]any, error)
	// Strangers returns, by pod UID, the processes on a node that were not started by the programs of their containers.
	// With ownSessions, these programs may start processes in separate sessions.
	Strangers(ctx context.Context, node string, uids []string, ownSessions bool) (map[string]api.PodUse, error)
	// NodeState returns what remains on a node after a pod is gone (see api.Info.State), and what could not be read.
	NodeState(ctx context.Context, node string) (state map[string]string, unread []string, err error)
	// RemoveFiles removes those files on a node that have the given digests, which come from NodeState and are keyed by
	// path.
	RemoveFiles(ctx context.Context, node string, digests map[string]string) (*api.RemovedFiles, error)
	// Shim returns the library for each architecture, and the state file for a run that is active from the beginning.
	Shim(what scenario.CUDAFault) (library map[string][]byte, state func(ledger.Run) ([]byte, error), err error)
}

// sight is the context in which checks of a scenario are evaluated.
type sight struct {
	r      *scenario.Resolved
	was    *baseline.Baseline // for comparison in expressions; nil if there is none yet
	probe  string             // label value for check pods
	module *terraform.Module  // the submitted module, or nil
	graded bool               // the candidate may have tampered with the observed state
}

// check runs checks of a scenario.
func (l *Lab) check(ctx context.Context, with sight, checks []scenario.Check) ([]check.Result, error) {
	if l.fake.check != nil {
		return l.fake.check(ctx, checks)
	}
	checker := &check.Checker{
		Config: l.Config, Client: l.Client, Dynamic: l.Dynamic, Mapper: l.Mapper, Params: with.r.Drawn,
		Facts: with.r.Facts, Module: with.module, Guarded: with.graded,
		Handler: l.handler(), ProbeImage: l.ProbeImage, Labels: probeLabels(with.probe),
		Progress: func(text string) { l.say("%s", text) },
	}
	if was := with.was; was != nil {
		checker.Was = func(_ context.Context, ref scenario.Ref) (map[string]any, error) { return was.Get(ref), nil }
		checker.WasList = func(_ context.Context, selector scenario.Selector) ([]any, error) {
			return was.List(selector), nil
		}
	}
	if slices.ContainsFunc(checks, func(c scenario.Check) bool { return strings.Contains(c.Expect, "selects(") }) {
		if err := l.labels(ctx, &checker.Facts); err != nil {
			return nil, err
		}
	}
	return checker.Run(ctx, checks)
}

// handler returns the function that reads runtime handlers, or nil if nodes cannot be read.
func (l *Lab) handler() func(context.Context, scenario.Handler) (map[string]any, error) {
	if l.Faults == nil {
		return nil
	}
	return l.Faults.Handler
}

// labels adds the current labels of the nodes to the facts.
func (l *Lab) labels(ctx context.Context, facts *scenario.Facts) error {
	nodes, err := l.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	of := map[string]map[string]string{}
	for _, node := range nodes.Items {
		of[node.Name] = node.Labels
	}
	facts.Nodes = slices.Clone(facts.Nodes)
	for i := range facts.Nodes {
		facts.Nodes[i].Labels = of[facts.Nodes[i].Name]
	}
	return nil
}

// captureTimeout is the maximum time for the API server and its aggregated servers to list everything.
const captureTimeout = 2 * time.Minute

// capture takes a snapshot of the cluster, excluding the ledger. Objects in the given namespaces are stored in full.
// In the namespaces listed in verify, owner references are not trusted.
func (l *Lab) capture(ctx context.Context, namespaces []string, verify ...string) (*baseline.Baseline, error) {
	return l.captureSince(ctx, nil, namespaces, verify...)
}

// captureSince is like capture, and finds all annotations that the candidate has set on nodes since an earlier
// snapshot.
func (l *Lab) captureSince(
	ctx context.Context, since *baseline.Baseline, namespaces []string, verify ...string,
) (*baseline.Baseline, error) {
	if l.fake.capture != nil {
		return l.fake.capture(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, captureTimeout,
		fmt.Errorf("the API server did not list everything within %s", captureTimeout))
	defer cancel()
	snapshot, err := baseline.Capture(ctx, l.Dynamic, l.Client.Discovery(),
		baseline.Options{Without: []string{l.LedgerNamespace}, Whole: namespaces, Verify: verify, Since: since})
	if err != nil {
		return nil, fmt.Errorf("take a snapshot of the cluster: %w", err)
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

// fakes replace functions that need a cluster, in tests.
type fakes struct {
	check   func(context.Context, []scenario.Check) ([]check.Result, error)
	capture func(context.Context) (*baseline.Baseline, error)
	step    func(action string, step scenario.Step) fault.Change
	rights  func() fault.Change
	issue   func(until time.Time) (access.Issued, error)
	stand   func(e *Exercise, r *scenario.Resolved) *candidate
}

// cleanup is the time limit for cleanup after the trainer pressed Ctrl-C, because deleting namespaces takes time.
const cleanup = 3 * time.Minute

// session returns the Lab's session, extended for exercises. Use the same session for the Preflight and Run of a plan.
// With restore, a revert also deletes objects that the candidate deleted and recreated under a name from the exercise,
// and restores files and firewalls on nodes that the candidate changed.
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
		u.Overwrite, u.Added = restore, true
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
