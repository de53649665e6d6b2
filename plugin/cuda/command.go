// Package cuda is `kubectl gpu-fault cuda`: faults of the GPU as programs see them, at the driver API, in the pods of
// one workload.
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
		Short: "Make CUDA calls of a workload fail, wait or lie, as with a broken GPU",
		Long: `Make the CUDA driver answer the programs of one workload as it does when a GPU is broken: errors, hangs, latency, too little memory,
missing devices, flipped bits.

A small library is loaded into the workload's processes. It stands between them and the driver, whichever way they come to it: PyTorch, NCCL,
cuBLAS and what links the CUDA runtime statically pass it too. It needs no image, no privilege and no GPU, and changes nothing on nodes. While it is
disarmed, or its time is up, calls pass through it.`,
		Example: `  # What programs see when a GPU falls off the bus
  kubectl gpu-fault cuda inject deployment/vllm --xid 79

  # Which processes have it loaded, and what happened to them
  kubectl gpu-fault cuda status deployment/vllm

  # Healthy again, without a restart; and broken again
  kubectl gpu-fault cuda disarm cuda-7k3f9q
  kubectl gpu-fault cuda arm cuda-7k3f9q

  # Take it out of the workload
  kubectl gpu-fault revert cuda-7k3f9q`,
		// A typo in the subcommand is to be told of, not the flags after it.
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

// workloads connects to where workloads are found and changed.
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

// checkReference refuses what is not TYPE/NAME.
func checkReference(text string) error {
	kind, name, found := strings.Cut(text, "/")
	switch {
	case strings.TrimSpace(text) == "":
		return errors.New("the workload is empty: is a variable unset?")
	case !found:
		return fmt.Errorf("%q is no workload: write TYPE/NAME, such as deployment/%s", text, text)
	case kind == "" || name == "" || strings.Contains(name, "/"):
		return fmt.Errorf("%q is no workload: write TYPE/NAME, such as deployment/web; the namespace is given with -n",
			text)
	}
	return nil
}
