package facts

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// advertisers are parts of the names of DaemonSets that advertise resources, and of the names of these resources.
var advertisers = []struct{ names, resources []string }{
	{[]string{"amdgpu", "amd-gpu", "kmm", "rocm"}, []string{"amd.com/"}},
	{[]string{"intel", "i915", "xe-"}, []string{"gpu.intel.com/"}},
	{[]string{"neuron"}, []string{"aws.amazon.com/neuron"}},
	{[]string{"efa"}, []string{"vpc.amazonaws.com/efa"}},
	{[]string{"habana", "gaudi"}, []string{"habana.ai/"}},
	{[]string{"tpu"}, []string{"google.com/tpu"}},
	{[]string{"rdma", "sriov", "mofed"}, []string{"rdma", "hca", "mlnx", "sriov", "roce", "hostdev"}},
	{[]string{"mig-manager", "nvidia", "hami"}, []string{"nvidia.com/"}},
}

// Advertisers returns parts of the names of the resources that a DaemonSet or pod of this name advertises.
func Advertisers(name string) []string {
	var all []string
	for _, a := range advertisers {
		if words.ContainsAny(name, a.names) {
			all = append(all, a.resources...)
		}
	}
	return all
}

// WaitFor returns the unscheduled pods ("namespace/name") that request a resource whose name contains one of the texts.
func (f *Facts) WaitFor(resources []string) []string {
	if len(resources) == 0 {
		return nil
	}
	var all []string
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if pod.Spec.NodeName != "" || pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil {
			continue
		}
		for name := range Demand(pod) {
			if words.ContainsAny(string(name), resources) {
				all = append(all, pod.Namespace+"/"+pod.Name)
				break
			}
		}
	}
	return all
}

// placers are parts of the names of pods that place pods and add nodes.
var placers = []string{
	"cluster-autoscaler", "karpenter", "hami-scheduler", "vgpu-scheduler", "volcano-scheduler", "kai-scheduler",
	"binder",
	"kueue-controller", "yunikorn-scheduler", "gpu-scheduler", "runai-scheduler",
}

// Serves reports whether the pod, by its name, advertises devices, prepares them, or places pods.
func Serves(pod *corev1.Pod) bool {
	return words.ContainsAny(pod.Name, []string{
		"plugin", "-dp-", "rdma", "kmm", "amdgpu", "i915", "mig-manager", "autoscaler", "scheduler",
	}) || words.ContainsAny(pod.Name, placers)
}

// LooksForGPU reports whether a pod has to do with GPUs, although it may request none: by its RuntimeClass, image,
// annotations, variables or limits.
func LooksForGPU(pod *corev1.Pod) bool {
	if pod.Spec.RuntimeClassName != nil && strings.Contains(*pod.Spec.RuntimeClassName, "nvidia") {
		return true
	}
	for key := range pod.Annotations {
		if strings.Contains(key, "gpu") {
			return true
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if words.ContainsAny(c.Image, []string{"gpu", "nvidia", "cuda"}) ||
			slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return strings.HasPrefix(e.Name, "NVIDIA_") }) {
			return true
		}
		for name := range c.Resources.Limits {
			if strings.Contains(string(name), "gpu") || strings.HasPrefix(string(name), "nvidia.com/") {
				return true
			}
		}
	}
	return false
}

// OtherAccelerator returns the resource of another vendor's accelerator that a pod requests, or "".
func OtherAccelerator(pod *corev1.Pod) corev1.ResourceName {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Limits {
			vendor, _, _ := strings.Cut(string(name), "/")
			if slices.Contains([]string{
				"amd.com", "gpu.intel.com", "habana.ai", "aws.amazon.com", "google.com", "huawei.com", "cambricon.com",
				"tenstorrent.com", "furiosa.ai", "metax-tech.com",
			}, vendor) && !strings.HasSuffix(string(name), "/pod-eni") {
				return name
			}
		}
	}
	return ""
}
