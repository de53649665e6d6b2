package network

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

func newLossCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	p := newPartition()
	cmd := &cobra.Command{
		Use:   "loss (--pod POD | --workload TYPE/NAME | NODE... | -l SELECTOR) --percent N [--to PEER]... [--from PEER]...",
		Short: "Drop some of the packets between pods and their peers, until the run is reverted or expires",
		Long: `Randomly drop a percentage of the packets between pods and their peers, in the kernel of the pods' nodes, as a bad cable or a congested switch
does. TCP retransmits lost packets: connections become slow, and fail only if the loss is high.

Targets, peers, limits, and how the fault is undone are the same as for network partition. --to drops packets that the pods send to the peer;
--from drops packets that they receive from it. By default, packets in both directions are dropped, so that a request or its response is more likely to be lost.

With --via chaos-mesh, packets are dropped on the sender: --from must be pod/NAME, and the default is --to any.

To verify the fault, the command sends enough packets from a pod that at least one is almost certainly dropped: 28 for 40 percent, 1375 for
1 percent.`,
		Example: `  # Drop 5 percent of the packets that a pod sends to another
  kubectl gpu-fault network loss --pod trainer-0 --to pod/trainer-1 --percent 5

  # Drop a third of the packets between the pods of a Deployment and an object store
  kubectl gpu-fault network loss --workload deployment/vllm -n infer --percent 33 \
      --to 203.0.113.0/24 --from 203.0.113.0/24`,
	}
	p.complete(cmd, connection, streams)
	cmd.Flags().IntVar(&p.loss, "percent", 0, "Percentage of the packets to drop, 1 to 99")
	validate := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := p.validateLoss(cmd.Flags().Changed("percent")); err != nil {
			return err
		}
		return validate(cmd, args)
	}
	return cmd
}

func (p *partition) validateLoss(given bool) error {
	switch {
	case !given:
		return errors.New("--percent is required: the percentage of the packets to drop, 1 to 99")
	case p.loss == 100:
		return errors.New("--percent 100 drops all packets: use kubectl gpu-fault network partition")
	case p.loss < 1 || p.loss > 99:
		return fmt.Errorf("invalid value %d for --percent: must be 1 to 99", p.loss)
	}
	return nil
}
