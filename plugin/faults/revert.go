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
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
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
	// noRestart rejects reverts that replace pods.
	noRestart bool
	pods      podflags.Flags
	// allowControlPlane allows privileged pods on control plane nodes.
	allowControlPlane bool

	// fleets are the selected fleets that have a Job. The Job is stopped before the fleet's runs are reverted.
	fleets []string

	yes    bool
	dryRun dryrun.Mode
	format printer.Format
}

// validID matches run IDs: the kind of fault, followed by a few letters or digits. The run IDs of a fleet also contain
// a number.
var validID = regexp.MustCompile(`^[a-z]+-[a-z0-9]+(-[0-9]+)?$`)

// NewRevertCommand returns `revert`.
func NewRevertCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	f := &revertFlags{dryRun: "none", pods: podflags.New()}
	f.pods.AnyBuild = true
	cmd := &cobra.Command{
		Use:   "revert (RUN... | --all | --expired | --node NODE)",
		Short: "Revert one or more runs, from any machine, even if the client that started them has died",
		Long: `Revert runs: restore everything that no other client has changed since, delete leftover debug pods, release the locks and close the record.

Anything that another client has changed since then is skipped and reported as superseded. Anything that cannot be undone, such as lines in a kernel
log, is reported as permanent, with instructions. Reverting a run twice is safe.`,
		Example: `  # Revert one run
  kubectl gpu-fault revert xid-7k3f9q

  # Stop a fleet started with --in-cluster, and revert all its runs
  kubectl gpu-fault revert fleet-7k3f9q

  # Revert all expired runs, to confirm that their changes are undone
  kubectl gpu-fault revert --expired --yes

  # Revert all open runs
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
	flags.BoolVar(&f.all, "all", false, "Revert all open runs")
	flags.BoolVar(&f.expired, "expired", false, "Revert all open runs that have expired")
	flags.StringVar(&f.node, "node", "", "Revert the open runs on this node")
	flags.BoolVar(&f.force, "force", false,
		"Take over the run without waiting for a sign of life from its client")
	flags.BoolVar(&f.noRestart, "without-restart", false,
		"Revert only workloads whose pods are not replaced: those with the OnDelete strategy, CronJobs and paused rollouts")
	flags.BoolVar(&f.allowControlPlane, "allow-control-plane", false,
		"Allow privileged pods on control plane nodes")
	flags.BoolVarP(&f.yes, "yes", "y", false, "Do not ask for confirmation")
	f.dryRun.AddFlag(cmd, "none or client (only print what would be undone)", dryrun.None, dryrun.Client)
	_ = cmd.RegisterFlagCompletionFunc("node", completion.Nodes(connection))
	f.pods.AddFlags(cmd)
	// An undo that has started is not cut off, because it has its own limits.
	cmd.Flags().Lookup("timeout").Usage = "Timeout per node for the pods to start"
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
	if ways != 1 {
		return errors.New(
			"specify exactly one of: run IDs (listed by `kubectl gpu-fault list`), --all, --expired, --node NODE",
		)
	}
	for i, id := range f.ids { // with or without the prefix of `-o name`
		f.ids[i] = strings.TrimPrefix(id, "run/")
		if !validID.MatchString(f.ids[i]) {
			return fmt.Errorf(
				"invalid run ID %q: must be of the form xid-7k3f9q (`kubectl gpu-fault list` shows the IDs)", id,
			)
		}
	}
	slices.Sort(f.ids)
	f.ids = slices.Compact(f.ids)
	return errors.Join(f.dryRun.Validate(dryrun.None, dryrun.Client), f.pods.Validate(), f.format.Validate())
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
	if len(runs) == 0 && len(f.fleets) == 0 && unreadable == nil {
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
	if len(runs) == 0 && len(f.fleets) == 0 {
		return unreadable
	}
	// In an emergency, an unreadable record must not prevent other runs from being reverted.
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
	s := session.New(ctx, cluster, connection, 0, f.pods,
		progress.New(streams.ErrOut))
	s.Allow.ControlPlane = f.allowControlPlane
	f.previewAll(ctx, s, streams, runs)
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
	stopped := f.stopFleets(ctx, s, streams, runs)
	return errors.Join(stopped, f.revert(ctx, s, streams, runs))
}

// find returns the selected runs. A run specified by its ID is returned even if it is closed, because reverting twice
// is not an error. unreadable contains the errors for the records that cannot be read.
func (f *revertFlags) find(ctx context.Context, store *ledger.Store) (runs []ledger.Run, unreadable, err error) {
	if len(f.ids) > 0 {
		for _, id := range f.ids {
			if ledger.IsFleet(id) {
				of, bad, err := f.findFleet(ctx, store, id)
				if err != nil {
					return nil, nil, err
				}
				runs, unreadable = append(runs, of...), errors.Join(unreadable, bad)
				continue
			}
			switch run, err := store.Get(ctx, id); {
			case err == nil:
				runs = append(runs, run)
			case errors.As(err, new(*ledger.UnmarkedError)), apierrors.IsForbidden(err), ctx.Err() != nil:
				return nil, nil, err
			default: // the other runs are still reverted
				unreadable = errors.Join(unreadable, fmt.Errorf("run %s was not reverted: %w; `kubectl gpu-fault leftovers --nodes` "+
					"finds what a run without a usable record has left behind", id, kube.Explain(err)))
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
			fmt.Errorf("record %s was skipped because it cannot be read: %w; see: kubectl get configmap %s -n %s -o yaml",
				bad.Name, bad.Err, bad.Name, store.Namespace))
	}
	if f.all {
		if f.fleets, err = fleetClient(store).Find(ctx); err != nil {
			return nil, nil, err
		}
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
	sorting.StableFunc(runs, func(a, b ledger.Run) int { return cmp.Compare(waits(a, now), waits(b, now)) })
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
			Message: "another client has changed what was to be reverted, and these changes were kept: check whether they contain parts of the fault",
		}
	}
	return errors.Join(errs...)
}
