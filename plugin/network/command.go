// Package network implements `kubectl gpu-fault network`, which cuts pods off from their peers or drops some of their
// packets.
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
		Use:   "network partition | loss",
		Short: "Cut pods off from other pods, DNS or networks, or drop some of their packets",
		Long: `Cut pods off from other pods, from DNS or from networks, or drop some of the packets between them, by rules in the kernel of their
nodes.`,
		Example: `  # Cut a pod off from everything for five minutes
  kubectl gpu-fault network partition --pod trainer-0 --ttl 5m

  # Drop 5 percent of the packets that a pod sends
  kubectl gpu-fault network loss --pod trainer-0 --to any --percent 5`,
		// Report a mistyped subcommand, not the flags after it.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.UnknownCommand(cmd, args[:1])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newPartitionCommand(connection, streams), newLossCommand(connection, streams))
	return cmd
}
