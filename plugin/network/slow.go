package network

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

func newSlowCommand(connection *kube.Connection, streams genericiooptions.IOStreams) *cobra.Command {
	p := newPartition()
	var latency, jitter time.Duration
	var rate string
	cmd := &cobra.Command{
		Use:   "slow (--pod POD | --workload TYPE/NAME | NODE... | -l SELECTOR) [--latency TIME [--jitter TIME]] [--rate RATE] [--from PEER]...",
		Short: "Delay the packets that pods receive, or limit their rate, until the run is reverted or expires",
		Long: `Delay the packets that pods receive from their peers, or limit their rate, in the kernel of the pods' nodes, as a congested or a degraded
link does.

Targets, peers, limits, and how the fault is undone are the same as for network partition. Only packets that the pods receive are delayed: the
latency is added once per round trip, and twice if the peer is also one of the selected pods. --from selects the peers; by default, packets from all
addresses are delayed.

The packets wait in a queueing discipline (tc) on the node's end of the pods' links: in HTB, and for --latency also in netem. Most kernels have
both as modules. If a node's kernel lacks one, if a pod's link is not a veth link, or if the link already has a queueing discipline,
such as one from the bandwidth plugin, the command reports this and changes nothing.

With --via chaos-mesh, packets are delayed on the sender: --to selects the peers to which the pods send, --from must be pod/NAME, and the
default is --to any.

To verify the fault, the command connects from a pod to a peer, and measures the response time. The peer must respond; rejecting the connection is
also a response. The kernel ends the fault when the TTL expires.`,
		Example: `  # Delay all packets that a pod receives by 100 ms, plus or minus 20 ms
  kubectl gpu-fault network slow --pod trainer-0 --latency 100ms --jitter 20ms

  # Limit the traffic that the pods of a Deployment receive from an object store to 10 Mbit/s
  kubectl gpu-fault network slow --workload deployment/vllm -n infer --rate 10M \
      --from 203.0.113.0/24`,
	}
	p.complete(cmd, connection, streams)
	flags := cmd.Flags()
	flags.Lookup("to").Usage = "Slow down packets to this peer; requires --via chaos-mesh"
	flags.Lookup("from").Usage = "Slow down packets from this peer; may be specified up to 16 times"
	flags.Lookup("port").Usage = "Port of the pods at which the packets arrive"
	flags.DurationVar(&latency, "latency", 0, "Delay of packets, such as 100ms; at most 1m")
	flags.DurationVar(&jitter, "jitter", 0, "Maximum random variation of the latency; must not exceed the latency")
	flags.StringVar(&rate, "rate", "", "Maximum rate in bits per second, such as 10M; 8k to 100G")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if len(p.to) > 0 && !p.byChaosMesh() {
			return errors.New("--to requires --via chaos-mesh: the node's kernel delays only packets that the pods receive; use --from")
		}
		if p.slow, err = slowOf(latency, jitter, rate); err != nil {
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

// slowOf returns the delay and rate that the flags request.
func slowOf(latency, jitter time.Duration, rate string) (*api.Slow, error) {
	s := &api.Slow{Latency: latency, Jitter: jitter}
	switch {
	case latency == 0 && rate == "":
		return nil, errors.New("nothing to do: specify --latency, --rate, or both")
	case latency < 0 || latency > api.MaxLatency:
		return nil, fmt.Errorf("invalid value %s for --latency: must be at most %s", latency, api.MaxLatency)
	case jitter < 0 || jitter > latency:
		return nil, fmt.Errorf("invalid value %s for --jitter: must be at most the latency, %s", jitter, latency)
	case rate == "":
		return s, nil
	}
	bits, err := resource.ParseQuantity(rate)
	if err != nil || bits.Value() < api.MinRate || bits.Value() > api.MaxRate {
		return nil, fmt.Errorf("invalid value %q for --rate: must be 8k to 100G bits per second", rate)
	}
	s.Rate = uint64(bits.Value())
	return s, nil
}
