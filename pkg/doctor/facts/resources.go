package facts

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// GPUsOf counts GPUs of all kinds: whole, shared, MIG.
func GPUsOf(resources corev1.ResourceList) int64 {
	var sum int64
	for name, q := range resources {
		if IsGPUResource(name) {
			sum += q.Value()
		}
	}
	return sum
}

// GPUText prints the GPU resources among others: "nvidia.com/gpu: 8".
func GPUText(resources corev1.ResourceList) string {
	var all []string
	for name, q := range resources {
		if IsGPUResource(name) {
			all = append(all, string(name)+": "+q.String())
		}
	}
	if len(all) == 0 {
		return "no nvidia.com/gpu"
	}
	slices.Sort(all)
	return words.Joined(all)
}

// Advertises reports whether pods can get GPUs of the node, by whatever way: a device plugin's resource, also of
// another vendor's plugin or for virtual machines, or DRA.
func Advertises(f *Facts, n *Node) bool {
	if GPUsOf(n.Status.Capacity) > 0 || DRADevicesOn(f, n.Name) > 0 {
		return true
	}
	for name, q := range n.Status.Capacity {
		if isOtherGPU(name) && q.Value() > 0 {
			return true
		}
	}
	return false
}

// PluginReady reports whether a device plugin on the node is ready.
func PluginReady(n *Node) bool { return slices.ContainsFunc(Current(n, DevicePlugin), PodReady) }

// isOtherGPU reports whether it is a GPU by another name: those of KubeVirt (nvidia.com/GA102GL_A10), HAMi, Volcano,
// run:ai.
func isOtherGPU(name corev1.ResourceName) bool {
	text := string(name)
	vendor, rest, _ := strings.Cut(text, "/")
	switch {
	case IsGPUResource(name), strings.HasPrefix(text, "nvidia.com/gpumem"),
		strings.HasPrefix(text, "nvidia.com/gpucores"):
		return false
	case vendor == "nvidia.com", strings.HasPrefix(rest, "vgpu"), strings.HasPrefix(rest, "gpu"):
		return true
	}
	return false
}

// KubeletRoot returns where the kubelet of a distribution keeps its files. MicroK8s has a link at the usual place.
func KubeletRoot(n *Node) string {
	if n.Distribution == K0s {
		return "/var/lib/k0s/kubelet"
	}
	return "/var/lib/kubelet"
}
