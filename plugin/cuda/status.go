package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

func newStatusCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	var format printer.Format
	cmd := &cobra.Command{
		Use:   "status [RUN | TYPE/NAME]",
		Short: "Show which processes have loaded the shim, and what it has done in them",
		Long: `Show which processes have loaded the shim, how they call the driver, whether the fault is armed in them, and what it has done so far.
Without a name, the command shows all CUDA faults that are in place.

The command executes the shim's file in each pod; the image needs nothing else. A process is listed after its first driver call. A
terminated process is listed until a new process takes its slot or the pod is deleted. If a pod is crashing or not running, the lines that
the shim wrote to the pod's log are shown instead.`,
		Example: `  # Show one run
  kubectl gpu-fault cuda status cuda-7k3f9q

  # Show the run in a workload, with all columns
  kubectl gpu-fault cuda status deployment/vllm -o wide

  # Print the number of trips, for a script
  kubectl gpu-fault cuda status cuda-7k3f9q -o jsonpath='{.items[*].pods[*].processes[*].trips}'`,
		Args: usage.MaxArgs(1, "one run or one workload", "kubectl gpu-fault cuda status deployment/vllm"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := format.Validate(); err != nil {
				return err
			}
			name := strings.Join(args, "")
			if err := checkStatusOf(name, len(args) > 0); err != nil {
				return err
			}
			return showStatus(cmd.Context(), connection, streams, name, format)
		},
		ValidArgsFunction: completeRunsAndWorkloads(connection),
	}
	format.AddFlags(cmd)
	return cmd
}

// checkStatusOf returns an error if the name, if given, is neither a run nor a workload.
func checkStatusOf(name string, given bool) error {
	if !given {
		return nil
	}
	_, err := parseRun(name)
	if err == nil {
		return nil
	}
	if strings.Contains(name, "/") || strings.TrimSpace(name) == "" {
		return checkReference(name)
	}
	return fmt.Errorf("%q is neither a run, such as cuda-7k3f9q, nor a workload, such as deployment/web", name)
}

func showStatus(
	ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams, name string,
	format printer.Format,
) error {
	cluster, err := connection.Cluster()
	if err != nil {
		return err
	}
	found, err := workloads(connection, cluster)
	if err != nil {
		return err
	}
	store := ledger.New(cluster.Client, connection.LedgerNamespace)
	places, err := placesOf(ctx, found, store, cluster.Namespace, name,
		func(text string) { printer.Talk(streams.ErrOut, "Warning: %s", text) })
	if err != nil {
		return kube.Explain(err)
	}
	observer := newObserver(cluster.Client, debugpod.NewExecer(cluster.Config))
	list := statusList{Items: []runStatus{}}
	for _, p := range places {
		pods, err := p.pods(found)(ctx)
		if err != nil {
			return kube.Explain(err)
		}
		reports := observer.ask(ctx, pods)
		observer.listenWhere(ctx, reports, p.run.ID, func(r *report) bool { return !r.asked || len(r.living()) == 0 })
		if ctx.Err() != nil {
			return fmt.Errorf("status: %w", context.Cause(ctx))
		}
		list.Items = append(list.Items, statusOf(p, reports, time.Now()))
	}
	if len(places) == 0 && name == "" {
		printer.Talk(streams.ErrOut, "no CUDA fault is in place according to the ledger in namespace %q",
			connection.LedgerNamespace)
	}
	return list.print(streams, format)
}

// placesOf returns the run with the given ID or in the given workload. If the name is empty, it returns all runs that
// are in place.
func placesOf(
	ctx context.Context, cluster *cudashim.Cluster, store *ledger.Store, namespace, name string, warn func(string),
) ([]*inPlace, error) {
	id, err := parseRun(name)
	if name != "" && err != nil {
		w, err := cluster.Find(ctx, namespace, name)
		if err != nil {
			return nil, err
		}
		if id = w.Run(); id == "" {
			return nil, fmt.Errorf(
				"%s in namespace %s has no CUDA fault; `kubectl gpu-fault cuda status` lists the workloads that have one",
				w.Ref(), namespace,
			)
		}
	}
	if name != "" {
		run, err := store.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		if run.IsClosed() {
			warn(fmt.Sprintf("run %s was closed at %s (%s): its shim is no longer in place", run.ID,
				run.Closed.Local().Format(time.DateTime), run.Phase))
			return nil, nil
		}
		p, err := placeOf(store, run)
		if err == nil {
			err = p.read(ctx, cluster)
		}
		if errors.Is(err, errNoState) {
			warn(err.Error())
			err = nil
		}
		return []*inPlace{p}, err
	}
	listing, err := store.List(ctx, ledger.Active)
	if err != nil {
		return nil, err
	}
	var places []*inPlace
	for _, run := range slices.Backward(listing.Runs) { // oldest first
		step := ofRun(run, cudashim.UndoKind)
		if step == nil || !step.InPlace() {
			continue
		}
		p, err := placeOf(store, run)
		if err == nil {
			if err = p.read(ctx, cluster); errors.Is(err, errNoState) {
				warn(err.Error())
				err = nil
			}
		}
		if err != nil {
			warn(err.Error())
			continue
		}
		places = append(places, p)
	}
	return places, nil
}
