// Package runtime is `kubectl gpu-fault runtime`: which containerd the kubelets of nodes use and how it is configured,
// and breaking that configuration on purpose.
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
		Long: `Show which containerd the kubelet of a node really uses, and how it is configured; break that configuration on purpose, in the ways in
which it breaks by accident.

A change is restored byte for byte: on request, when its time is up, or when its debug pod is deleted, also when the client, the API
server or containerd itself are gone.`,
		Example: `  # Which containerd does the kubelet use, and does it know the handler nvidia?
  kubectl gpu-fault runtime show gpu-1

  # GPU pods fail with: no runtime for "nvidia" is configured
  kubectl gpu-fault runtime break gpu-1 --mode missing-handler`,
		// A typo in the subcommand is to be told of, not the flags after it.
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
