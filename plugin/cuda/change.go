package cuda

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// Load describes the shim in one workload, for the plans of other commands: scenarios, and the layers of an XID.
type Load struct {
	Namespace, Name string // the name as TYPE/NAME
	Fault           cudafault.Fault
	Recreate        bool          // allows recreating a workload that cannot be changed
	Timeout         time.Duration // of the rollout; zero means the default
	// GPUs, if set, returns the fault for containers that request so many GPUs each; 0: unknown, or several containers;
	// -1: none requests GPUs.
	GPUs func(each int) (cudafault.Fault, error)
	// Nodes are the only ones with the fault, and those that its pods are put on if there is room; empty means all.
	Nodes []string
}

// Loading is a Load in a plan.
type Loading struct {
	Change fault.Change
	Needs  []fault.Permission
	// Check asks the API server whether it would accept the change, and Describe says what will be changed.
	Check    func(context.Context) error
	Describe func(say func(format string, args ...any))
	// Pods returns the pods with the shim, when the change has been made.
	Pods func(context.Context, ledger.Run) ([]corev1.Pod, error)
	// SuppliesDevices reports whether the undo restarts a program that supplies the node's devices: until it has
	// registered again, the kubelet rejects pods that request one.
	SuppliesDevices bool
	// Timeout and CleanupTimeout are what the change takes at most, and its undo.
	Timeout, CleanupTimeout time.Duration
}

// Validate checks everything that needs no cluster.
func (l Load) Validate() error { return l.injecting().validate() }

// CompleteWorkload completes TYPE/NAME as the value of a flag.
func CompleteWorkload(connection *kube.Connection) cobra.CompletionFunc {
	complete := completeWorkload(connection)
	return func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return complete(cmd, nil, prefix)
	}
}

func (l Load) injecting() *injecting {
	in := newInjecting()
	in.name, in.fault, in.recreate = l.Name, l.Fault, l.Recreate
	in.onlyOn, in.pinTo, in.pin = l.Nodes, l.Nodes, "soft"
	if l.Timeout > 0 {
		in.timeout = l.Timeout
	}
	return in
}

// Prepare returns the change that `cuda inject TYPE/NAME` makes, with what a plan needs of it.
func (l Load) Prepare(ctx context.Context, connection *kube.Connection, cluster *kube.Cluster) (Loading, error) {
	in := l.injecting()
	if err := in.validate(); err != nil {
		return Loading{}, err
	}
	found, err := workloads(connection, cluster)
	if err != nil {
		return Loading{}, err
	}
	d, err := in.decide(ctx, found, l.Namespace, connection.LedgerNamespace)
	if err != nil {
		return Loading{}, err
	}
	if l.GPUs != nil {
		if in.fault, err = l.GPUs(d.gpusEach()); err == nil {
			err = in.validate()
		}
		if err != nil {
			return Loading{}, err
		}
	}
	d.preload, d.unread = preloads(ctx, d.chosen, readImage)
	injection := in.injection(found, d, newObserver(cluster.Client, debugpod.NewExecer(cluster.Config)))
	return Loading{
		Change: injection.change(in.action(d)), Needs: d.needs(injection.Permissions()),
		Check: func(ctx context.Context) error {
			preview, err := injection.Preview(ctx)
			if err == nil {
				d.notes, d.replaced, d.changes = preview.Notes, preview.Replaced, preview.Changes
			}
			return err
		},
		Describe: func(say func(string, ...any)) {
			say("CUDA and NVML in %s in namespace %s, %s: %s. %s", d.workload.Ref(), d.workload.Target().Namespace,
				d.containers(), in.fault.Summary(), in.replaced(d))
			for _, change := range d.changes {
				say("  %s", change)
			}
			for _, note := range in.notes(d) {
				say("Note: %s", note)
			}
		},
		Pods:    func(ctx context.Context, run ledger.Run) ([]corev1.Pod, error) { return injection.pods(run)(ctx) },
		Timeout: in.timeout + afterRollout, CleanupTimeout: cleanupTimeout,
	}, nil
}
