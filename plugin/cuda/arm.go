package cuda

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// arming holds the arguments and flags of `cuda arm` and `cuda disarm`.
type arming struct {
	verb    string // arm, disarm
	id      string
	fault   *cudafault.Fault // replaces the current fault; nil keeps it
	onlyOn  []string
	nodes   bool // whether --only-on-node was given
	dryRun  dryrun.Mode
	yes     bool
	timeout time.Duration
	format  printer.Format
}

// noticeTimeout is the default time to wait for processes to notice a change. A process that calls the driver checks
// for changes once a second.
const noticeTimeout = 30 * time.Second

func newArmCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	a := &arming{verb: "arm", dryRun: "none", timeout: noticeTimeout}
	faults := newFaultFlags()
	cmd := &cobra.Command{
		Use:   "arm RUN [--xid CODE | --error CODE | ...]",
		Short: "Start a run's fault, or a different one, without restarting the pods",
		Long: `Start the fault of a run whose shim is loaded, without restarting the pods. Flags select a different fault; without flags, the run keeps its
current fault. Processes notice the change at their next driver call, at most one second later. The count of trips (triggered faults) is reset.`,
		Example: `  # Start a fault that was injected with --disarmed, or restart it
  kubectl gpu-fault cuda arm cuda-7k3f9q

  # Delay every copy by 50 ms instead
  kubectl gpu-fault cuda arm cuda-7k3f9q --latency 50ms --function 'cuMemcpy*'

  # Start the same fault on another node
  kubectl gpu-fault cuda arm cuda-7k3f9q --only-on-node gpu-2`,
		Args: usage.ExactArgs(1, "one run", "kubectl gpu-fault cuda arm cuda-7k3f9q"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a.id, a.nodes = args[0], cmd.Flags().Changed("only-on-node")
			if faults.given(cmd) {
				what, err := faults.fault(cmd)
				if err != nil {
					return err
				}
				a.fault = &what
			}
			return a.execute(cmd.Context(), connection, streams)
		},
		ValidArgsFunction: completeRuns(connection),
	}
	faults.addFlags(cmd)
	cmd.Flags().StringSliceVar(&a.onlyOn, "only-on-node", nil,
		"Nodes on which the fault is active; an empty value means all (default: unchanged)")
	_ = cmd.RegisterFlagCompletionFunc("only-on-node", completion.Nodes(connection))
	a.addFlags(cmd)
	return cmd
}

func newDisarmCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	a := &arming{verb: "disarm", dryRun: "none", timeout: noticeTimeout}
	cmd := &cobra.Command{
		Use:   "disarm RUN",
		Short: "Stop a run's fault without restarting the pods; the shim stays loaded and can be armed again",
		Long: `Stop the fault of a run without restarting the pods: all calls pass through again. Processes notice the change at their next driver
call, at most one second later; hanging calls return. Programs do not recover from errors that they have already received: most have
exited, and the kubelet restarts their containers.

Use this command as an emergency brake: it does not ask for confirmation. It even stops a run that is still being injected or whose
client died. The shim stays loaded and can be armed again until you revert the run.`,
		Example: `  kubectl gpu-fault cuda disarm cuda-7k3f9q`,
		Args:    usage.ExactArgs(1, "one run", "kubectl gpu-fault cuda disarm cuda-7k3f9q"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a.id = args[0]
			return a.execute(cmd.Context(), connection, streams)
		},
		ValidArgsFunction: completeRuns(connection),
	}
	a.addFlags(cmd)
	return cmd
}

func (a *arming) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	a.dryRun.AddFlag(cmd, dryrun.Usage, dryrun.Modes()...)
	flags.BoolVarP(&a.yes, "yes", "y", false,
		map[string]string{
			"arm":    "Do not ask for confirmation",
			"disarm": "No effect: disarm never asks for confirmation",
		}[a.verb])
	flags.DurationVar(&a.timeout, "timeout", a.timeout, "Time to wait for the processes to notice the change")
	a.format.AddFlags(cmd)
}

// validate checks everything that does not require a cluster.
func (a *arming) validate() (err error) {
	if a.id, err = parseRun(a.id); err != nil {
		return err
	}
	if len(a.onlyOn) == 1 && a.onlyOn[0] == "" { // all
		a.onlyOn = nil
	}
	if err := tidyNames("--only-on-node", &a.onlyOn); err != nil {
		return err
	}
	switch {
	case a.timeout <= 0:
		return fmt.Errorf("invalid value %s for --timeout: must be greater than 0, such as %s", a.timeout,
			noticeTimeout)
	}
	return errors.Join(a.dryRun.Validate(dryrun.Modes()...), a.format.Validate())
}

func (a *arming) execute(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	if err := a.validate(); err != nil {
		return err
	}
	cluster, err := connection.Cluster()
	if err != nil {
		return err
	}
	found, err := workloads(connection, cluster)
	if err != nil {
		return err
	}
	report := progress.New(streams.ErrOut)
	s := session.New(ctx, cluster, connection, 1, podflags.New(), report)
	if err := s.Ledger.CheckNamespace(ctx); err != nil {
		return kube.Explain(err)
	}
	switching := &switching{
		arming: a, cluster: found, session: s,
		observer: newObserver(cluster.Client, debugpod.NewExecer(cluster.Config)),
		streams:  streams,
		note:     func(text string) { report.Step(a.id, text) },
		injected: func(ctx context.Context, p *inPlace) (string, error) {
			now, err := found.Find(ctx, p.data.Namespace, p.data.Ref())
			if err != nil {
				return "", err
			}
			return now.Run(), nil
		},
	}
	return kube.Explain(switching.run(ctx, cluster.Context))
}
