package cuda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/ttl"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// injecting holds the arguments and flags of `cuda inject`.
type injecting struct {
	name      string // TYPE/NAME
	fault     cudafault.Fault
	selection cudashim.Selection
	onlyOn    []string // nodes
	pinTo     []string
	pin       string
	disarmed  bool
	atStart   bool
	onlyNew   bool // whether only newly started processes see the fault
	recreate  bool
	audit     bool
	dryRun    dryrun.Mode
	yes       bool
	timeout   time.Duration
	ttl       ttl.Flags
	format    printer.Format
}

// rolloutTimeout is the default timeout of the rollout.
const rolloutTimeout = 5 * time.Minute

// afterRollout is the time for the steps after the rollout: verification and writing the record.
const afterRollout = 3 * time.Minute

// cleanupTimeout limits the cleanup after a failure or an interruption.
const cleanupTimeout = 2 * time.Minute

func newInjecting() *injecting {
	return &injecting{pin: "hard", dryRun: "none", timeout: rolloutTimeout, ttl: ttl.New()}
}

func newInjectCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	in := newInjecting()
	faults := newFaultFlags()
	cmd := &cobra.Command{
		Use:   "inject TYPE/NAME (--xid CODE | --error CODE | ...)",
		Short: "Load the shim into a workload's pods, and make their CUDA calls fail, hang or return wrong data",
		Long: `Load the shim into the pods of one workload, and make their CUDA calls fail, hang or return wrong data.

TYPE/NAME is any object with pod templates: a Deployment, StatefulSet, DaemonSet, Job, JobSet, LeaderWorkerSet, PyTorchJob, RayCluster,
DynamoGraphDeployment or other custom resource. If you specify a pod or ReplicaSet, the workload that owns it is used. The library is stored in a
ConfigMap. A volume and LD_PRELOAD are added to the pod template, and the workload's controller replaces the pods as for any other change. The
fault starts when the new pods are ready and their processes have called the driver, so running processes and new ones see the fault as they
would on hardware. With --at-start, the fault starts with the first call.

When the TTL expires, all calls pass through again. The shim stays in the pod template until you revert the run. Reverting replaces the pods again, if
the workload's controller does so for a changed template.`,
		Example: `  # Simulate a GPU that falls off the bus: running processes get error 999, new processes get error 100, and NVML reports the GPU as lost
  kubectl gpu-fault cuda inject deployment/vllm --xid 79

  # Limit the fault to one node: pods that are rescheduled elsewhere recover
  kubectl gpu-fault cuda inject deployment/vllm --xid 79 --only-on-node gpu-1

  # Return an illegal address error in rank 3, after the first 1000 launches
  kubectl gpu-fault cuda inject pytorchjob/llama --error illegal-address --rank 3 --after-calls 1000

  # Limit GPU memory to 20 GiB for ten minutes, without confirmation
  kubectl gpu-fault cuda inject deployment/vllm --mem-limit 20Gi --ttl 10m --yes

  # Load the shim for a test, to be armed later with ` + "`cuda arm`" + `
  kubectl gpu-fault cuda inject deployment/vllm --xid 48 --disarmed`,
		Args: usage.ExactArgs(1, "one workload", "kubectl gpu-fault cuda inject deployment/vllm --xid 79"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.name = args[0]
			what, err := faults.fault(cmd)
			if err != nil {
				return err
			}
			in.fault = what
			if cmd.Flags().Changed("pin") && len(in.pinTo) == 0 {
				return errors.New("--pin requires --pin-node")
			}
			if err := in.validate(); err != nil {
				return err
			}
			return in.run(cmd.Context(), connection, streams)
		},
		ValidArgsFunction: completeWorkload(connection),
	}
	faults.addFlags(cmd)
	in.addFlags(cmd, connection)
	return cmd
}

func (in *injecting) addFlags(cmd *cobra.Command, connection *kube.Connection) {
	flags := cmd.Flags()
	flags.StringSliceVarP(&in.selection.Containers, "container", "c", nil,
		"Containers to inject into (default: those that request GPUs, or all if none does)")
	flags.StringSliceVar(&in.selection.Services, "service", nil,
		"Services, replica types or groups to inject into, if the workload has several pod templates")
	flags.StringSliceVar(&in.onlyOn, "only-on-node", nil,
		"Nodes on which the fault is active; on other nodes, the shim passes calls through (default: all)")
	flags.StringSliceVar(&in.pinTo, "pin-node", nil, "Nodes on which to run the pods")
	flags.StringVar(&in.pin, "pin", in.pin,
		"With --pin-node, hard (pods stay Pending if the nodes are full) or soft (pods may run on other nodes)")
	flags.BoolVar(&in.disarmed, "disarmed", false,
		"Load the shim without starting the fault; use `cuda arm` to start it")
	flags.Lookup("disarmed").Usage = "Load the shim without starting the fault; use cuda arm to start it"
	flags.BoolVar(&in.atStart, "at-start", false,
		"Start the fault at the new pods' first driver call, instead of waiting until they are ready")
	flags.BoolVar(&in.recreate, "recreate", false,
		"Allow recreating workloads that cannot be changed, such as Jobs; their work starts over")
	flags.BoolVar(&in.audit, "audit", false,
		"Load the shim with LD_AUDIT instead of LD_PRELOAD, to also affect plugins opened with RTLD_DEEPBIND; glibc "+
			"only")
	in.ttl.AddFlags(flags)
	in.dryRun.AddFlag(cmd, dryrun.Usage, dryrun.Modes()...)
	flags.BoolVarP(&in.yes, "yes", "y", false, "Do not ask for confirmation")
	flags.DurationVar(&in.timeout, "timeout", in.timeout, "Timeout for the workload's rollout")
	in.format.AddFlags(cmd)

	_ = cmd.RegisterFlagCompletionFunc("only-on-node", completion.Nodes(connection))
	_ = cmd.RegisterFlagCompletionFunc("pin-node", completion.Nodes(connection))
	_ = cmd.RegisterFlagCompletionFunc("pin",
		cobra.FixedCompletions([]string{"hard", "soft"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("container", completeContainer(connection))
	_ = cmd.RegisterFlagCompletionFunc("service", completeService(connection))
}

// validate checks everything that does not require a cluster.
func (in *injecting) validate() error {
	if err := checkReference(in.name); err != nil {
		return err
	}
	for _, list := range []struct {
		flag  string
		names *[]string
	}{
		{"--container", &in.selection.Containers}, {"--service", &in.selection.Services},
		{"--only-on-node", &in.onlyOn}, {"--pin-node", &in.pinTo},
	} {
		if err := tidyNames(list.flag, list.names); err != nil {
			return err
		}
	}
	switch {
	case in.pin != "hard" && in.pin != "soft":
		return fmt.Errorf("invalid value %q for --pin: supported values: hard, soft", in.pin)
	case in.disarmed && in.atStart:
		return errors.New(
			"--at-start and --disarmed cannot be used together",
		)
	case in.timeout <= 0:
		return fmt.Errorf("invalid value %s for --timeout: must be greater than 0, such as %s", in.timeout,
			rolloutTimeout)
	}
	if len(in.onlyOn) > 0 && len(in.pinTo) > 0 &&
		!slices.ContainsFunc(in.pinTo, func(n string) bool { return slices.Contains(in.onlyOn, n) }) {
		return fmt.Errorf("--pin-node %s keeps the pods away from --only-on-node %s: no process would see the fault",
			strings.Join(in.pinTo, ","), strings.Join(in.onlyOn, ","))
	}
	in.fault.Nodes = in.onlyOn
	state, err := in.fault.State("cuda-xxxxxx", 1, time.Now(), time.Time{})
	if err != nil { // the fault does not fit into a state file
		return err
	}
	in.onlyNew = seenAtStart(state)
	in.atStart = in.atStart || in.onlyNew && !in.disarmed
	return errors.Join(in.dryRun.Validate(dryrun.Modes()...), in.ttl.Validate(), in.format.Validate())
}

// tidyNames removes duplicates and the prefixes that `kubectl get -o name` prints, and rejects empty names.
func tidyNames(flag string, names *[]string) error {
	var tidy []string
	for _, name := range *names {
		name = strings.TrimSpace(name)
		if strings.HasSuffix(flag, "-node") {
			name = strings.TrimPrefix(strings.TrimPrefix(name, "nodes/"), "node/")
		}
		if name == "" {
			return fmt.Errorf("%s contains an empty name: is a variable unset?", flag)
		}
		if !slices.Contains(tidy, name) {
			tidy = append(tidy, name)
		}
	}
	*names = tidy
	return nil
}

func (in *injecting) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	cluster, err := connection.Cluster()
	if err != nil {
		return err
	}
	found, err := workloads(connection, cluster)
	if err != nil {
		return err
	}
	d, err := in.decide(ctx, found, cluster.Namespace, connection.LedgerNamespace)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", kube.Explain(err))
	}
	say := func(format string, args ...any) { printer.Talk(streams.ErrOut, format, args...) }
	if in.dryRun == "client" {
		in.before(say, d, cluster.Context)
		return in.printDryRun(streams, d, in.plan(d, in.injection(found, d, nil)))
	}
	d.preload, d.unread = preloads(ctx, d.chosen, readImage)
	s := session.New(ctx, cluster, connection, 1, podflags.New(), progress.New(streams.ErrOut))
	s.Timeout, s.CleanupTimeout = in.timeout+afterRollout, cleanupTimeout
	injection := in.injection(found, d, newObserver(cluster.Client, debugpod.NewExecer(cluster.Config)))
	plan := in.plan(d, injection)
	plan.Checks = append(plan.Checks, func(ctx context.Context) error {
		preview, err := injection.Preview(ctx)
		if err == nil {
			d.notes, d.replaced, d.changes = preview.Notes, preview.Replaced, preview.Changes
		}
		return in.unlessLocked(ctx, s, err)
	})
	if err := s.Preflight(ctx, plan); err != nil {
		return fmt.Errorf("nothing was changed: %w", kube.Explain(err))
	}
	in.before(say, d, cluster.Context)
	if in.dryRun == "server" {
		say("Changes to %s that the API server would accept:", d.workload.Ref())
		for _, change := range d.changes {
			say("  %s", change)
		}
		return in.printDryRun(streams, d, plan)
	}
	question := fmt.Sprintf("Inject into %s in namespace %s in context %q?", d.workload.Ref(),
		d.workload.Target().Namespace, cluster.Context)
	if err := confirm.Ask(ctx, streams, question, in.yes); err != nil {
		return err
	}
	run, runErr := s.Run(ctx, plan)
	return errors.Join(in.print(streams, s.Ledger, d, run), kube.Explain(runErr))
}

// unlessLocked drops an InjectedError if the error about the other run's lock describes the conflict in more detail.
func (in *injecting) unlessLocked(ctx context.Context, s *fault.Session, err error) error {
	var other *cudashim.InjectedError
	if !errors.As(err, &other) {
		return err
	}
	if run, getErr := s.Ledger.Get(ctx, other.Run); getErr == nil && len(run.Pending()) > 0 {
		return nil
	}
	return err
}

func (in *injecting) action(d *decided) string { return "load the CUDA shim into " + d.workload.Ref() }

func (in *injecting) plan(d *decided, injection *injection) fault.Plan {
	plan := fault.Plan{
		Fault: "cuda", Summary: summary(in.fault, in.disarmed), Command: session.CommandLine(os.Args),
		Needs:   d.needs(injection.Permissions()),
		Changes: []fault.Change{injection.change(in.action(d))}, NoPods: true,
	}
	in.ttl.Apply(&plan)
	return plan
}
