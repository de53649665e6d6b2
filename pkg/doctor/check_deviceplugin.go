package doctor

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// devicePluginChecks returns those of what advertises GPUs to the kubelet.
//
// Not built: of dp.capacity-zero that a plugin registered before the kubelet's last start: neither the sockets' times
// nor the plugin's own lines prove it, so that both are quoted and nothing is concluded from them; of share.mps a wrong
// hostIPC of workloads, which no message names.
func devicePluginChecks() []Check {
	return []Check{
		pluginPodCheck(), nvmlCheck(), capacityCheck(), noPluginCheck(), unhealthyCheck(), unhealthyXIDCheck(),
		duplicateCheck(),
		migStrategyCheck(), timeSlicingCheck(), mpsCheck(),
	}
}

// gpusOf counts GPUs of all kinds: whole, shared, MIG.
func gpusOf(resources corev1.ResourceList) int64 {
	var sum int64
	for name, q := range resources {
		if IsGPUResource(name) {
			sum += q.Value()
		}
	}
	return sum
}

// gpuText prints the GPU resources among others: "nvidia.com/gpu: 8".
func gpuText(resources corev1.ResourceList) string {
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
	return joined(all)
}

// advertises reports whether pods can get GPUs of the node, by whatever way: a device plugin's resource, also of
// another vendor's plugin or for virtual machines, or DRA.
func advertises(f *Facts, n *Node) bool {
	if gpusOf(n.Status.Capacity) > 0 || draDevicesOn(f, n.Name) > 0 {
		return true
	}
	for name, q := range n.Status.Capacity {
		if isOtherGPU(name) && q.Value() > 0 {
			return true
		}
	}
	return false
}

// pluginReady reports whether a device plugin on the node is ready.
func pluginReady(n *Node) bool { return slices.ContainsFunc(current(n, DevicePlugin), podReady) }
