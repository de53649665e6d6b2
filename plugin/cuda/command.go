// Package cuda implements `kubectl gpu-fault cuda`: it simulates GPU faults at the driver API for the programs in one
// workload.
package cuda

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/usage"
)

// NewCommand returns `cuda` with its subcommands.
func NewCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cuda (inject | arm | disarm | status | profiles)",
		Short: "Make a workload's CUDA calls fail, hang or return wrong data, as a broken GPU does",
		Long: `For the programs in one workload, make the CUDA driver behave as if a GPU were broken: errors, hangs, latency, too little memory,
missing devices, flipped bits.

A small library (the shim) is loaded into the workload's processes. It intercepts all their driver calls, including those from PyTorch, NCCL,
cuBLAS and programs that link the CUDA runtime statically. It requires no special image, no privileges and no GPU, and changes
nothing on nodes. While the shim is disarmed or its TTL has expired, calls pass through it.`,
		Example: `  # Simulate a GPU that falls off the bus
  kubectl gpu-fault cuda inject deployment/vllm --xid 79

  # Show which processes have loaded the shim, and what it has done in them
  kubectl gpu-fault cuda status deployment/vllm

  # Stop the fault without a restart, and start it again
  kubectl gpu-fault cuda disarm cuda-7k3f9q
  kubectl gpu-fault cuda arm cuda-7k3f9q

  # Remove the shim from the workload
  kubectl gpu-fault revert cuda-7k3f9q`,
		// Report a mistyped subcommand, not the flags after it.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.UnknownCommand(cmd, args[:1])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(
		newInjectCommand(connection, streams),
		newArmCommand(connection, streams),
		newDisarmCommand(connection, streams),
		newStatusCommand(connection, streams),
		newProfilesCommand(streams),
	)
	return cmd
}

// workloads returns a client that finds and changes workloads.
func workloads(connection *kube.Connection, cluster *kube.Cluster) (*cudashim.Cluster, error) {
	objects, err := dynamic.NewForConfig(cluster.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cluster.Config.Host, err)
	}
	mapper, err := connection.ToRESTMapper()
	if err != nil {
		return nil, kube.Explain(err)
	}
	return &cudashim.Cluster{Client: cluster.Client, Dynamic: objects, Mapper: mapper}, nil
}

// checkReference returns an error if text is not of the form TYPE/NAME.
func checkReference(text string) error {
	kind, name, found := strings.Cut(text, "/")
	switch {
	case strings.TrimSpace(text) == "":
		return errors.New("the workload name is empty: is a variable unset?")
	case !found:
		return fmt.Errorf("invalid workload %q: must be TYPE/NAME, such as deployment/%s", text, text)
	case kind == "" || name == "" || strings.Contains(name, "/"):
		return fmt.Errorf("invalid workload %q: must be TYPE/NAME, such as deployment/web; specify the namespace with -n",
			text)
	}
	return nil
}
