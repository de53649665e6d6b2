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

// Load describes loading the shim into one workload. Other commands, such as scenarios and the layers of an XID, use it
// in their plans.
type Load struct {
	Namespace, Name string // Name is TYPE/NAME
	Fault           cudafault.Fault
	Recreate        bool          // allows recreating a workload that cannot be changed
	Timeout         time.Duration // of the rollout; zero means the default
	// GPUs, if set, returns the fault for containers that each request the given number of GPUs. 0 means that the
	// number is unknown or that there are several containers. -1 means that no container requests GPUs.
	GPUs func(each int) (cudafault.Fault, error)
	// Nodes are the nodes on which the fault is active, and on which the workload's pods are preferably scheduled.
	// Empty means all nodes.
	Nodes []string
}

// Loading contains what a plan needs to carry out a Load.
type Loading struct {
	Change fault.Change
	Needs  []fault.Permission
	// Check asks the API server whether it would accept the change. Describe describes the change.
	Check    func(context.Context) error
	Describe func(say func(format string, args ...any))
	// Pods returns the pods with the shim, after the change has been made.
	Pods func(context.Context, ledger.Run) ([]corev1.Pod, error)
	// SuppliesDevices reports whether the undo restarts a program that supplies the node's devices. The kubelet rejects
	// pods that request such a device until the program has registered again.
	SuppliesDevices bool
	// Timeout and CleanupTimeout are the maximum durations of the change and of its undo.
	Timeout, CleanupTimeout time.Duration
}

// Validate checks everything that does not require a cluster.
func (l Load) Validate() error { return l.injecting().validate() }

// CompleteWorkload completes TYPE/NAME as a flag value.
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

// Prepare returns the change that `cuda inject TYPE/NAME` would make, and what a plan needs to carry it out.
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
