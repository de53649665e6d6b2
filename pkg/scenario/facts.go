package scenario

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// GPUResource is the resource name of GPUs in requests and limits.
const GPUResource = "nvidia.com/gpu"

// Facts describe the cluster to a scenario: facts.nodes[0].name, facts.gpusPerNode.
type Facts struct {
	// Nodes are the Ready and schedulable nodes, sorted by name, with GPU nodes first.
	Nodes []NodeFacts `json:"nodes"`
	// GPUNodes is the number of nodes with GPUs.
	GPUNodes int `json:"gpuNodes"`
	// GPUsPerNode is the smallest number of GPUs on a GPU node, and MostGPUs the largest.
	GPUsPerNode int `json:"gpusPerNode"`
	MostGPUs    int `json:"mostGPUs"`
	// Architecture is the architecture of the GPU nodes (amd64), or "" if they differ.
	Architecture string `json:"architecture"`
	// Simulated is set if the GPUs are not real. Simulation describes the GPUs that the exercise itself
	// advertises, if any.
	Simulated  bool        `json:"simulated"`
	Simulation *Simulation `json:"simulation,omitempty"`
	// Lab is set if the nodes have the trainer image, registry.lab.internal/ml/trainer, like the nodes of this
	// project's test cluster.
	Lab bool `json:"lab"`
	// Workload is the trainer's Deployment that the exercise uses; absent if the scenario creates its own.
	Workload *WorkloadFacts `json:"workload,omitempty"`
	// WaitingGPUs is the number of GPUs that unscheduled pods request.
	WaitingGPUs int `json:"waitingGPUs,omitempty"`
	// RuntimeClass is the class that gives pods the NVIDIA runtime, or "" if the cluster has none. If the NVIDIA
	// runtime is not the default on the nodes, pods need the class to see their GPUs; otherwise it has no effect.
	RuntimeClass string `json:"runtimeClass"`
	// Registry is the cluster's local registry, as HOST:PORT for the nodes (KEP-1755), or "" if there is none.
	Registry string `json:"registry"`
	// RegistryAddress is the address of the local registry for clients outside the nodes, such as crane, or "" if it is
	// not published.
	RegistryAddress string `json:"registryAddress"`
	// Kubernetes is the version of the API server, such as v1.36.3.
	Kubernetes string `json:"kubernetes"`
}

// NodeFacts describe one node.
type NodeFacts struct {
	Name         string `json:"name"`
	Architecture string `json:"architecture"` // amd64, arm64
	Hostname     string `json:"hostname"`     // value of the label kubernetes.io/hostname, which selectors use
	GPUs         int    `json:"gpus"`         // number of allocatable GPUs
	FreeGPUs     int    `json:"freeGPUs"`     // number of allocatable GPUs that no pod has requested
	Product      string `json:"product"`      // NVIDIA-H200
	MemoryMiB    int    `json:"memoryMiB"`    // memory of one GPU
	ControlPlane bool   `json:"controlPlane"`
	Runtime      string `json:"runtime"` // containerd://2.3.7
	// Labels are the node's labels, for selects(spec, node). They are read when a check needs them, and not stored,
	// because a large cluster has millions of labels.
	Labels map[string]string `json:"labels,omitempty"`
}

// GatherFacts reads the facts from the cluster.
func GatherFacts(ctx context.Context, client kubernetes.Interface) (Facts, error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Facts{}, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx,
		metav1.ListOptions{FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		return Facts{}, fmt.Errorf("list pods to count free GPUs: %w", err)
	}
	taken := gpusTaken(pods.Items)
	f := Facts{WaitingGPUs: int(taken[""])}
	for i := range nodes.Items {
		if n := &nodes.Items[i]; usable(n) {
			f.Nodes = append(f.Nodes, nodeFacts(n, taken[n.Name]))
			f.Simulated = f.Simulated || simulated(n)
			f.Lab = f.Lab || lab(n)
		}
	}
	if version, err := client.Discovery().ServerVersion(); err == nil {
		f.Kubernetes = version.GitVersion
	}
	f.RuntimeClass = nvidiaRuntimeClass(ctx, client)
	f.Registry, f.RegistryAddress = localRegistry(ctx, client)
	f.summarize()
	return f, nil
}

// nvidiaRuntimeClass returns the class whose handler has the name that NVIDIA's toolkit uses for its runtime. It
// returns "" if the user may not read RuntimeClasses.
func nvidiaRuntimeClass(ctx context.Context, client kubernetes.Interface) string {
	classes, err := client.NodeV1().RuntimeClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return ""
	}
	for _, c := range classes.Items {
		if c.Handler == "nvidia" {
			return c.Name
		}
	}
	return ""
}

// localRegistry returns the local registry that kind, k3d and similar tools publish, as HOST:PORT for nodes and for
// other clients. It returns "" if the user may not read what they publish.
func localRegistry(ctx context.Context, client kubernetes.Interface) (host, address string) {
	said, err := client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, "local-registry-hosting",
		metav1.GetOptions{})
	if err != nil {
		return "", ""
	}
	for line := range strings.Lines(said.Data["localRegistryHosting.v1"]) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.Trim(strings.TrimSpace(value), `"'`)
		switch key {
		case "host":
			host = value
		case "hostFromClusterNetwork":
			address = value
		}
	}
	return host, address
}

// summarize sorts the nodes and computes the facts that they have in common.
func (f *Facts) summarize() {
	sorting.Func(f.Nodes, func(a, b NodeFacts) int {
		return cmp.Or(-cmp.Compare(min(a.GPUs, 1), min(b.GPUs, 1)), cmp.Compare(a.Name, b.Name))
	})
	same, first := true, ""
	for _, n := range f.Nodes {
		if n.GPUs == 0 && f.GPUNodes > 0 {
			break
		}
		if first == "" {
			first = n.Architecture
		}
		same = same && n.Architecture == first
		if n.GPUs == 0 {
			continue
		}
		f.GPUNodes++
		f.MostGPUs = max(f.MostGPUs, n.GPUs)
		if f.GPUsPerNode == 0 || n.GPUs < f.GPUsPerNode {
			f.GPUsPerNode = n.GPUs
		}
	}
	if same {
		f.Architecture = first
	}
}

func nodeFacts(n *corev1.Node, taken int64) NodeFacts {
	gpus := n.Status.Allocatable.Name(GPUResource, "").Value()
	memory, _ := strconv.Atoi(n.Labels[labelMemory])
	_, control := n.Labels["node-role.kubernetes.io/control-plane"]
	return NodeFacts{
		Name: n.Name, Architecture: n.Status.NodeInfo.Architecture,
		Hostname: cmp.Or(n.Labels[corev1.LabelHostname], n.Name),
		GPUs:     int(gpus), FreeGPUs: int(max(gpus-taken, 0)),
		Product: n.Labels[labelProduct], MemoryMiB: memory, ControlPlane: control,
		Runtime: n.Status.NodeInfo.ContainerRuntimeVersion,
	}
}

// usable reports whether a pod without tolerations can currently be scheduled on the node.
func usable(n *corev1.Node) bool {
	if n.Spec.Unschedulable {
		return false
	}
	for _, taint := range n.Spec.Taints {
		// Pods that request GPUs tolerate NVIDIA's own taint (ExtendedResourceToleration, GKE).
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && taint.Key != GPUResource {
			return false
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// simulated reports whether the node's labels or annotations mark its GPUs as simulated: by test/cluster, kwok,
// or the fake GPU operator.
func simulated(n *corev1.Node) bool {
	return strings.HasPrefix(n.Labels[labelMachine], "Simulated") || n.Annotations["kwok.x-k8s.io/node"] != "" ||
		n.Labels["run.ai/simulated-gpu-node-pool"] != ""
}

// lab reports whether the node has the trainer image: it is a node of the test cluster, or a user loaded the image.
func lab(n *corev1.Node) bool {
	return n.Labels[labelMachine] == "Simulated-GPU-Server" ||
		slices.ContainsFunc(n.Status.Images, func(image corev1.ContainerImage) bool {
			return slices.ContainsFunc(image.Names,
				func(name string) bool { return strings.HasPrefix(name, "registry.lab.internal/ml/trainer") })
		})
}

// gpusTaken returns the number of GPUs that pods hold on each node; the key "" is for unscheduled pods.
func gpusTaken(pods []corev1.Pod) map[string]int64 {
	taken := map[string]int64{}
	for i := range pods {
		pod := &pods[i]
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		// A pod needs the sum of its containers' GPUs, or the GPUs of its largest init container if that is more.
		var sum, most int64
		for _, c := range pod.Spec.Containers {
			sum += c.Resources.Limits.Name(GPUResource, "").Value()
		}
		for _, c := range pod.Spec.InitContainers {
			most = max(most, c.Resources.Limits.Name(GPUResource, "").Value())
		}
		taken[pod.Spec.NodeName] += max(sum, most)
	}
	return taken
}
