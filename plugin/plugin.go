// Package plugin implements the command line of kubectl gpu-fault. It assembles the commands, each of which has its own
// subpackage.
package plugin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/cuda"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/device"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/faults"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/image"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/network"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/rbac"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/runtime"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/version"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/xid"
)

// Exit codes on which scripts may rely.
const (
	ExitDone        = 0
	ExitError       = 1   // the command failed
	ExitNo          = 2   // the command succeeded with a negative result
	ExitInterrupted = 130 // 128 + SIGINT, as in shells
)

// ErrInterrupted is the cancellation cause of a context after Ctrl-C.
var ErrInterrupted = errors.New("interrupted")

// NewCommand returns `kubectl gpu-fault`.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	streams.Out, streams.ErrOut = printer.Screen(streams.Out), printer.Screen(streams.ErrOut)
	connection := kube.NewConnection(streams)
	cmd := &cobra.Command{
		Use:   "gpu-fault",
		Short: "Break GPU nodes on purpose, verify the fault, and restore everything",
		Long: `Break GPU nodes and GPU workloads on purpose, verify that the fault took effect, show how the cluster reacted, and then put
everything back.

Nothing has to be installed in the cluster: faults on a node run in a privileged pod that is deleted afterwards.`,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpu-fault"},
		Args:        cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.UnknownCommand(cmd, args[:1])
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true, DisableDefaultCmd: true},
	}
	cmd.SetIn(streams.In)
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	connection.AddFlags(cmd.PersistentFlags())
	addVerbosity(cmd)

	cmd.AddCommand(
		xid.NewCommand(connection, streams),
		cuda.NewCommand(connection, streams),
		runtime.NewCommand(connection, streams),
		device.NewCommand(connection, streams),
		network.NewCommand(connection, streams),
		scenario.NewCommand(connection, streams),
		doctor.NewCommand(connection, streams),
		experiment.NewRunCommand(connection, streams, NewCommand),
		faults.NewListCommand(connection, streams),
		experiment.NewWatchCommand(connection, streams),
		faults.NewRevertCommand(connection, streams),
		faults.NewLeftoversCommand(connection, streams),
		image.NewCommand(streams),
		rbac.NewCommand(connection, streams),
		version.NewCommand(connection, streams),
		completion.NewCommand(streams),
	)
	warnOfExpired(cmd, connection, streams)
	nameFeatures(cmd, connection)
	setHelp(cmd)
	cmd.SetFlagErrorFunc(usage.FlagError)
	completion.Register(cmd, connection)
	return cmd
}

// nameFeatures makes the commands of each feature of `rbac print` mention that feature and its namespace if the API
// server denies them access.
func nameFeatures(root *cobra.Command, connection *kube.Connection) {
	for _, top := range root.Commands() {
		if !slices.ContainsFunc(rbac.Features(), func(f rbac.Feature) bool { return f.Name == top.Name() }) {
			continue
		}
		for _, cmd := range withSubcommands(top) {
			if run := cmd.RunE; run != nil {
				cmd.RunE = func(cmd *cobra.Command, args []string) error {
					connection.Features = []string{top.Name()}
					if namespace, _, err := connection.ToRawKubeConfigLoader().Namespace(); err == nil &&
						top.Name() == "cuda" {
						connection.RoleFlags = []string{"-n", namespace}
					}
					if f := cmd.Flags().Lookup("expect"); f != nil && f.Changed {
						connection.Features = append(connection.Features, "watch")
					}
					return connection.Explain(run(cmd, args))
				}
			}
		}
	}
}

func withSubcommands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		all = append(all, withSubcommands(sub)...)
	}
	return all
}

// addVerbosity registers klog's -v but none of its other flags.
func addVerbosity(cmd *cobra.Command) {
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	v := all.Lookup("v")
	v.Usage = "Log verbosity from 0 to 9; 6 shows requests to the API server"
	cmd.PersistentFlags().AddGoFlag(v)
}

// ErrorMessage returns the message to print to stderr, or "" if there is nothing more to print.
func ErrorMessage(err error) string {
	if no := (*usage.Verdict)(nil); errors.As(err, &no) {
		return printer.Escape(no.Message)
	}
	text := kube.Explain(err).Error()
	var file *fs.PathError
	// For a missing kubeconfig, clientcmd returns only the stat error.
	if errors.As(err, &file) && file.Op == "stat" && errors.Is(file, fs.ErrNotExist) {
		missing := fmt.Errorf("kubeconfig %s does not exist", file.Path)
		text = strings.Replace(text, file.Error(), missing.Error(), 1)
	}
	// Errors contain untrusted strings from file names, kubelets and webhooks.
	return "error: " + printer.Escape(strings.TrimPrefix(text, "error: "))
}

// ExitCode returns the exit code for a command's error.
func ExitCode(ctx context.Context, err error) int {
	switch {
	case err == nil: // even if a signal arrived after the work was complete
		return ExitDone
	case errors.Is(context.Cause(ctx), ErrInterrupted):
		return ExitInterrupted
	case errors.As(err, new(*usage.Verdict)):
		return ExitNo
	default:
		return ExitError
	}
}
