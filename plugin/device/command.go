// Package device implements `kubectl gpu-fault device`, which lists the devices of nodes, makes the kubelet consider
// them unhealthy, and taints devices of DRA drivers.
package device

import (
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// NewCommand returns `device` with its subcommands.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "device (list | unhealthy | taint | reset)",
		Short: "List the devices of nodes, make them unhealthy, taint or reset them",
		Long: `List the devices that device plugins have registered with the kubelet of a node, and make the kubelet consider some of them unhealthy.
Dynamic resource allocation (DRA) devices can be tainted. This works with the device plugins and DRA drivers of any vendor, and without access to the hardware.

The reset subcommand makes NVIDIA's driver reset a GPU.`,
		Example: `  # List the devices of gpu-1, with the pods that use them
  kubectl gpu-fault device list gpu-1

  # Make GPU 1 of gpu-1 unhealthy
  kubectl gpu-fault device unhealthy gpu-1 --gpu 1`,
		// Report a mistyped subcommand, not the flags after it.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.UnknownCommand(cmd, args[:1])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newListCommand(connection, streams), newUnhealthyCommand(connection, streams),
		newTaintCommand(connection, streams), newResetCommand(connection, streams))
	return cmd
}
