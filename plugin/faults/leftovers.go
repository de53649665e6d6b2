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
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

type leftoversFlags struct {
	nodes    []string
	allNodes bool
	clean    bool
	// allowControlPlane lets --clean change nodes of the control plane.
	allowControlPlane bool

	yes      bool
	dryRun   string
	pods     podflags.Flags
	parallel int
	format   printer.Format
}

// NewLeftoversCommand returns `leftovers`.
func NewLeftoversCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	f := &leftoversFlags{dryRun: "none", pods: podflags.New(), parallel: fault.DefaultParallel}
	cmd := &cobra.Command{
		Use:   "leftovers [--node NODE... | --nodes] [--clean]",
		Short: "Find what fault injection left in the cluster, and remove it",
		Long: `Find what fault injection left in all namespaces, and remove it with --clean: what this tool left after a crash, and what the
fault-injection tooling of NVIDIA Dynamo left: its ConfigMaps, network faults, service and agents, and its additions to workloads.

What belongs to a run that may be in place is not a leftover. Of a workload, --clean takes out exactly the known additions; a library, an
affinity or a volume of yours stays. Files on nodes are read with --node or --nodes, by a privileged debug pod on each.

The exit code is 0 when nothing is left, and 2 when something is.`,
		Example: `  # What was left, without looking at nodes
  kubectl gpu-fault leftovers

  # Also on all GPU nodes
  kubectl gpu-fault leftovers --nodes

  # Say what would be removed; then remove it
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
		"Read this node too, with a privileged debug pod that is announced and not asked about; may be repeated")
	flags.BoolVar(&f.allNodes, "nodes", false,
		"Read all GPU nodes too, with a privileged debug pod on each, announced and not asked about")
	flags.BoolVar(&f.clean, "clean", false, "Remove what was found")
	flags.BoolVar(&f.allowControlPlane, "allow-control-plane", false, "With --clean: allow nodes of the control plane")
	flags.BoolVarP(&f.yes, "yes", "y", false, "With --clean: do not ask")
	flags.StringVar(&f.dryRun, "dry-run", f.dryRun, "none or client (say what --clean would do; change nothing)")
	flags.Lookup("dry-run").NoOptDefVal = "client"
	flags.IntVar(&f.parallel, "parallel", f.parallel, "How many nodes at a time")
	f.pods.AddFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("node", completion.Nodes(connection))
	_ = cmd.RegisterFlagCompletionFunc("dry-run",
		cobra.FixedCompletions([]string{"none", "client"}, cobra.ShellCompDirectiveNoFileComp))
	f.format.AddFlags(cmd)
	return cmd
}

func (f *leftoversFlags) validate() error {
	for i, name := range f.nodes {
		f.nodes[i] = strings.TrimPrefix(strings.TrimPrefix(name, "nodes/"), "node/")
		if strings.TrimSpace(f.nodes[i]) == "" {
			return errors.New("--node: the name of a node is empty: is a variable unset?")
		}
	}
	slices.Sort(f.nodes)
	f.nodes = slices.Compact(f.nodes)
	switch {
	case len(f.nodes) > 0 && f.allNodes:
		return errors.New("give --node NODE, or --nodes for all GPU nodes, not both")
	case f.dryRun == "server":
		return errors.New(
			"--dry-run=server: what is removed on nodes cannot be tried by the API server; use --dry-run=client",
		)
	case f.dryRun != "none" && f.dryRun != "client":
		return fmt.Errorf("--dry-run=%s: choose none or client", f.dryRun)
	case f.dryRun == "client" && !f.clean:
		return errors.New(
			"--dry-run says what --clean would do: give --clean too (without it nothing is changed anyway)",
		)
	case f.parallel < 1:
		return fmt.Errorf("--parallel %d: give 1 or more", f.parallel)
	}
	if err := f.pods.Validate(); err != nil {
		return err
	}
	return f.format.Validate()
}

func (f *leftoversFlags) run(
	ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams,
) error {
	if connection.Feature = "leftovers"; len(f.nodes) > 0 || f.allNodes {
		connection.Feature += ",xid" // for the debug pods
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

// newFinder connects what finds leftovers.
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
