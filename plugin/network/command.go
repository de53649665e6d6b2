// Package network implements `kubectl gpu-fault network`, which cuts pods off from their peers, drops some of their
// packets, or slows them down.
package network

import (
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// NewCommand returns `network` with its subcommands.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "network partition | loss | slow",
		Short: "Cut pods off from other pods, DNS or networks, drop some of their packets, or slow the packets down",
		Long: `Cut pods off from other pods, DNS or networks, drop some of their packets, or slow the packets down, with rules in the nodes'
kernels.`,
		Example: `  # Cut a pod off from everything for five minutes
  kubectl gpu-fault network partition --pod trainer-0 --ttl 5m

  # Drop 5 percent of the packets that a pod sends
  kubectl gpu-fault network loss --pod trainer-0 --to any --percent 5

  # Delay the packets that a pod receives by 100 ms
  kubectl gpu-fault network slow --pod trainer-0 --latency 100ms`,
		// Report a mistyped subcommand, not the flags after it.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.UnknownCommand(cmd, args[:1])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newPartitionCommand(connection, streams), newLossCommand(connection, streams),
		newSlowCommand(connection, streams))
	return cmd
}
