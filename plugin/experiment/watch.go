package experiment

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fleet"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/expect"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// NewWatchCommand returns `watch`.
func NewWatchCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "watch RUN",
		Short: "Show how the cluster reacts to a run: what detected the fault, what cordoned and drained the node, and when",
		Long: `Show how the cluster reacts to a run, as it happens: what detected the fault, what cordoned and drained the node, and when.

The output begins with the past reactions that are still visible, and ends when the run is
closed. Times are relative to the verification of the fault, so a fast detector can have a negative time. For reactions
before the command started, the cluster's own timestamps are shown, which are precise to the second.`,
		Example: `  # Follow the cluster's reactions to a run
  kubectl gpu-fault watch xid-7k3f9q

  # Watch for only one minute
  kubectl gpu-fault watch xid-7k3f9q --for 1m`,
		Args: usage.ExactArgs(1, "the ID of a run", "kubectl gpu-fault watch xid-7k3f9q"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if lasts < 0 {
				return fmt.Errorf("invalid value %s for --for: must not be negative", lasts)
			}
			return watch(cmd.Context(), connection, streams, args[0], lasts)
		},
	}
	cmd.Flags().DurationVar(&lasts, "for", 0, "How long to watch; 0 means until the run is closed")
	return cmd
}

// runOf returns a run, or the runs of a fleet combined into one.
func runOf(ctx context.Context, store *ledger.Store, id string) (ledger.Run, error) {
	if !ledger.IsFleet(id) {
		return store.Get(ctx, id)
	}
	found, err := store.FleetRuns(ctx, id)
	if err == nil && len(found.Runs) == 0 {
		err = &ledger.NotFoundError{ID: id, Namespace: store.Namespace}
	}
	return fleet.Merge(id, found.Runs), err
}

// pollEvery is the interval at which the record is read, to check whether the run is closed.
const pollEvery = 2 * time.Second

func watch(
	ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams, id string,
	lasts time.Duration,
) error {
	cluster, err := connection.Cluster()
	if err != nil {
		return err
	}
	store := ledger.New(cluster.Client, connection.LedgerNamespace)
	run, err := runOf(ctx, store, id)
	if err != nil {
		return kube.Explain(err)
	}
	nodes, err := nodesOf(ctx, cluster, run)
	if err != nil {
		return err
	}
	proof := experiment.ProofOf(&run)
	if proof.IsZero() {
		return fmt.Errorf("run %s has no verified fault to watch: its phase is %s", id, run.Phase)
	}
	unseen, err := expect.Check(ctx, cluster.Client)
	if err != nil {
		return kube.Explain(err)
	}
	for _, warning := range unseen {
		printer.Talk(streams.ErrOut, "%s", warning)
	}
	observer := experiment.NewObserver(nodes)
	observer.Proven(proof, run.Summary)
	observer.Show = expect.Shower(streams.Out)
	printer.Talk(streams.ErrOut, "%s: %s, verified %s ago", id, run.Summary, time.Since(proof).Round(time.Second))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// In a large cluster, most of the memory is garbage from lists.
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	past, err := reaction.Past(ctx, cluster.Client, nodes, experiment.BeganOf(&run))
	if err != nil {
		return kube.Explain(err)
	}
	observer.News(reaction.News{Reactions: past})
	if _, err := reaction.Watch(ctx, reaction.Options{
		Client: cluster.Client, Targets: nodes, OnlyReactions: true, Each: observer.News,
	}); err != nil {
		return kube.Explain(err)
	}
	if lasts > 0 {
		timer := time.AfterFunc(lasts, func() { stop(errOver) })
		defer timer.Stop()
	}
	for {
		now, err := runOf(ctx, store, id)
		switch {
		case errors.Is(context.Cause(ctx), errOver):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return kube.Explain(err)
		case now.IsClosed():
			printer.Talk(streams.ErrOut, "run %s is closed: %s", id, now.Phase)
			return nil
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
		}
	}
}

var errOver = errors.New("the time has elapsed")

// nodesOf returns the nodes on which a run has injected faults, or the nodes on which the pods of its workloads run.
func nodesOf(ctx context.Context, cluster *kube.Cluster, run ledger.Run) ([]string, error) {
	var all []string
	for _, t := range run.Targets() {
		if t.Kind == "Node" {
			all = append(all, t.Name)
			continue
		}
		selector, err := experiment.SelectorOf(ctx, cluster.Client, t.Kind+"/"+t.Name, t.Namespace)
		if err != nil {
			continue // the kind has no selector
		}
		pods, err := cluster.Client.CoreV1().Pods(t.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: selector.String(),
		})
		if err != nil {
			return nil, kube.Explain(err)
		}
		for _, p := range pods.Items {
			if p.Spec.NodeName != "" && p.Status.Phase == corev1.PodRunning {
				all = append(all, p.Spec.NodeName)
			}
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) == 0 {
		return nil, fmt.Errorf("run %s has no nodes to watch", run.ID)
	}
	return all, nil
}
