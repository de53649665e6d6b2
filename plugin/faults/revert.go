package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

type revertFlags struct {
	ids     []string
	all     bool
	expired bool
	node    string
	force   bool
	// noRestart refuses what would replace pods.
	noRestart bool
	pods      podflags.Flags
	// allowControlPlane lets a revert start privileged pods on nodes of the control plane.
	allowControlPlane bool

	yes    bool
	dryRun string
	format printer.Format
}

// validID is the form of IDs: the kind of fault and a few letters or digits.
var validID = regexp.MustCompile(`^[a-z]+-[a-z0-9]+$`)

// NewRevertCommand returns `revert`.
func NewRevertCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	f := &revertFlags{dryRun: "none", pods: podflags.New()}
	f.pods.AnyBuild = true
	cmd := &cobra.Command{
		Use:   "revert (RUN... | --all | --expired | --node NODE)",
		Short: "Undo runs, from any machine, also after their client died",
		Long: `Undo runs: put back what is still as the run left it, delete debug pods that were left, free the locks and close the record.

What somebody else changed meanwhile is left alone and reported as superseded. What cannot be undone, such as lines in a kernel log,
is reported as permanent, with what it takes to get over it. Reverting twice does no harm.`,
		Example: `  # One run
  kubectl gpu-fault revert xid-7k3f9q

  # All whose time is up: confirm that they are undone
  kubectl gpu-fault revert --expired --yes

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
	flags.BoolVar(&f.expired, "expired", false, "All runs whose time is up and that are not closed")
	flags.StringVar(&f.node, "node", "", "All runs that are not closed and touch this node")
	flags.BoolVar(&f.force, "force", false,
		"Do not wait for a sign of life of the run's client: take the run away from it at once")
	flags.BoolVar(&f.noRestart, "without-restart", false,
		"Only where no pod is replaced by it: of workloads whose pods somebody has to delete, and those whose next job is meant")
	flags.BoolVar(&f.allowControlPlane, "allow-control-plane", false,
		"Allow privileged pods on nodes of the control plane")
	flags.BoolVarP(&f.yes, "yes", "y", false, "Do not ask")
	flags.StringVar(&f.dryRun, "dry-run", f.dryRun, "none or client (say what would be undone; change nothing)")
	flags.Lookup("dry-run").NoOptDefVal = "client"
	_ = cmd.RegisterFlagCompletionFunc("node", completion.Nodes(connection))
	_ = cmd.RegisterFlagCompletionFunc("dry-run",
		cobra.FixedCompletions([]string{"none", "client"}, cobra.ShellCompDirectiveNoFileComp))
	f.pods.AddFlags(cmd)
	f.format.AddFlags(cmd)
	return cmd
}

func (f *revertFlags) validate() error {
	ways := 0
	for _, given := range []bool{len(f.ids) > 0, f.all, f.expired, f.node != ""} {
		if given {
			ways++
		}
	}
	switch {
	case ways != 1:
		return errors.New(
			"give run IDs (`kubectl gpu-fault list` shows them), or --all, or --expired, or --node NODE, and only one of these",
		)
	case f.dryRun == "server":
		return errors.New(
			"--dry-run=server: most of what revert does happens on nodes, which the API server cannot try; use --dry-run=client",
		)
	case f.dryRun != "none" && f.dryRun != "client":
		return fmt.Errorf("--dry-run=%s: choose none or client", f.dryRun)
	}
	for i, id := range f.ids { // as `-o name` prints them
		f.ids[i] = strings.TrimPrefix(id, "run/")
		if !validID.MatchString(f.ids[i]) {
			return fmt.Errorf("%q is no run ID: they look like xid-7k3f9q (`kubectl gpu-fault list` shows them)", id)
		}
	}
	slices.Sort(f.ids)
	f.ids = slices.Compact(f.ids)
	return errors.Join(f.pods.Validate(), f.format.Validate())
}

func (f *revertFlags) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	cluster, err := connection.Cluster()
	if err != nil {
		return err
	}
	runs, unreadable, err := f.find(ctx, ledger.New(cluster.Client, connection.LedgerNamespace))
	if err != nil {
		return fmt.Errorf("nothing was reverted: %w", kube.Explain(err))
	}
	if len(runs) == 0 && unreadable == nil {
		if f.node != "" {
			if _, err := cluster.Client.CoreV1().Nodes().Get(
				ctx, f.node, metav1.GetOptions{},
			); apierrors.IsNotFound(err) {
				return fmt.Errorf("nothing was reverted: no run has changed this node: %w",
					fault.NodeNotFound(f.node, nil))
			}
		}
		printer.Talk(streams.ErrOut, "nothing to revert in namespace %q", connection.LedgerNamespace)
		return nil
	}
	if len(runs) == 0 {
		return unreadable
	}
	// What can be read is reverted first: in an emergency one damaged record must not stop the rest.
	return errors.Join(f.revertAll(ctx, cluster, connection, streams, runs), unreadable)
}

func (f *revertFlags) revertAll(
	ctx context.Context, cluster *kube.Cluster, connection *kube.Connection, streams genericiooptions.IOStreams,
	runs []ledger.Run,
) error {
	if f.noRestart {
		objects, err := dynamic.NewForConfig(cluster.Config)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", cluster.Config.Host, err)
		}
		if err := withoutRestart(ctx, objects, runs); err != nil {
			return fmt.Errorf("nothing was reverted: %w", kube.Explain(err))
		}
	}
	s := session.New(ctx, cluster, connection.LedgerNamespace, fault.DefaultParallel, f.pods,
		progress.New(streams.ErrOut))
	s.Allow.ControlPlane = f.allowControlPlane
	for _, run := range runs {
		printer.Talk(streams.ErrOut, "%s", f.preview(ctx, s, run))
	}
	if f.dryRun == "client" {
		if !f.format.IsTable() {
			return printRuns(streams, f.format, runs)
		}
		for _, run := range runs {
			fmt.Fprintf(streams.Out, "run/%s reverted (client dry run)\n", run.ID)
		}
		return nil
	}
	if err := confirm.Ask(ctx, streams, fmt.Sprintf("Revert in context %q?", cluster.Context), f.yes); err != nil {
		return err
	}
	return f.revert(ctx, s, streams, runs)
}

// find returns the runs that are meant. A run that was named is returned also when it is closed: reverting twice is no
// error. unreadable says which records nobody knows what they mean.
func (f *revertFlags) find(ctx context.Context, store *ledger.Store) (runs []ledger.Run, unreadable, err error) {
	if len(f.ids) > 0 {
		for _, id := range f.ids {
			switch run, err := store.Get(ctx, id); {
			case err == nil:
				runs = append(runs, run)
			case errors.As(err, new(*ledger.UnmarkedError)), apierrors.IsForbidden(err), ctx.Err() != nil:
				return nil, nil, err
			default: // the others are reverted all the same
				unreadable = errors.Join(unreadable, fmt.Errorf("run %s was not reverted: %w", id, kube.Explain(err)))
			}
		}
		return runs, unreadable, nil
	}
	found, err := store.List(ctx, ledger.Active)
	if err != nil {
		return nil, nil, err
	}
	for _, bad := range found.Unreadable {
		unreadable = errors.Join(unreadable,
			fmt.Errorf("record %s was left alone, since it cannot be read: %w; see: kubectl get configmap %s -n %s -o yaml",
				bad.Name, bad.Err, bad.Name, store.Namespace))
	}
	if f.expired {
		found.Runs = slices.DeleteFunc(found.Runs, func(run ledger.Run) bool { return !run.Expired(store.Now()) })
	}
	if f.node != "" {
		found.Runs = slices.DeleteFunc(found.Runs, func(run ledger.Run) bool {
			return !slices.ContainsFunc(run.Targets(),
				func(t ledger.Target) bool { return t.Kind == "Node" && t.Name == f.node })
		})
	}
	return found.Runs, unreadable, nil
}

func isSuperseded(run ledger.Run) bool {
	return slices.ContainsFunc(run.Steps, func(s ledger.Step) bool { return s.State == ledger.StateSuperseded })
}

func (f *revertFlags) revert(
	ctx context.Context, s *fault.Session, streams genericiooptions.IOStreams, runs []ledger.Run,
) error {
	var (
		errs []error
		done []ledger.Run
	)
	now := time.Now()
	slices.SortStableFunc(runs, func(a, b ledger.Run) int { return cmp.Compare(waits(a, now), waits(b, now)) })
	for _, run := range runs {
		after, err := s.RevertShown(ctx, run, f.force)
		if err != nil {
			errs = append(errs, kube.Explain(err))
		}
		if after != nil {
			done = append(done, *after)
		}
	}
	if !f.format.IsTable() {
		return errors.Join(append([]error{printRuns(streams, f.format, done)}, errs...)...)
	}
	for _, run := range done {
		for _, step := range run.Steps {
			fmt.Fprintln(streams.Out,
				printer.Clean(fmt.Sprintf("%s %s: %s", run.ID, targetName(step.Target), outcome(step))))
		}
	}
	if text := remarks(done); text != "" {
		printer.Talk(streams.ErrOut, "%s", text)
	}
	if len(errs) == 0 && slices.ContainsFunc(done, isSuperseded) {
		return &usage.Verdict{
			Message: "somebody changed meanwhile what was to be undone, and theirs was left: see whether parts of the fault are still in it",
		}
	}
	return errors.Join(errs...)
}
