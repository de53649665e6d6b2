package runtime

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/target"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// show holds the flags of `runtime show NODE`.
type show struct {
	connection *kube.Connection
	streams    genericiooptions.IOStreams
	pods       podflags.Flags
	format     printer.Format
}

// newShowCommand returns `show`.
func newShowCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	s := &show{connection: connection, streams: streams, pods: podflags.New()}
	cmd := &cobra.Command{
		Use:   "show NODE",
		Short: "Show which containerd a node's kubelet uses, and its runtime handlers",
		Long: `Show which containerd a node's kubelet uses, and its runtime handlers.

The command follows the same path as the kubelet: from the kubelet's settings to the socket, to the process that listens on it, and to the configuration
that this process loads. It compares the files on disk with the configuration in containerd's memory, and checks for common mistakes: a handler
in the configuration of another containerd on the same node, a file that was edited after the last restart, or a missing binary.

A privileged pod collects the data and is then deleted. Nothing is changed.`,
		Example: `  # Show what the kubelet of gpu-1 uses
  kubectl gpu-fault runtime show gpu-1

  # Include types, file attributes, and all details of other containerds
  kubectl gpu-fault runtime show gpu-1 -o wide

  # Print the handlers in containerd's memory
  kubectl gpu-fault runtime show gpu-1 -o jsonpath='{.runtime.handlers[?(@.inMemory)].name}'`,
		Args: usage.ExactArgs(1, "the name of a node", "kubectl gpu-fault runtime show gpu-1"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(s.format.Validate(), s.pods.Validate()); err != nil {
				return err
			}
			return s.run(cmd.Context(), args[0])
		},
		ValidArgsFunction: completion.OneNode(connection),
	}
	s.pods.AddFlags(cmd)
	s.format.AddFlags(cmd)
	return cmd
}

func (s *show) run(ctx context.Context, arg string) error {
	nodes := target.Nodes{Names: []string{arg}}
	if err := nodes.Validate(); err != nil {
		return err
	}
	cluster, err := s.connection.Cluster()
	if err != nil {
		return err
	}
	names, _, err := nodes.Resolve(ctx, cluster.Client, cluster.Namespace)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.pods.Timeout,
		fmt.Errorf("timed out after %s: increase --timeout", s.pods.Timeout))
	defer cancel()
	n, err := cluster.Client.CoreV1().Nodes().Get(ctx, names[0], metav1.GetOptions{})
	if err != nil {
		return kube.Explain(fmt.Errorf("get node %s: %w", names[0], err))
	}
	found, err := s.inspect(ctx, cluster, n.Name)
	if err != nil {
		return kube.Explain(err)
	}
	classes, toolkits, warnings := readCluster(ctx, cluster.Client, n.Labels)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	view := newView(n.Name, *found, classes, toolkits)
	view.Warnings = append(view.Warnings, warnings...)
	if !s.format.IsTable() {
		err = s.format.Object(s.streams.Out, view, "node/"+view.Node)
	} else {
		err = view.write(s.streams.Out, s.format)
	}
	session.NoteRuns(ctx, cluster, s.connection.LedgerNamespace, view.Node, s.streams.ErrOut)
	if err == nil && found.Instance == nil {
		err = fmt.Errorf("cannot determine the container runtime of node %s: %s", view.Node, found.Problem)
	}
	return err
}

// inspect reads the node through a pod.
func (s *show) inspect(ctx context.Context, cluster *kube.Cluster, nodeName string) (found *api.Runtime, err error) {
	look := session.Look{
		Cluster: cluster, LedgerNamespace: s.connection.LedgerNamespace, Pods: s.pods, ErrOut: s.streams.ErrOut,
		Name: "show", Reading: "reading kubelet, containerd and their configuration",
	}
	err = look.At(ctx, nodeName, func(pod *debugpod.Session) (err error) {
		found, err = pod.InspectRuntime(ctx)
		return err
	})
	return found, err
}
