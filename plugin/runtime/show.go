package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
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
		Short: "Show which containerd the kubelet of a node uses, and its runtime handlers",
		Long: `Show which containerd the kubelet of a node uses, and its runtime handlers.

The command follows the same path as the kubelet: from its settings to the socket, to the process that listens on it, to the configuration
that this process loads. It compares the files on disk with the configuration in containerd's memory, and checks for common mistakes: a handler
in the configuration of another containerd on the same node, a file that was edited after the last restart, a missing binary.

A privileged pod reads the node and is then deleted. Nothing is changed.`,
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
		ValidArgsFunction: func(
			cmd *cobra.Command, args []string, prefix string,
		) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completion.Nodes(connection)(cmd, args, prefix)
		},
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
	s.ownRuns(ctx, cluster, view.Node)
	if err == nil && found.Instance == nil {
		err = fmt.Errorf("cannot determine the container runtime of node %s: %s", view.Node, found.Problem)
	}
	return err
}

// ownRuns lists the runs that broke the node on purpose, so that users revert them instead of fixing the node manually.
func (s *show) ownRuns(ctx context.Context, cluster *kube.Cluster, nodeName string) {
	store := ledger.New(cluster.Client, s.connection.LedgerNamespace)
	open, err := store.List(ctx, ledger.Active)
	if err != nil {
		return // the note is optional
	}
	for _, run := range open.Runs {
		for _, step := range run.Pending() {
			if step.Target.Kind == "Node" && step.Target.Name == nodeName {
				printer.Talk(s.streams.ErrOut,
					"Note: node %s was broken on purpose by run %s (%s, by %s); to restore it: %s",
					nodeName, run.ID, run.Summary, cmp.Or(run.By, "an unknown user"), store.Command("revert", run.ID))
			}
		}
	}
}

// inspect reads the node with a pod, which it always deletes.
func (s *show) inspect(ctx context.Context, cluster *kube.Cluster, nodeName string) (found *api.Runtime, err error) {
	store := ledger.New(cluster.Client, s.connection.LedgerNamespace)
	id, err := store.NewID("show")
	if err != nil {
		return nil, err
	}
	spec := s.pods.Spec(id, nodeName, s.connection.LedgerNamespace)
	if err := fault.CheckNamespaceAccess(ctx, cluster.Client, spec.Namespace); err != nil {
		return nil, err
	}
	if err := s.pods.Try(ctx, cluster, spec); err != nil {
		return nil, err
	}
	report := progress.New(s.streams.ErrOut)
	report.Note(s.pods.Announcement(s.connection.LedgerNamespace, []string{nodeName}))
	created, err := store.EnsureNamespace(ctx)
	if created {
		report.Note(fmt.Sprintf(
			"namespace %s was created for the pod and is kept for later use; to remove it: kubectl delete namespace %s",
			store.Namespace, store.Namespace,
		))
	}
	if err != nil {
		return nil, err
	}
	session, err := s.pods.Start(ctx, cluster, spec, func(text string) { report.Step(nodeName, text) })
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, session.Close(ctx))
		report.Step(nodeName, closing(err))
	}()
	report.Step(nodeName, "reading kubelet, containerd and their configuration")
	found, err = session.InspectRuntime(ctx)
	if ctx.Err() != nil { // the result may be incomplete
		return nil, context.Cause(ctx)
	}
	return found, err
}

func closing(err error) string {
	if err != nil {
		return "failed"
	}
	return "read; debug pod deleted"
}
