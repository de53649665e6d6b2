package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Simulation describes the GPUs that an exercise itself advertises on nodes of a cluster without GPUs.
type Simulation struct {
	GPUs  int      `json:"gpus"` // on each of the nodes
	Nodes []string `json:"nodes"`
}

// MostSimulatedGPUs is the maximum number of simulated GPUs per node: the number in the largest real machines.
const MostSimulatedGPUs = 16

// Labels, product name and memory size of simulated GPUs.
const (
	labelMachine     = "nvidia.com/gpu.machine"
	labelProduct     = "nvidia.com/gpu.product"
	labelMemory      = "nvidia.com/gpu.memory"
	simulatedProduct = "Simulated-GPU"
	simulatedMemory  = 16384 // MiB
)

// Labels returns the labels of GPU feature discovery that scenarios use, and a label that marks the GPUs as
// simulated. It omits nvidia.com/gpu.present, which would start device plugins and exporters on the nodes.
func (s Simulation) Labels() map[string]string {
	return map[string]string{
		labelMachine: "Simulated", labelProduct: simulatedProduct, labelMemory: strconv.Itoa(simulatedMemory),
		"nvidia.com/gpu.count": strconv.Itoa(s.GPUs),
	}
}

// SimulatedNote describes for candidates what nodes with simulated GPUs lack.
const SimulatedNote = "The simulated GPUs exist only for the scheduler: the nodes have no driver, device plugin or nvidia-smi."

// SimulateGPUs returns the facts of the cluster as if the given number of GPUs were advertised on each of the given
// number of nodes, or on all nodes if there are fewer. It picks control plane nodes last. It does not change the
// cluster. It rejects a cluster that has GPUs, because other users' pending pods would be scheduled on the nodes with
// simulated GPUs.
func SimulateGPUs(ctx context.Context, client kubernetes.Interface, gpus, nodes int) (Facts, error) {
	if gpus < 1 || gpus > MostSimulatedGPUs {
		return Facts{},
			fmt.Errorf("cannot simulate %s on a node: the number must be 1 to "+
				"%d", count.Of(gpus, "GPU"), MostSimulatedGPUs)
	}
	all, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Facts{}, fmt.Errorf("list nodes: %w", err)
	}
	for i := range all.Items {
		if err := noGPUs(&all.Items[i]); err != nil {
			return Facts{}, err
		}
	}
	f, err := GatherFacts(ctx, client)
	if err != nil {
		return Facts{}, err
	}
	return f.simulate(gpus, nodes)
}

// simulate adds GPUs to the nodes of a cluster without GPUs.
func (f Facts) simulate(gpus, nodes int) (Facts, error) {
	if len(f.Nodes) == 0 {
		return Facts{}, errors.New(
			"cannot simulate GPUs: no node is Ready and accepts pods without tolerations; uncordon or untaint a node",
		)
	}
	f.Nodes = slices.SortedStableFunc(slices.Values(f.Nodes), func(a, b NodeFacts) int {
		switch {
		case a.ControlPlane == b.ControlPlane:
			return 0
		case a.ControlPlane:
			return 1
		}
		return -1
	})
	f.Simulated, f.Simulation, f.Architecture = true, &Simulation{GPUs: gpus}, ""
	for i := range f.Nodes[:min(nodes, len(f.Nodes))] {
		n := &f.Nodes[i]
		n.GPUs, n.FreeGPUs, n.Product, n.MemoryMiB = gpus, gpus, simulatedProduct, simulatedMemory
		f.Simulation.Nodes = append(f.Simulation.Nodes, n.Name)
	}
	f.summarize()
	return f, nil
}

// noGPUs returns an error if the node has GPUs according to its device plugin, GPU feature discovery or node
// feature discovery.
func noGPUs(n *corev1.Node) error {
	if simulated(n) && n.Annotations["kwok.x-k8s.io/node"] == "" {
		return fmt.Errorf(
			"node %q already has simulated GPUs: omit --simulate-gpus, or end the exercise that created them; to "+
				"find the exercise, run: kubectl gpu-fault scenario status",
			n.Name,
		)
	}
	why := ""
	for name, quantity := range n.Status.Capacity {
		if strings.HasPrefix(string(name), "nvidia.com/") && !quantity.IsZero() {
			why = fmt.Sprintf("resource %s", name)
		}
	}
	for label, value := range n.Labels {
		// Node feature discovery labels NVIDIA devices by their PCI vendor ID.
		isPCI := strings.HasPrefix(label, "feature.node.kubernetes.io/pci-") && strings.Contains(label, "10de") &&
			value == "true"
		if why == "" && (isPCI || strings.HasPrefix(label, "nvidia.com/gpu.")) {
			why = "label " + label
		}
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("node %q has GPUs (%s): cannot simulate GPUs in a cluster with real ones, because pending pods might be scheduled on simulated GPUs; "+
		"omit --simulate-gpus", n.Name, why)
}
