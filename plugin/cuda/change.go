package cuda

import (
	"context"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// Load describes the shim in one workload, for the plans of other commands: scenarios and experiments.
type Load struct {
	Namespace, Name string // the name as TYPE/NAME
	Fault           cudafault.Fault
	Recreate        bool          // allows recreating a workload that cannot be changed
	Timeout         time.Duration // of the rollout; zero means the default
}

// Change returns the change that `cuda inject TYPE/NAME` makes, and the permissions that it needs.
func (l Load) Change(
	ctx context.Context, connection *kube.Connection, cluster *kube.Cluster,
) (fault.Change, []fault.Permission, error) {
	in := newInjecting()
	in.name, in.fault, in.recreate = l.Name, l.Fault, l.Recreate
	if l.Timeout > 0 {
		in.timeout = l.Timeout
	}
	if err := in.validate(); err != nil {
		return fault.Change{}, nil, err
	}
	found, err := workloads(connection, cluster)
	if err != nil {
		return fault.Change{}, nil, err
	}
	d, err := in.decide(ctx, found, l.Namespace, connection.LedgerNamespace)
	if err != nil {
		return fault.Change{}, nil, err
	}
	d.preload, d.unread = preloads(ctx, d.chosen, readImage)
	injection := in.injection(found, d, newObserver(cluster.Client, debugpod.NewExecer(cluster.Config)))
	return injection.change(in.action(d)), d.needs(injection.Permissions()), nil
}
