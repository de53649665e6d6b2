package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/image"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
)

// Launch injects a fault from inside the cluster.
type Launch struct {
	Flags    *Flags
	Pods     *podflags.Flags
	Format   printer.Format
	Streams  genericiooptions.IOStreams
	Session  *fault.Session // session of the preflight
	Fault    string         // a value of rbac print --for
	Summary  string
	Nodes    []string
	Parallel int // number of nodes that a pod changes in parallel
	// PerNode is the timeout for one node, and Cleanup is the timeout for the undo.
	PerNode, Cleanup time.Duration

	plan fleet.Plan
	job  *batchv1.Job
	data *corev1.ConfigMap

	every time.Duration // see fleet.Client
}

// mostPods limits how many pods of a fleet run at the same time. With ten nodes each, they start a hundred debug pods
// in parallel, which an API server and a registry can handle.
const mostPods = 10

// Prepare makes the plan for the fleet, without sending a request that changes anything. It adds the permissions and
// checks of the fleet to the preflight's plan.
func (l *Launch) Prepare(ctx context.Context, preflight *fault.Plan) (err error) {
	preflight.Needs = append(preflight.Needs, fleet.Permissions(l.Session.Ledger.Namespace)...)
	preflight.Checks = append(preflight.Checks, l.check)
	header := fleet.Header{Client: clientBuild(), By: l.Session.Whoami(ctx), From: l.Session.From}
	if header.ID, err = l.Session.Ledger.NewFleetID(); err != nil {
		return err
	}
	l.plan = fleet.NewPlan(header, l.Nodes, l.Flags.NodesPerPod)
	if err := l.plan.Check(); err != nil {
		return err
	}
	rounds := fault.Rounds(min(l.Flags.NodesPerPod, len(l.Nodes)), l.Parallel)
	cleanup := Cleanup(l.Cleanup, rounds)
	command := append([]string{image.PluginPath}, l.Flags.command...)
	command = append(command, "--yes", "--ledger-namespace="+l.Session.Ledger.Namespace,
		"--"+shardFlag+"="+fleet.Directory)
	l.job, l.data, err = fleet.Objects(l.plan, fleet.Settings{
		Namespace: l.Session.Ledger.Namespace, Summary: l.Summary, Command: command,
		Image: l.Pods.Image, PullPolicy: corev1.PullPolicy(l.Pods.Pull), PullSecrets: l.Pods.Secrets,
		Arch: image.PluginIn(l.Pods.Image), Pods: mostPods,
		Limit: time.Duration(rounds)*l.PerNode + l.Pods.Timeout + cleanup, Cleanup: cleanup,
	})
	return err
}

// Cleanup returns the time that the pod of a shard may take to undo its changes. The parameter few is a time that is
// sufficient for a few nodes. A pod with many nodes undoes its changes in rounds.
func Cleanup(few time.Duration, rounds int) time.Duration {
	const inTime = 10 // rounds for which the time is sufficient
	return max(few, fault.DefaultCleanupTimeout) * time.Duration(1+(rounds-1)/inTime)
}

func (l *Launch) client() *fleet.Client {
	return &fleet.Client{Kube: l.Session.Client, Namespace: l.Session.Ledger.Namespace, Every: l.every}
}

// check asks the API server whether it admits the Job and its pods.
func (l *Launch) check(ctx context.Context) error {
	grant := l.Session.Ledger.Command("rbac", "print", "--for", l.Fault, "--in-cluster")
	return l.client().DryRun(ctx, l.job, grant)
}

// Describe describes how the fault is injected.
func (l *Launch) Describe() {
	printer.Talk(l.Streams.ErrOut,
		"A Job in namespace %q injects the fault: %s for %s, with image %q and the permissions of service account %q.",
		l.Session.Ledger.Namespace, count.Of(len(l.plan.Shards), "pod"), count.Of(len(l.Nodes), "node"), l.Pods.Image,
		ledger.FleetAccount)
}

// DryRun prints the objects that Run would create.
func (l *Launch) DryRun(mode string) error {
	names := []string{"job.batch/" + l.job.Name, "configmap/" + l.data.Name}
	if !l.Format.IsTable() {
		list := struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Items      []any  `json:"items"`
		}{"v1", "List", []any{l.job, l.data}}
		return l.Format.Object(l.Streams.Out, list, names...)
	}
	for _, name := range names {
		fmt.Fprintf(l.Streams.Out, "%s created (%s dry run)\n", name, mode)
	}
	return nil
}

const (
	// readTimeout limits reading the records after the fleet has ended.
	readTimeout = 2 * time.Minute
	// lastCheck limits the time spent on determining why pods failed, before the fleet is stopped.
	lastCheck = 5 * time.Second
)

// Run creates the Job, follows it, and prints where the fault was injected. If ctx is canceled, the Job is deleted, so
// that its pods undo their changes.
func (l *Launch) Run(ctx context.Context) error {
	client, store := l.client(), l.Session.Ledger
	report := progress.New(l.Streams.ErrOut)
	job, err := client.Start(ctx, l.job, l.data)
	if err != nil {
		return fmt.Errorf("%w; if a pod has started, revert the fleet with: %s", err,
			store.Command("revert", l.plan.ID))
	}
	report.Note(fmt.Sprintf("if this client is lost, stop and revert the fleet with: %s",
		store.Command("revert", l.plan.ID)))
	show := func(text string) { report.Step(l.plan.ID, text) }
	followed := client.Follow(ctx, job, l.Pods.Timeout, show)

	limit := readTimeout
	if followed != nil {
		limit = lastCheck // while the pods continue
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	failures, err := client.Failures(look, l.plan.ID)
	cancel()
	errs := []error{err}
	if followed != nil {
		show("stopping: the pods are undoing their changes")
		errs = append(errs, fmt.Errorf("fleet %s was stopped: %w", l.plan.ID, followed))
	}
	errs = append(errs, client.Stop(ctx, l.plan.ID))
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	found, err := store.FleetRuns(after, l.plan.ID)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	if _, err := store.Prune(after, ledger.HistoryLimit); err != nil {
		report.Note(fmt.Sprintf("Warning: old records were not deleted: %v", err))
	}
	for _, bad := range found.Unreadable {
		errs = append(errs, fmt.Errorf("record %s cannot be read: %w", bad.Name, bad.Err))
	}
	rest := "the pod did not run"
	if followed != nil {
		rest = "the fleet was stopped before the pod started"
	}
	result := newResult(l.plan, l.Summary, found.Runs, failures, rest)
	return errors.Join(append([]error{result.print(l.Streams, l.Format, store)}, errs...)...)
}

// Origin returns the description of the client for the record of a shard's run.
func (f *Flags) Origin(host string) string {
	if f.shard == nil {
		return host
	}
	return fmt.Sprintf("%s, for %s on host %s", host, orUnknown(f.shard.By), orUnknown(f.shard.From))
}

// unfinished reports whether the program of a run was killed before it had injected or undone everything. Changes that
// a failed run has left in place stay in place, as they do without a fleet.
func unfinished(run ledger.Run) bool {
	return run.Phase == ledger.Planned || run.Phase == ledger.Applying ||
		run.Phase == ledger.Interrupted && len(run.Pending()) > 0
}

func orUnknown(name string) string {
	if name == "" {
		return "an unknown user"
	}
	return name
}

// Name sets the IDs of a shard's plan.
func (f *Flags) Name(plan *fault.Plan) {
	if f.shard != nil {
		plan.ID, plan.Fleet = f.shard.Run(), f.shard.ID
	}
}

// Earlier handles the record of an earlier pod of this shard, so that nothing is injected twice. If the earlier run is
// finished, it is the result. If it is unfinished, it is reverted. If there is no record, done is false.
func (f *Flags) Earlier(ctx context.Context, s *fault.Session) (done bool, err error) {
	if f.shard == nil {
		return false, nil
	}
	run, err := s.Ledger.Get(ctx, f.shard.Run())
	switch {
	case errors.As(err, new(*ledger.NotFoundError)):
		return false, nil
	case apierrors.IsForbidden(err): // the preflight reports all missing permissions
		return false, nil
	case err != nil:
		return true, err
	case run.Phase == ledger.Proven:
		return true, nil
	case !unfinished(run):
		return true, fmt.Errorf("an earlier pod of this shard created run %s: %s %s", run.ID, run.Phase, run.Message)
	}
	if _, err := s.Revert(ctx, run.ID, false); err != nil {
		return true, fmt.Errorf("an earlier pod of this shard was lost: %w", err)
	}
	return true, fmt.Errorf("an earlier pod of this shard was lost; its run %s was reverted, and the fault is not injected again",
		run.ID)
}
