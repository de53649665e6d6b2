package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/leftover"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

type leftoversFlags struct {
	nodes    []string
	allNodes bool
	clean    bool
	// allowControlPlane allows --clean to change control plane nodes.
	allowControlPlane bool

	yes      bool
	dryRun   dryrun.Mode
	pods     podflags.Flags
	parallel int
	format   printer.Format
}

// NewLeftoversCommand returns `leftovers`.
func NewLeftoversCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	f := &leftoversFlags{dryRun: "none", pods: podflags.New(), parallel: fault.DefaultParallel}
	cmd := &cobra.Command{
		Use:   "leftovers [--node NODE... | --nodes] [--clean]",
		Short: "Find and remove objects that fault injection left behind in the cluster",
		Long: `Find objects that fault injection left behind in all namespaces, and remove them with --clean. They can come from this tool, after a crash, or from NVIDIA
Dynamo's fault-injection tooling: ConfigMaps, network faults, the service and its agents, and additions to workloads.

Objects of a run whose fault may still be in place are not leftovers. In workloads, --clean removes only the known additions; your own libraries,
affinities and volumes are not changed. To include files on nodes, specify --node or --nodes, which start a privileged debug pod on each node.

The exit code is 0 if there are no leftovers, and 2 if there are any.`,
		Example: `  # Find leftovers, without checking nodes
  kubectl gpu-fault leftovers

  # Find leftovers, including files on all GPU nodes
  kubectl gpu-fault leftovers --nodes

  # Show what would be removed, then remove it
  kubectl gpu-fault leftovers --clean --dry-run=client
  kubectl gpu-fault leftovers --clean`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(); err != nil {
				return err
			}
			return f.run(cmd.Context(), connection, streams)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.nodes, "node", nil,
		"Also check this node; starts a privileged debug pod without confirmation; may be repeated")
	flags.BoolVar(&f.allNodes, "nodes", false,
		"Also check all GPU nodes; starts a privileged debug pod on each without confirmation")
	flags.BoolVar(&f.clean, "clean", false, "Remove the leftovers")
	flags.BoolVar(&f.allowControlPlane, "allow-control-plane", false, "With --clean, allow control plane nodes")
	flags.BoolVarP(&f.yes, "yes", "y", false, "With --clean, do not ask for confirmation")
	f.dryRun.AddFlag(cmd, "none or client (only print what --clean would do)", dryrun.None, dryrun.Client)
	flags.IntVar(&f.parallel, "parallel", f.parallel, "Number of nodes checked in parallel")
	f.pods.AddFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("node", completion.Nodes(connection))
	f.format.AddFlags(cmd)
	return cmd
}

func (f *leftoversFlags) validate() error {
	for i, name := range f.nodes {
		f.nodes[i] = strings.TrimPrefix(strings.TrimPrefix(name, "nodes/"), "node/")
		if strings.TrimSpace(f.nodes[i]) == "" {
			return errors.New("--node contains an empty name: is a variable unset?")
		}
	}
	slices.Sort(f.nodes)
	f.nodes = slices.Compact(f.nodes)
	switch {
	case len(f.nodes) > 0 && f.allNodes:
		return errors.New("--node and --nodes cannot be used together")
	case f.dryRun == "client" && !f.clean:
		return errors.New(
			"--dry-run requires --clean: without --clean, the command changes nothing",
		)
	case f.parallel < 1:
		return fmt.Errorf("invalid value %d for --parallel: must be 1 or more", f.parallel)
	}
	return errors.Join(f.dryRun.Validate(dryrun.None, dryrun.Client), f.pods.Validate(), f.format.Validate())
}

func (f *leftoversFlags) run(
	ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams,
) error {
	if connection.Features = []string{"leftovers"}; len(f.nodes) > 0 || f.allNodes {
		connection.Features = append(connection.Features, "xid") // required for the debug pods
	}
	cluster, err := connection.Cluster()
	if err != nil {
		return err
	}
	finder, err := newFinder(cluster, connection.LedgerNamespace)
	if err != nil {
		return err
	}
	pods := &nodePods{
		leftoversFlags: f, cluster: cluster, ledgerNamespace: connection.LedgerNamespace, streams: streams,
	}
	if err := pods.choose(ctx); err != nil {
		return kube.Explain(err)
	}
	found, err := finder.Find(ctx)
	if err != nil {
		return kube.Explain(err)
	}
	onNodes, err := pods.look(ctx, found)
	if err != nil {
		return kube.Explain(err)
	}
	report := &leftoversReport{
		connection: connection, streams: streams, format: f.format, now: time.Now(), found: found,
		items: append(found.Items, onNodes...), unseen: pods.unseen,
	}
	report.warn(pods.names)
	if !f.clean || len(report.items) == 0 {
		return report.print()
	}
	report.plan()
	if f.dryRun == "client" {
		return report.dryRun()
	}
	if report.removable() > 0 {
		question := fmt.Sprintf("Remove %s in context %q?", count.Of(report.removable(), "leftover"), cluster.Context)
		if err := confirm.Ask(ctx, streams, question, f.yes); err != nil {
			return err
		}
	}
	cleaner := &leftover.Cleaner{Dynamic: finder.Dynamic, Done: report.done}
	cleaner.Clean(ctx, report.items)
	pods.clean(ctx, finder, report)
	return report.end(ctx)
}

// newFinder returns a finder of leftovers in the cluster.
func newFinder(cluster *kube.Cluster, ledgerNamespace string) (*leftover.Finder, error) {
	objects, err := dynamic.NewForConfig(cluster.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cluster.Config.Host, err)
	}
	names, err := metadata.NewForConfig(cluster.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cluster.Config.Host, err)
	}
	namespaces := []string{ledgerNamespace, cluster.Namespace}
	slices.Sort(namespaces)
	return &leftover.Finder{
		Client: cluster.Client, Dynamic: objects, Metadata: names, Namespaces: slices.Compact(namespaces),
	}, nil
}
