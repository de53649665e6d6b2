package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/containerdconfig"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/nodefault"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// breaking holds the arguments and flags of `runtime break`.
type breaking struct {
	nodefault.Flags
	mode      string
	handler   string
	noRestart bool
	probe     bool
	nodeLoss  bool

	info containerd.ModeInfo
}

// cleanupTimeout limits the cleanup after a failure or an interruption, which includes starting a debug pod and
// restarting containerd.
const cleanupTimeout = 5 * time.Minute

// nodeLossTTL is the default TTL for modes in which no pod can start on the node, so that only the node itself can
// restore the configuration.
const nodeLossTTL = 5 * time.Minute

// nodeLossMin is the minimum TTL for these modes. It provides enough time to verify and observe the node loss.
const nodeLossMin = 30 * time.Second

func newBreaking() *breaking {
	b := &breaking{Flags: nodefault.New(), handler: "nvidia"}
	b.Nodes.NoPod = true
	return b
}

func newBreakCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	b := newBreaking()
	cmd := &cobra.Command{
		Use:   "break (NODE... | -l SELECTOR) --mode MODE",
		Short: "Break the containerd configuration on nodes in a specific way, until the run is reverted or expires",
		Long: `Break the configuration that the kubelet's containerd actually loads, restart containerd, and verify the fault through CRI. Running
containers are not affected.

The modes:
` + modeList() + `
Only the necessary bytes are changed. A process on the node, the dead man's switch, records the original files before anything is changed. It restores
them when the TTL expires, when the debug pod is deleted, or when the node shuts down, even if the client or the API server is down. Content,
mode, owner, extended attributes and times are also restored.

The command rejects templates, read-only files and configurations that are regenerated at every start (k3s, rke2, k0s and others), and
describes an alternative.`,
		Example: `  # Make pods with the nvidia RuntimeClass fail with: no runtime for "nvidia" is configured
  kubectl gpu-fault runtime break gpu-1 --mode missing-handler

  # Break a node for ten minutes, and verify the fault with a pod
  kubectl gpu-fault runtime break gpu-1 --mode binary-missing --ttl 10m --probe

  # Edit the files without a restart: the fault starts when containerd is restarted
  kubectl gpu-fault runtime break gpu-1 --mode missing-handler --no-restart`,
		RunE: func(cmd *cobra.Command, args []string) error {
			nodes, err := b.Fleet.Prepare(cmd, nil, args)
			if err != nil {
				return err
			}
			b.Nodes.Names = nodes
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

// modeList returns the table of modes, wrapped at 80 columns because the help does not wrap tables.
func modeList() string {
	const width, name = 80, 18
	var text strings.Builder
	for _, m := range containerd.Modes() {
		line := fmt.Sprintf("  %-*s %s", name, m.Mode, m.Summary)
		if m.NodeLoss {
			line += " (the node is lost until it is restored; requires --allow-node-loss)"
		}
		for _, part := range printer.WrapHanging(line, width, strings.Repeat(" ", name+3)) {
			text.WriteString(part + "\n")
		}
	}
	return text.String()
}

func (b *breaking) addFlags(cmd *cobra.Command) {
	b.AddFlags(cmd)
	flags := cmd.Flags()
	b.Fleet.AddFlags(flags)
	flags.Lookup("ttl").Usage += fmt.Sprintf(" (%s for modes that cause node loss)", "5m")
	flags.StringVar(&b.mode, "mode", "", "How to break the configuration (see above)")
	flags.StringVar(&b.handler, "handler", b.handler, "Runtime handler, as in a RuntimeClass")
	flags.BoolVar(&b.noRestart, "no-restart", false, "Change the files without restarting containerd")
	flags.BoolVar(&b.probe, "probe", false,
		"Also verify the fault with a pod that uses the handler's RuntimeClass and must fail to start")
	flags.BoolVar(&b.nodeLoss, "allow-node-loss", false,
		"Allow modes that stop containerd: the node is NotReady until the dead man's switch restores the configuration")

	var modes []cobra.Completion
	for _, m := range containerd.Modes() {
		modes = append(modes, cobra.CompletionWithDesc(string(m.Mode), m.Summary))
	}
	_ = cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp))
}

// validate checks everything that does not require a cluster.
func (b *breaking) validate(ttlGiven bool) error {
	if b.mode == "" {
		return errors.New(
			"specify --mode MODE; `kubectl gpu-fault runtime break --help` describes the modes",
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
		return errors.New("--handler must not be empty; most GPU nodes have the handler nvidia")
	case b.info.NodeLoss && !b.nodeLoss && !b.noRestart:
		return fmt.Errorf(
			"--mode %s stops containerd, and the node is NotReady until the dead man's switch restores the configuration: pass --allow-node-loss to allow this, or --no-restart",
			mode,
		)
	case b.noRestart && b.probe:
		return errors.New("--probe and --no-restart cannot be used together: without a restart, pods still start")
	case b.probe && mode == containerd.ModeOptionMisplaced:
		return fmt.Errorf("--probe cannot be used with --mode %s: pods start, but have no GPU", mode)
	case b.probe && b.info.NodeLoss:
		return fmt.Errorf("--probe cannot be used with --mode %s: no pod can start on a lost node", mode)
	}
	if b.info.NodeLoss && !ttlGiven && !b.noRestart {
		b.TTL.TTL = nodeLossTTL
	}
	if b.info.NodeLoss && b.TTL.TTL == 0 && !b.noRestart {
		return fmt.Errorf("--mode %s requires a TTL above 0: only the dead man's switch can restore the node",
			mode)
	}
	if b.info.NodeLoss && b.TTL.TTL > 0 && b.TTL.TTL < nodeLossMin && !b.noRestart {
		return fmt.Errorf("--ttl %s is too short for --mode %s: verifying the node loss takes 15s; must be %s or more",
			b.TTL.TTL, mode, nodeLossMin)
	}
	return b.Flags.Validate()
}

func (b *breaking) run(ctx context.Context, connection *kube.Connection, streams genericiooptions.IOStreams) error {
	return b.Run(ctx, connection, streams, nodefault.Fault{
		Name: "runtime", Summary: b.summary(), Result: "broken", Question: "Break containerd's configuration on",
		Describe: b.describe, Needs: Permissions(connection.LedgerNamespace), CleanupTimeout: cleanupTimeout,
		Changes: func(
			ctx context.Context, cluster *kube.Cluster, nodes []string, _ *corev1.Pod,
		) (changes []fault.Change, _ error) {
			injection := b.injection(cluster, connection)
			if b.probe {
				probe, err := newProbe(ctx, cluster, connection.LedgerNamespace, b)
				if err != nil {
					return nil, err
				}
				injection.Probe = probe.run
			}
			for _, name := range nodes {
				changes = append(changes, injection.Change(ledger.Target{Kind: "Node", Name: name}, b.action()))
			}
			return changes, nil
		},
	})
}

func (b *breaking) injection(cluster *kube.Cluster, connection *kube.Connection) *containerdconfig.Injection {
	return &containerdconfig.Injection{
		Start:  session.StartPod(cluster, connection.LedgerNamespace, b.Pods),
		Image:  b.Pods.Image,
		Decide: b.decide,
	}
}

// Permissions returns the permissions for breaking a configuration, in addition to those for every fault.
func Permissions(ledgerNamespace string) []fault.Permission {
	return append(fault.DebugPodPermissions(ledgerNamespace),
		// Required for --probe and show.
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
