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
)

// GPUResource is what GPUs are called in requests and limits.
const GPUResource = "nvidia.com/gpu"

// Facts are what a scenario may adapt itself to: facts.nodes[0].name, facts.gpusPerNode.
type Facts struct {
	// Nodes are the Ready ones that pods can be scheduled to, those with GPUs first, then by name.
	Nodes []NodeFacts `json:"nodes"`
	// GPUNodes is how many of them have GPUs.
	GPUNodes int `json:"gpuNodes"`
	// GPUsPerNode is the least that a node with GPUs has, MostGPUs the most: more than that fits nowhere.
	GPUsPerNode int `json:"gpusPerNode"`
	MostGPUs    int `json:"mostGPUs"`
	// Architecture is that of the nodes with GPUs (amd64), "" when they differ.
	Architecture string `json:"architecture"`
	// Simulated says that the GPUs are not real, and Simulation those that the exercise advertises itself; absent where
	// it does not.
	Simulated  bool        `json:"simulated"`
	Simulation *Simulation `json:"simulation,omitempty"`
	// Lab says that the nodes have the trainer's image, registry.lab.internal/ml/trainer, as those of this project's
	// test cluster have.
	Lab bool `json:"lab"`
	// Workload is the Deployment of the trainer's that the exercise is played on; absent when the scenario creates its
	// own.
	Workload *WorkloadFacts `json:"workload,omitempty"`
	// WaitingGPUs is how many pods ask for that are on no node yet.
	WaitingGPUs int `json:"waitingGPUs,omitempty"`
	// RuntimeClass is the one that gives pods NVIDIA's runtime, "" when the cluster has none. Where the nodes' default
	// runtime is another one, pods need it to see their GPUs; elsewhere it does no harm.
	RuntimeClass string `json:"runtimeClass"`
	// Registry is that of a local cluster, HOST:PORT as its nodes call it (KEP-1755), "" when the cluster names none.
	Registry string `json:"registry"`
	// Kubernetes is the version of the API server: v1.36.3.
	Kubernetes string `json:"kubernetes"`
}

// NodeFacts are those of one node.
type NodeFacts struct {
	Name         string `json:"name"`
	Architecture string `json:"architecture"` // amd64, arm64
	Hostname     string `json:"hostname"`     // the label kubernetes.io/hostname, which selectors use
	GPUs         int    `json:"gpus"`         // allocatable
	FreeGPUs     int    `json:"freeGPUs"`     // of these, what no pod has asked for
	Product      string `json:"product"`      // NVIDIA-H200
	MemoryMiB    int    `json:"memoryMiB"`    // of one GPU
	ControlPlane bool   `json:"controlPlane"`
	Runtime      string `json:"runtime"` // containerd://2.3.7
}

// GatherFacts asks the cluster.
func GatherFacts(ctx context.Context, client kubernetes.Interface) (Facts, error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Facts{}, fmt.Errorf("listing the nodes: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx,
		metav1.ListOptions{FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		return Facts{}, fmt.Errorf("listing the pods, for which GPUs are free: %w", err)
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
	f.Registry = localRegistry(ctx, client)
	f.summarize()
	return f, nil
}

// nvidiaRuntimeClass returns the class whose handler is NVIDIA's runtime, as its toolkit names it. Who may not read
// classes has none.
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

// localRegistry returns what kind, k3d and the like say of theirs. Who may not read it has none.
func localRegistry(ctx context.Context, client kubernetes.Interface) string {
	said, err := client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, "local-registry-hosting",
		metav1.GetOptions{})
	if err != nil {
		return ""
	}
	for line := range strings.Lines(said.Data["localRegistryHosting.v1"]) {
		if host, is := strings.CutPrefix(strings.TrimSpace(line), "host:"); is {
			return strings.Trim(strings.TrimSpace(host), `"'`)
		}
	}
	return ""
}

// summarize sorts the nodes and says what they have in common.
func (f *Facts) summarize() {
	slices.SortFunc(f.Nodes, func(a, b NodeFacts) int {
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

// usable reports whether pods without tolerations get to the node, now.
func usable(n *corev1.Node) bool {
	if n.Spec.Unschedulable {
		return false
	}
	for _, taint := range n.Spec.Taints {
		// NVIDIA's own taint of GPU nodes is tolerated by whoever asks for GPUs (ExtendedResourceToleration, GKE).
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

// simulated reports whether the node says that its GPUs are not real: those of test/cluster, kwok's, the fake GPU
// operator's.
func simulated(n *corev1.Node) bool {
	return strings.HasPrefix(n.Labels[labelMachine], "Simulated") || n.Annotations["kwok.x-k8s.io/node"] != "" ||
		n.Labels["run.ai/simulated-gpu-node-pool"] != ""
}

// lab reports whether a node is of the test cluster (its inventory has that machine), or somebody has loaded the image.
func lab(n *corev1.Node) bool {
	return n.Labels[labelMachine] == "Simulated-GPU-Server" ||
		slices.ContainsFunc(n.Status.Images, func(image corev1.ContainerImage) bool {
			return slices.ContainsFunc(image.Names,
				func(name string) bool { return strings.HasPrefix(name, "registry.lab.internal/ml/trainer") })
		})
}

// gpusTaken returns how many GPUs pods hold on each node; under "" those that are on none yet.
func gpusTaken(pods []corev1.Pod) map[string]int64 {
	taken := map[string]int64{}
	for i := range pods {
		pod := &pods[i]
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		var sum, most int64 // a pod has what its containers need together, or its greediest init container
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
