package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

type revertFlags struct {
	ids    []string
	all    bool
	node   string
	force  bool
	yes    bool
	dryRun string
	format printer.Format
}

// NewRevertCommand returns `revert`.
func NewRevertCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	f := &revertFlags{dryRun: "none"}
	cmd := &cobra.Command{
		Use:   "revert (RUN... | --all | --node NODE)",
		Short: "Undo runs, from any machine, also after their client died",
		Long: `Undo runs: put back what is still as the run left it, delete debug pods that were left, free the locks and close the record.

What somebody else changed meanwhile is left alone and reported as superseded. What cannot be undone, such as lines in a kernel log,
is reported as permanent, with what it takes to get over it. Reverting twice does no harm.`,
		Example: `  # One run
  kubectl gpu-fault revert xid-7k3f9q

  # All that is not closed
  kubectl gpu-fault revert --all --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.ids = args
			if err := f.validate(); err != nil {
				return err
			}
			return f.run(cmd.Context(), connection, streams)
		},
		ValidArgsFunction: completion.Runs(connection),
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.all, "all", false, "All runs that are not closed")
	flags.StringVar(&f.node, "node", "", "All runs that are not closed and touch this node")
	flags.BoolVar(&f.force, "force", false, "Also runs whose client may still be working")
	flags.BoolVarP(&f.yes, "yes", "y", false, "Do not ask")
	flags.StringVar(&f.dryRun, "dry-run", f.dryRun, "none or client (say what would be undone; change nothing)")
	flags.Lookup("dry-run").NoOptDefVal = "client"
	_ = cmd.RegisterFlagCompletionFunc("node", completion.Nodes(connection))
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions([]string{"none", "client"}, cobra.ShellCompDirectiveNoFileComp))
	f.format.AddFlags(cmd)
	return cmd
}

func (f *revertFlags) validate() error {
	ways := 0
	for _, given := range []bool{len(f.ids) > 0, f.all, f.node != ""} {
		if given {
			ways++
		}
	}
	switch {
	case ways != 1:
		return errors.New("give run IDs (`kubectl gpu-fault list` shows them), or --all, or --node NODE, and only one of these")
	case f.dryRun == "server":
		return errors.New("--dry-run=server: most of what revert does happens on nodes, which the API server cannot try; use --dry-run=client")
	case f.dryRun != "none" && f.dryRun != "client":
		return fmt.Errorf("--dry-run=%s: choose none or client", f.dryRun)
	}
	for i, id := range f.ids { // as `-o name` prints them
		f.ids[i] = strings.TrimPrefix(id, "run/")
	}
	return f.format.Validate()
}

func (f *revertFlags) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	cluster, err := connection.Cluster()
	if err != nil {
		return err
	}
	runs, err := f.find(ctx, ledger.New(cluster.Client, connection.LedgerNamespace))
	if err != nil {
		return kube.Explain(err)
	}
	if len(runs) == 0 {
		fmt.Fprintln(streams.ErrOut, "nothing to revert")
		return nil
	}
	undoers := session.Undoers()
	for _, run := range runs {
		fmt.Fprintf(streams.ErrOut, "%s: %s on %s, by %s: %s\n", run.ID, run.Summary, targets(run), run.By, undo(undoers, run))
	}
	if f.dryRun == "client" {
		for _, run := range runs {
			fmt.Fprintf(streams.Out, "run/%s reverted (client dry run)\n", run.ID)
		}
		return nil
	}
	if err := confirm.Ask(ctx, streams, fmt.Sprintf("Revert in context %q?", cluster.Context), f.yes); err != nil {
		return err
	}
	return f.revert(ctx, session.New(cluster, connection.LedgerNamespace, len(runs), progress.New(streams.ErrOut)), streams, runs)
}

// find returns the runs that are meant. A run that was named is returned also when it is closed: reverting twice is no error.
func (f *revertFlags) find(ctx context.Context, store *ledger.Store) ([]ledger.Run, error) {
	if len(f.ids) > 0 {
		var runs []ledger.Run
		for _, id := range f.ids {
			run, err := store.Get(ctx, id)
			if err != nil {
				return nil, err
			}
			runs = append(runs, run)
		}
		return runs, nil
	}
	found, err := store.List(ctx, ledger.Active)
	if err != nil {
		return nil, err
	}
	for _, bad := range found.Unreadable {
		return nil, fmt.Errorf("record %s cannot be read, so not all runs are known: %w (name the runs to revert)", bad.Name, bad.Err)
	}
	if f.node == "" {
		return found.Runs, nil
	}
	return slices.DeleteFunc(found.Runs, func(run ledger.Run) bool {
		return !slices.ContainsFunc(run.Targets(), func(t ledger.Target) bool { return t.Kind == "Node" && t.Name == f.node })
	}), nil
}

func (f *revertFlags) revert(ctx context.Context, s *fault.Session, streams genericiooptions.IOStreams, runs []ledger.Run) error {
	var (
		errs []error
		done []ledger.Run
	)
	for _, run := range runs {
		after, err := s.Revert(ctx, run.ID, f.force)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", run.ID, kube.Explain(err)))
		}
		if after != nil {
			done = append(done, *after)
		}
	}
	if !f.format.IsTable() {
		return errors.Join(append([]error{printRuns(streams, f.format, done)}, errs...)...)
	}
	told := map[string]bool{}
	for _, run := range done {
		for _, step := range run.Steps {
			fmt.Fprintf(streams.Out, "%s %s: %s\n", run.ID, step.Target, step.State)
			if step.Message != "" && !told[step.Message] {
				told[step.Message] = true // the same for every node
				fmt.Fprintf(streams.ErrOut, "%s\n", printer.Escape(step.Message))
			}
		}
	}
	return errors.Join(errs...)
}
