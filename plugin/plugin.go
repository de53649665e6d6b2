// Package plugin is the command line of kubectl gpu-fault. Each verb has a package of its own below this one; here they are put
// together.
package plugin

import (
	"context"
	"errors"
	"flag"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/completion"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/faults"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/rbac"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/version"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/xid"
)

// The exit codes, a contract for scripts.
const (
	ExitDone        = 0
	ExitError       = 1   // could not
	ExitInterrupted = 130 // 128 + SIGINT, as shells have it
)

// ErrInterrupted is the cause of a context that Ctrl-C ended.
var ErrInterrupted = errors.New("interrupted")

// NewCommand returns `kubectl gpu-fault`.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	connection := kube.NewConnection(streams)
	cmd := &cobra.Command{
		Use:   "gpu-fault",
		Short: "Break GPU nodes on purpose, prove it, and put everything back",
		Long: `Break GPU nodes and GPU workloads on purpose, prove that the fault landed, show what the cluster did about it, and put
everything back.

Nothing has to be installed in the cluster: what a fault needs on a node comes in a privileged pod that deletes itself.`,
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpu-fault"},
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
		faults.NewListCommand(connection, streams),
		faults.NewRevertCommand(connection, streams),
		rbac.NewCommand(connection, streams),
		version.NewCommand(connection, streams),
		completion.NewCommand(streams),
	)
	fromEnvironment(cmd)
	completion.Register(cmd, connection)
	return cmd
}

// addVerbosity registers klog's -v and leaves its other flags out.
func addVerbosity(cmd *cobra.Command) {
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	cmd.PersistentFlags().AddGoFlag(all.Lookup("v"))
}

// ErrorMessage is what the user reads on stderr.
func ErrorMessage(err error) string {
	return "error: " + strings.TrimPrefix(kube.Explain(err).Error(), "error: ")
}

// ExitCode maps the outcome to the exit code.
func ExitCode(ctx context.Context, err error) int {
	switch {
	case errors.Is(context.Cause(ctx), ErrInterrupted):
		return ExitInterrupted
	case err != nil:
		return ExitError
	default:
		return ExitDone
	}
}
