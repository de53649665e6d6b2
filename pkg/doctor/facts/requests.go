package facts

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// IsGPUResource reports whether a resource represents NVIDIA GPUs: nvidia.com/gpu, nvidia.com/gpu.shared,
// nvidia.com/mig-1g.5gb.
func IsGPUResource(name corev1.ResourceName) bool {
	rest, ours := strings.CutPrefix(string(name), "nvidia.com/")
	return ours && (rest == "gpu" || rest == "gpu.shared" || strings.HasPrefix(rest, "mig-"))
}

// GPURequests returns a pod's request for each GPU resource, computed as the scheduler does: the sum of its containers,
// or the largest init container if that is more.
func GPURequests(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	return requests(pod, IsGPUResource)
}

func requests(pod *corev1.Pod, counts func(corev1.ResourceName) bool) map[corev1.ResourceName]int64 {
	sum := map[corev1.ResourceName]int64{}
	for _, c := range pod.Spec.Containers {
		for name, n := range asked(c.Resources) {
			if counts(name) {
				sum[name] += n
			}
		}
	}
	// Sidecars run alongside the containers and alongside later init containers. Other init containers run one at a
	// time, before the containers.
	sidecars, before := map[corev1.ResourceName]int64{}, map[corev1.ResourceName]int64{}
	for _, c := range pod.Spec.InitContainers {
		always := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		for name, n := range asked(c.Resources) {
			switch {
			case !counts(name):
			case always:
				sidecars[name] += n
				sum[name] += n
			default:
				before[name] = max(before[name], sidecars[name]+n)
			}
		}
	}
	for name, n := range before {
		sum[name] = max(sum[name], n)
	}
	for name, n := range sum {
		if n == 0 {
			delete(sum, name)
		}
	}
	return sum
}

// asked returns a container's requests in the units of amount. Extended resources may be set in limits only.
func asked(r corev1.ResourceRequirements) map[corev1.ResourceName]int64 {
	if len(r.Limits)+len(r.Requests) == 0 { // the common case: avoid allocating a map
		return nil
	}
	all := map[corev1.ResourceName]int64{}
	for name, q := range r.Limits {
		all[name] = amount(name, q)
	}
	for name, q := range r.Requests {
		all[name] = amount(name, q)
	}
	return all
}

// amount returns a quantity as an integer: millicores of CPU, bytes, or a count.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// WantsGPU reports whether the pod may request GPUs, as a resource or with any resource claim. Facts.AsksForGPU checks
// what the claims are for.
func WantsGPU(pod *corev1.Pod) bool {
	return len(GPURequests(pod)) > 0 || len(pod.Spec.ResourceClaims) > 0
}
