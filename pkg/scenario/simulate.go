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

// Simulation is GPUs that an exercise itself advertises on nodes, in a cluster that has none.
type Simulation struct {
	GPUs  int      `json:"gpus"` // on each of the nodes
	Nodes []string `json:"nodes"`
}

// MostSimulatedGPUs is how many a node may advertise: as many as the largest machines have.
const MostSimulatedGPUs = 16

// What simulated GPUs are called, and how much memory each has.
const (
	labelMachine     = "nvidia.com/gpu.machine"
	labelProduct     = "nvidia.com/gpu.product"
	labelMemory      = "nvidia.com/gpu.memory"
	simulatedProduct = "Simulated-GPU"
	simulatedMemory  = 16384 // MiB
)

// Labels returns those that GPU feature discovery would set, as far as scenarios look at them, and the one that says
// that the GPUs are simulated. nvidia.com/gpu.present is not among them: device plugins and exporters would be started
// on the nodes by it.
func (s Simulation) Labels() map[string]string {
	return map[string]string{
		labelMachine: "Simulated", labelProduct: simulatedProduct, labelMemory: strconv.Itoa(simulatedMemory),
		"nvidia.com/gpu.count": strconv.Itoa(s.GPUs),
	}
}

// SimulatedNote tells candidates what nodes lack that only say that they have GPUs.
const SimulatedNote = "The simulated GPUs are only offered to the scheduler: the nodes have no driver, no device plugin and no nvidia-smi."

// SimulateGPUs returns what the cluster is like once as many GPUs are advertised on each of some of its nodes: on so
// many as are asked for, or as there are, those of the control plane last. It changes nothing. A cluster that has GPUs
// is refused: others' pods that wait for one would get one that is none.
func SimulateGPUs(ctx context.Context, client kubernetes.Interface, gpus, nodes int) (Facts, error) {
	if gpus < 1 || gpus > MostSimulatedGPUs {
		return Facts{},
			fmt.Errorf("%s cannot be simulated on a node: specify 1 to %d", count.Of(gpus, "GPU"), MostSimulatedGPUs)
	}
	all, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Facts{}, fmt.Errorf("listing the nodes: %w", err)
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

// simulate puts GPUs on nodes of a cluster without.
func (f Facts) simulate(gpus, nodes int) (Facts, error) {
	if len(f.Nodes) == 0 {
		return Facts{}, errors.New(
			"GPUs are simulated on nodes that are Ready and take pods without tolerations, and there is none: uncordon or untaint one",
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

// noGPUs refuses a node that has GPUs, by what a device plugin, GPU feature discovery or node feature discovery says of
// it.
func noGPUs(n *corev1.Node) error {
	if simulated(n) && n.Annotations["kwok.x-k8s.io/node"] == "" {
		return fmt.Errorf(
			"node %s has simulated GPUs already: leave --simulate-gpus out, or end the exercise that made them first (kubectl gpu-fault scenario status)",
			n.Name,
		)
	}
	why := ""
	for name, quantity := range n.Status.Capacity {
		if strings.HasPrefix(string(name), "nvidia.com/") && !quantity.IsZero() {
			why = fmt.Sprintf("it offers %s", name)
		}
	}
	for label, value := range n.Labels {
		// NVIDIA's devices by their PCI vendor, as node feature discovery has them.
		isPCI := strings.HasPrefix(label, "feature.node.kubernetes.io/pci-") && strings.Contains(label, "10de") &&
			value == "true"
		if why == "" && (isPCI || strings.HasPrefix(label, "nvidia.com/gpu.")) {
			why = "it has the label " + label
		}
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("node %s has GPUs (%s), and they are simulated only in clusters without: others' pods that wait for a GPU would get one that is none; "+
		"leave --simulate-gpus out", n.Name, why)
}
