package facts

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// GPUsOf returns the total number of GPU resources of all kinds: whole, shared and MIG.
func GPUsOf(resources corev1.ResourceList) int64 {
	var sum int64
	for name, q := range resources {
		if IsGPUResource(name) {
			sum += q.Value()
		}
	}
	return sum
}

// GPUText formats the GPU resources in a list: "nvidia.com/gpu: 8".
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

// Advertises reports whether pods can use the node's GPUs in any way: through a device plugin (including plugins from
// other vendors and for virtual machines) or through DRA.
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
func PluginReady(n *Node) bool {
	return slices.ContainsFunc(Current(n, DevicePlugin), podutils.IsPodReady)
}

// isOtherGPU reports whether a resource is a GPU with another name, as used by KubeVirt (nvidia.com/GA102GL_A10), HAMi,
// Volcano and Run:ai.
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

// DefaultKubeletRoot is the kubelet's root directory unless --root-dir sets another one.
const DefaultKubeletRoot = "/var/lib/kubelet"

// KubeletRoot returns the kubelet's root directory: the directory of its socket if known, otherwise the default
// directory of the node's distribution. MicroK8s has a symlink at the usual path.
func KubeletRoot(n *Node) string {
	if n.Host != nil && n.Distribution != MicroK8s {
		for _, s := range n.Host.Probe.DevicePlugins {
			if root, ok := strings.CutSuffix(s.Path, "/device-plugins/kubelet.sock"); ok {
				return root
			}
		}
	}
	if n.Distribution == K0s {
		return "/var/lib/k0s/kubelet"
	}
	return DefaultKubeletRoot
}
