package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/containerdconfig"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/confirm"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/target"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/ttl"
)

// breaking is a command line of `runtime break`.
type breaking struct {
	nodes     target.Nodes
	mode      string
	handler   string
	noRestart bool
	probe     bool
	parallel  int
	dryRun    string
	yes       bool
	nodeLoss  bool
	allow     fault.Allowances
	ttl       ttl.Flags
	pods      podflags.Flags
	format    printer.Format

	info containerd.ModeInfo
}

// cleanupTimeout is for putting back what failed or was stopped: a debug pod, a restart of containerd, and its answer.
const cleanupTimeout = 5 * time.Minute

// nodeLossTTL is the default for modes in which nothing can be started on the node, so that only the node itself can
// end them.
const nodeLossTTL = 5 * time.Minute

// nodeLossMin leaves time to prove that a node is lost, and to look at it.
const nodeLossMin = 30 * time.Second

func newBreaking() *breaking {
	return &breaking{
		nodes: target.Nodes{NoPod: true}, handler: "nvidia", parallel: 10, dryRun: "none", ttl: ttl.New(),
		pods: podflags.New(),
	}
}

func newBreakCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	b := newBreaking()
	cmd := &cobra.Command{
		Use:   "break (NODE... | -l SELECTOR) --mode MODE",
		Short: "Break the containerd configuration of nodes in one exact way, until it is reverted or its time is up",
		Long: `Break the configuration that the kubelet's containerd really loads, restart containerd, and prove by CRI that the fault is there. Containers
that run go on.

The modes:
` + modeList() + `
Only the bytes in question are changed. A process on the node, the dead man, knows all files as they were before anything is changed: it puts
them back when the time is up, when its debug pod is deleted, or when the node is shut down, whoever else has died. Bytes, mode, owner,
extended attributes and times are then as before.

Configurations that something else writes again at every start (k3s, rke2, k0s and others), templates and read-only files are refused, with
the way that works there.`,
		Example: `  # GPU pods of runtime class nvidia do not start any more: no runtime for "nvidia" is configured
  kubectl gpu-fault runtime break gpu-1 --mode missing-handler

  # For ten minutes, and seen by a pod
  kubectl gpu-fault runtime break gpu-1 --mode binary-missing --ttl 10m --probe

  # Edited and not restarted: it breaks at containerd's next start
  kubectl gpu-fault runtime break gpu-1 --mode missing-handler --no-restart`,
		RunE: func(cmd *cobra.Command, args []string) error {
			b.nodes.Names = args
			if err := b.validate(cmd.Flags().Changed("ttl")); err != nil {
				return err
			}
			return b.run(cmd.Context(), connection, streams)
		},
		ValidArgsFunction: completion.Nodes(connection),
	}
	b.addFlags(cmd)
	return cmd
}

// modeList returns the table of modes. Help does not wrap it, so that it fits any terminal.
func modeList() string {
	const width, name = 80, 18
	var text strings.Builder
	for _, m := range containerd.Modes() {
		line := fmt.Sprintf("  %-*s %s", name, m.Mode, m.Summary)
		if m.NodeLoss {
			line += " (the node is lost in the meantime: --allow-node-loss)"
		}
		for _, part := range printer.WrapHanging(line, width, strings.Repeat(" ", name+3)) {
			text.WriteString(part + "\n")
		}
	}
	return text.String()
}

func (b *breaking) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&b.nodes.Selector, "selector", "l", "", "Nodes with these labels")
	flags.StringVar(&b.mode, "mode", "", "How to break it; see above")
	flags.StringVar(&b.handler, "handler", b.handler, "Runtime handler, as RuntimeClasses name it")
	flags.BoolVar(&b.noRestart, "no-restart", false, "Change the files and do not restart containerd")
	flags.BoolVar(&b.probe, "probe", false,
		"Prove it also by a pod with the handler's RuntimeClass, which must fail to start")
	flags.IntVar(&b.parallel, "parallel", b.parallel, "How many nodes at a time")
	b.ttl.AddFlags(flags)
	flags.Lookup("ttl").Usage += fmt.Sprintf(" (%s where the node is lost meanwhile)", "5m")
	flags.StringVar(&b.dryRun, "dry-run", b.dryRun,
		"none, client (say what would be done) or server (with all checks); change nothing")
	flags.Lookup("dry-run").NoOptDefVal = "client"
	flags.BoolVarP(&b.yes, "yes", "y", false, "Do not ask")
	flags.BoolVar(&b.nodeLoss, "allow-node-loss", false,
		"Allow modes after which containerd does not serve, and the node is NotReady until its dead man restores it")
	flags.BoolVar(&b.allow.ControlPlane, "allow-control-plane", false, "Allow nodes of the control plane")
	flags.BoolVar(&b.allow.LastGPUNode, "allow-last-gpu-node", false,
		"Allow a run that aims at every GPU node which is left")
	flags.BoolVar(&b.allow.Majority, "allow-majority", false,
		"Allow a run that aims at more than half of the GPU nodes")
	b.pods.AddFlags(cmd)
	b.format.AddFlags(cmd)

	var modes []cobra.Completion
	for _, m := range containerd.Modes() {
		modes = append(modes, cobra.CompletionWithDesc(string(m.Mode), m.Summary))
	}
	_ = cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("dry-run",
		cobra.FixedCompletions([]string{"none", "client", "server"}, cobra.ShellCompDirectiveNoFileComp))
}

// validate checks everything that needs no cluster.
func (b *breaking) validate(ttlGiven bool) error {
	if b.mode == "" {
		return errors.New(
			"give --mode MODE; `kubectl gpu-fault runtime break --help` says what each does, completion lists them",
		)
	}
	mode, err := containerd.ParseMode(b.mode)
	if err != nil {
		return fmt.Errorf("--mode: %w", err)
	}
	for _, m := range containerd.Modes() {
		if m.Mode == mode {
			b.info = m
		}
	}
	switch {
	case strings.TrimSpace(b.handler) == "":
		return errors.New("--handler: the name is empty; most GPU nodes have nvidia")
	case b.info.NodeLoss && !b.nodeLoss && !b.noRestart:
		return fmt.Errorf(
			"--mode %s: containerd does not serve after it, and the node is NotReady until its dead man restores it: give --allow-node-loss if you mean it, or --no-restart",
			mode,
		)
	case b.noRestart && b.probe:
		return errors.New("--probe: with --no-restart pods still start as before: leave out one of them")
	case b.probe && mode == containerd.ModeOptionMisplaced:
		return fmt.Errorf("--probe: with --mode %s pods start, and have no GPU; there is no error to wait for", mode)
	case b.probe && b.info.NodeLoss:
		return fmt.Errorf("--probe: no pod can be tried on a node that --mode %s takes away", mode)
	case b.parallel < 1:
		return fmt.Errorf("--parallel %d: give 1 or more", b.parallel)
	case b.dryRun != "none" && b.dryRun != "client" && b.dryRun != "server":
		return fmt.Errorf("--dry-run=%s: choose none, client or server", b.dryRun)
	}
	if b.info.NodeLoss && !ttlGiven && !b.noRestart {
		b.ttl.TTL = nodeLossTTL
	}
	if b.info.NodeLoss && b.ttl.TTL == 0 && !b.noRestart {
		return fmt.Errorf("--ttl 0: after --mode %s only the node's dead man can restore the node, so it needs a time",
			mode)
	}
	if b.info.NodeLoss && b.ttl.TTL > 0 && b.ttl.TTL < nodeLossMin && !b.noRestart {
		return fmt.Errorf("--ttl %s: that containerd does not serve after --mode %s takes 15s to prove: give %s or more",
			b.ttl.TTL, mode, nodeLossMin)
	}
	return errors.Join(b.nodes.Validate(), b.ttl.Validate(), b.pods.Validate(), b.format.Validate())
}

func (b *breaking) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	cluster, err := connection.Cluster()
	if err != nil {
		return err
	}
	names, _, err := b.nodes.Resolve(ctx, cluster.Client, cluster.Namespace)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { printer.Talk(streams.ErrOut, format, args...) }
	s := session.New(ctx, cluster, connection.LedgerNamespace, b.parallel, b.pods, progress.New(streams.ErrOut))
	rounds := (len(names) + b.parallel - 1) / b.parallel
	s.Timeout = time.Duration(rounds) * b.pods.Timeout
	s.CleanupTimeout = cleanupTimeout
	plan, err := b.plan(ctx, cluster, connection, names)
	if err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	if b.dryRun == "client" {
		b.before(say, names, cluster.Context)
		return b.printDryRun(streams, names, plan)
	}
	if err := s.Preflight(ctx, plan); err != nil {
		return fmt.Errorf("nothing was changed: %w", kube.Explain(err))
	}
	b.before(say, names, cluster.Context)
	if b.dryRun == "server" {
		return b.printDryRun(streams, names, plan)
	}
	if err := confirm.Ask(
		ctx, streams,
		fmt.Sprintf("Break containerd's configuration on %s in context %q?", list(names), cluster.Context), b.yes,
	); err != nil {
		return err
	}
	run, runErr := s.Run(ctx, plan)
	return errors.Join(b.print(streams, connection, run), kube.Explain(runErr))
}

func (b *breaking) injection(cluster *kube.Cluster, connection *kube.Connection) *containerdconfig.Injection {
	return &containerdconfig.Injection{
		Start:  session.StartPod(cluster, connection.LedgerNamespace, b.pods),
		Image:  b.pods.Image,
		Decide: b.decide,
	}
}

func (b *breaking) plan(
	ctx context.Context, cluster *kube.Cluster, connection *kube.Connection, names []string,
) (fault.Plan, error) {
	injection := b.injection(cluster, connection)
	plan := fault.Plan{
		Fault: "runtime", Summary: b.summary(), Command: session.CommandLine(os.Args), Allow: b.allow,
		Needs: Permissions(connection.LedgerNamespace),
	}
	b.ttl.Apply(&plan)
	if b.probe {
		probe, err := newProbe(ctx, cluster, connection.LedgerNamespace, b)
		if err != nil {
			return plan, err
		}
		injection.Probe = probe.run
	}
	for _, name := range names {
		plan.Changes = append(plan.Changes, injection.Change(ledger.Target{Kind: "Node", Name: name}, b.action()))
	}
	spec := b.pods.Spec("preflight", names[0], connection.LedgerNamespace)
	plan.Checks = append(plan.Checks, func(ctx context.Context) error { return b.pods.Try(ctx, cluster, spec) })
	return plan, nil
}

// Permissions returns what breaking a configuration needs beyond what every fault needs.
func Permissions(ledgerNamespace string) []fault.Permission {
	return append(fault.DebugPodPermissions(ledgerNamespace),
		// For --probe and show
		fault.Permission{Verb: "list", Group: "node.k8s.io", Resource: "runtimeclasses", Optional: true},
		fault.Permission{Verb: "list", Group: "apps", Resource: "daemonsets", Optional: true}) // for show
}

func (b *breaking) summary() string {
	text := fmt.Sprintf("containerd %s", b.info.Mode)
	if b.info.Mode != containerd.ModeUnparsable && b.info.Mode != containerd.ModeDefaultMissing {
		text += " (" + b.handler + ")"
	}
	if b.noRestart {
		text += ", not restarted"
	}
	return text
}

func (b *breaking) action() string {
	text := "change containerd's configuration (" + string(b.info.Mode) + ")"
	if !b.noRestart {
		text += " and restart it"
	}
	return text
}

func list(names []string) string {
	if len(names) == 1 {
		return "node " + names[0]
	}
	return count.Of(len(names), "node") + ": " + strings.Join(names, ", ")
}
