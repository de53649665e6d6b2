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
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/ttl"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// injecting is a command line of `cuda inject`.
type injecting struct {
	name      string // TYPE/NAME
	fault     cudafault.Fault
	selection cudashim.Selection
	onlyOn    []string // nodes
	pinTo     []string
	pin       string
	disarmed  bool
	atStart   bool
	onlyNew   bool // whether only processes that start see the fault
	recreate  bool
	audit     bool
	dryRun    string
	yes       bool
	timeout   time.Duration
	ttl       ttl.Flags
	format    printer.Format
}

// rolloutTimeout is the default for how long the rollout may take.
const rolloutTimeout = 5 * time.Minute

// afterRollout is for what follows the rollout: proofs, and the record.
const afterRollout = 3 * time.Minute

// cleanupTimeout is for putting back what failed or was stopped.
const cleanupTimeout = 2 * time.Minute

func newInjecting() *injecting {
	return &injecting{pin: "hard", dryRun: "none", timeout: rolloutTimeout, ttl: ttl.New()}
}

func newInjectCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	in := newInjecting()
	faults := newFaultFlags()
	cmd := &cobra.Command{
		Use:   "inject TYPE/NAME (--xid CODE | --error CODE | ...)",
		Short: "Load the shim into a workload's pods, and make their CUDA calls fail, wait or lie",
		Long: `Load the shim into the pods of one workload, and make their CUDA calls fail, wait or lie.

TYPE/NAME is anything with pod templates: Deployments, StatefulSets, DaemonSets, Jobs, JobSets, LeaderWorkerSets, PyTorchJobs, RayClusters,
DynamoGraphDeployments, and other custom resources; or a pod or ReplicaSet of one, which leads to it. The library comes in a ConfigMap; the pod
template gets its volume and LD_PRELOAD, and the workload's controller replaces the pods as with any other change. When they are ready, and
their processes have called the driver, the fault begins: so running processes see it as they do on hardware, and those that start afterwards
as such do. With --at-start it is there from the first call on.

When the time is up, all calls pass through. The pod template has the shim until the run is reverted. That replaces the
pods once more, where the workload's controller replaces them by itself.`,
		Example: `  # A GPU falls off the bus: running processes get error 999 until they end, new ones 100, and NVML says that it is lost
  kubectl gpu-fault cuda inject deployment/vllm --xid 79

  # Only where the bad node is: pods that are rescheduled elsewhere recover
  kubectl gpu-fault cuda inject deployment/vllm --xid 79 --only-on-node gpu-1

  # An illegal address in rank 3, in the launch after the first 1000
  kubectl gpu-fault cuda inject pytorchjob/llama --error illegal-address --rank 3 --after-calls 1000

  # Out of memory from 20 GiB on, for ten minutes, without asking
  kubectl gpu-fault cuda inject deployment/vllm --mem-limit 20Gi --ttl 10m --yes

  # Ready for a test: loaded, and armed later with ` + "`cuda arm`" + `
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
				return errors.New("--pin says how --pin-node keeps the pods on nodes, and that is missing")
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
		"Only these containers (default: those that request GPUs, or all where none does)")
	flags.StringSliceVar(&in.selection.Services, "service", nil,
		"Only these services, replica types or groups of a workload that has several pod templates")
	flags.StringSliceVar(&in.onlyOn, "only-on-node", nil,
		"The bad nodes: on others the shim passes calls through (default: all are)")
	flags.StringSliceVar(&in.pinTo, "pin-node", nil, "Keep the pods on these nodes")
	flags.StringVar(&in.pin, "pin", in.pin,
		"With --pin-node, hard (pods stay Pending where the nodes are full) or soft (they go elsewhere then)")
	flags.BoolVar(&in.disarmed, "disarmed", false, "Load the shim, and leave it to `cuda arm` to begin the fault")
	flags.Lookup("disarmed").Usage = "Load the shim, and leave it to cuda arm to begin the fault"
	flags.BoolVar(&in.atStart, "at-start", false, "Begin with the first call of the new pods, not once they are ready")
	flags.BoolVar(&in.recreate, "recreate", false,
		"Allow to delete and create again what cannot be changed, such as Jobs: their work begins anew")
	flags.BoolVar(&in.audit, "audit", false,
		"Load the shim by LD_AUDIT in place of LD_PRELOAD: it then also hits plugins opened with RTLD_DEEPBIND; glibc only")
	in.ttl.AddFlags(flags)
	flags.StringVar(&in.dryRun, "dry-run", in.dryRun,
		"none, client (say what would be done) or server (with all checks); change nothing")
	flags.Lookup("dry-run").NoOptDefVal = "client"
	flags.BoolVarP(&in.yes, "yes", "y", false, "Do not ask")
	flags.DurationVar(&in.timeout, "timeout", in.timeout, "How long the rollout of the workload may take")
	in.format.AddFlags(cmd)

	_ = cmd.RegisterFlagCompletionFunc("only-on-node", completion.Nodes(connection))
	_ = cmd.RegisterFlagCompletionFunc("pin-node", completion.Nodes(connection))
	_ = cmd.RegisterFlagCompletionFunc("pin",
		cobra.FixedCompletions([]string{"hard", "soft"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("container", completeContainer(connection))
	_ = cmd.RegisterFlagCompletionFunc("service", completeService(connection))
	_ = cmd.RegisterFlagCompletionFunc("dry-run",
		cobra.FixedCompletions([]string{"none", "client", "server"}, cobra.ShellCompDirectiveNoFileComp))
}

// validate checks everything that needs no cluster.
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
		return fmt.Errorf("--pin %s: choose hard or soft", in.pin)
	case in.disarmed && in.atStart:
		return errors.New(
			"--at-start begins the fault with the first call, and --disarmed does not begin it: give one of them",
		)
	case in.timeout <= 0:
		return fmt.Errorf("--timeout %s: give a time above 0, such as %s", in.timeout, rolloutTimeout)
	case in.dryRun != "none" && in.dryRun != "client" && in.dryRun != "server":
		return fmt.Errorf("--dry-run=%s: choose none, client or server", in.dryRun)
	}
	if len(in.onlyOn) > 0 && len(in.pinTo) > 0 &&
		!slices.ContainsFunc(in.pinTo, func(n string) bool { return slices.Contains(in.onlyOn, n) }) {
		return fmt.Errorf("--pin-node %s keeps the pods away from --only-on-node %s: no process would see the fault",
			strings.Join(in.pinTo, ","), strings.Join(in.onlyOn, ","))
	}
	in.fault.Nodes = in.onlyOn
	state, err := in.fault.State("cuda-xxxxxx", 1, time.Now(), time.Time{})
	if err != nil { // what does not fit shows now
		return err
	}
	in.onlyNew = seenAtStart(state)
	in.atStart = in.atStart || in.onlyNew && !in.disarmed
	return errors.Join(in.ttl.Validate(), in.format.Validate())
}

// tidyNames takes prefixes as `kubectl get -o name` has them off names, and refuses empty ones.
func tidyNames(flag string, names *[]string) error {
	var tidy []string
	for _, name := range *names {
		name = strings.TrimSpace(name)
		if strings.HasSuffix(flag, "-node") {
			name = strings.TrimPrefix(strings.TrimPrefix(name, "nodes/"), "node/")
		}
		if name == "" {
			return fmt.Errorf("%s: a name is empty: is a variable unset?", flag)
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
	s := session.New(ctx, cluster, connection.LedgerNamespace, 1, podflags.New(), progress.New(streams.ErrOut))
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
		say("Changes of %s, as the API server would take them:", d.workload.Ref())
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

// unlessLocked leaves out that another run is in the workload where its lock says so, and more.
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
