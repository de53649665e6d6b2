// Package runtime implements `kubectl gpu-fault runtime`, which shows and breaks the configuration of the containerd
// that a node's kubelet uses.
package runtime

import (
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// NewCommand returns `runtime` with its subcommands.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "runtime (show | break)",
		Short: "Show and break the container runtime's GPU configuration on nodes",
		Long: `Show which containerd a node's kubelet actually uses and how it is configured, and break this configuration in ways that also happen
by accident.

The original files are restored byte for byte on request, when the TTL expires, or when the debug pod is deleted, even if the client, the API
server or containerd is down.`,
		Example: `  # Show which containerd the kubelet uses, and whether it has the nvidia handler
  kubectl gpu-fault runtime show gpu-1

  # Make GPU pods fail with: no runtime for "nvidia" is configured
  kubectl gpu-fault runtime break gpu-1 --mode missing-handler`,
		// Report a mistyped subcommand, not the flags after it.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.UnknownCommand(cmd, args[:1])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newShowCommand(connection, streams), newBreakCommand(connection, streams))
	return cmd
}
