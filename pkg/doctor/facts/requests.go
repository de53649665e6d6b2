package facts

import (
	"iter"
	"maps"
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

// GPURequests returns a pod's request for each GPU resource, computed as the scheduler computes it: the sum of the
// containers' requests, or the request of the largest init container if it is higher.
func GPURequests(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	return requests(pod, IsGPUResource)
}

func requests(pod *corev1.Pod, counts func(corev1.ResourceName) bool) (sum amounts) {
	for i := range pod.Spec.Containers {
		for name, n := range asked(&pod.Spec.Containers[i].Resources, counts) {
			sum.set(name, sum[name]+n)
		}
	}
	// Sidecars run alongside the main containers and later init containers. Other init containers run one at a time,
	// before the main containers.
	var sidecars, before amounts
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		always := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		for name, n := range asked(&c.Resources, counts) {
			if always {
				sidecars.set(name, sidecars[name]+n)
				sum.set(name, sum[name]+n)
			} else {
				before.set(name, max(before[name], sidecars[name]+n))
			}
		}
	}
	for name, n := range before {
		sum.set(name, max(sum[name], n))
	}
	maps.DeleteFunc(sum, func(_ corev1.ResourceName, n int64) bool { return n == 0 })
	return sum
}

// amounts contains an amount for each resource. It is nil as long as it is empty, because most pods request no such
// resource.
type amounts map[corev1.ResourceName]int64

func (a *amounts) set(name corev1.ResourceName, n int64) {
	if *a == nil {
		*a = amounts{}
	}
	(*a)[name] = n
}

// asked yields a container's requests for the resources that count, in the units of the amount function. Extended
// resources may be set only in limits.
func asked(
	r *corev1.ResourceRequirements, counts func(corev1.ResourceName) bool,
) iter.Seq2[corev1.ResourceName, int64] {
	return func(yield func(corev1.ResourceName, int64) bool) {
		for name, q := range r.Limits {
			if _, requested := r.Requests[name]; !requested && counts(name) && !yield(name, amount(name, q)) {
				return
			}
		}
		for name, q := range r.Requests {
			if counts(name) && !yield(name, amount(name, q)) {
				return
			}
		}
	}
}

// amount returns a quantity as an integer: millicores of CPU, bytes, or a count.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// requestsModel reports whether the pod requests NVIDIA GPUs under a name that device plugins for containers do not
// use: nvidia.com/pgpu and nvidia.com/GA102GL_A10 for virtual machines, nvidia.com/a100.
func requestsModel(pod *corev1.Pod) bool {
	named := func(name corev1.ResourceName) bool {
		return strings.HasPrefix(string(name), "nvidia.com/") && LooksLikeGPU(name)
	}
	return requestsAny(pod.Spec.Containers, named) || requestsAny(pod.Spec.InitContainers, named)
}

// WantsGPU reports whether the pod may request GPUs, either as a resource or with a resource claim of any kind.
// Facts.AsksForGPU checks the purpose of the claims.
func WantsGPU(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || requestsAny(pod.Spec.Containers, IsGPUResource) ||
		requestsAny(pod.Spec.InitContainers, IsGPUResource) || requestsModel(pod)
}

func requestsAny(containers []corev1.Container, counts func(corev1.ResourceName) bool) bool {
	for i := range containers {
		for _, n := range asked(&containers[i].Resources, counts) {
			if n != 0 {
				return true
			}
		}
	}
	return false
}
