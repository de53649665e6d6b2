package scenario

import (
	"context"
	"fmt"

	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// lab returns the environment for exercises, with the permissions of the current user.
func (c *common) lab(ctx context.Context) (*exercise.Lab, error) {
	if err := c.pods.Validate(); err != nil {
		return nil, err
	}
	cluster, err := c.connection.Cluster()
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(cluster.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cluster.Config.Host, err)
	}
	mapper, err := c.connection.ToRESTMapper()
	if err != nil {
		return nil, kube.Explain(err)
	}
	report := progress.New(c.streams.ErrOut)
	return &exercise.Lab{
		Session: session.New(ctx, cluster, c.connection, 1, c.pods, report), Client: cluster.Client,
		Dynamic: objects, Mapper: mapper,
		Config: cluster.Config, LedgerNamespace: c.connection.LedgerNamespace,
		Faults:   faults{c.connection, cluster, c.pods},
		Progress: func(text string) { report.Step("lab", text) },
	}, nil
}
