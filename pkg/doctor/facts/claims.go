package facts

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Names of NVIDIA's DRA drivers.
const (
	DRAForGPUs = "gpu.nvidia.com"
)

// DRADevicesOn returns the number of devices that NVIDIA's GPU DRA driver publishes in ResourceSlices for a node.
func DRADevicesOn(f *Facts, node string) int {
	sum := 0
	for i := range f.ResourceSlices {
		s := &f.ResourceSlices[i].Spec
		for j := range s.Devices {
			at := cmp.Or(s.Devices[j].NodeName, s.NodeName) // partitions have it in the device
			if s.Driver == DRAForGPUs && at != nil && *at == node {
				sum++
			}
		}
	}
	return sum
}

// ClaimOf returns the ResourceClaim for an entry in a pod's resourceClaims, or nil if it is not found.
func ClaimOf(f *Facts, pod *corev1.Pod, wanted corev1.PodResourceClaim) *resourcev1.ResourceClaim {
	name := ""
	if wanted.ResourceClaimName != nil {
		name = *wanted.ResourceClaimName
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == wanted.Name && s.ResourceClaimName != nil {
			name = *s.ResourceClaimName
		}
	}
	var owned []*resourcev1.ResourceClaim
	for i := range f.ResourceClaims {
		c := &f.ResourceClaims[i]
		switch {
		case c.Namespace != pod.Namespace:
		case c.Name == name:
			return c
		case name == "" && slices.ContainsFunc(c.OwnerReferences,
			func(o metav1.OwnerReference) bool { return o.Kind == "Pod" && o.Name == pod.Name }):
			owned = append(owned, c)
		}
	}
	for _, c := range owned { // created from a template, but not named in the pod's status yet
		if len(owned) == 1 || c.Annotations["resource.kubernetes.io/pod-claim-name"] == wanted.Name {
			return c
		}
	}
	return nil
}

// ClassesOf returns the DeviceClasses that a claim requires.
func ClassesOf(claim *resourcev1.ResourceClaim) []string {
	var all []string
	for _, request := range claim.Spec.Devices.Requests {
		if request.Exactly != nil {
			all = append(all, request.Exactly.DeviceClassName)
		}
		if len(request.FirstAvailable) == 1 { // if there are several subrequests, a different one may be available
			all = append(all, request.FirstAvailable[0].DeviceClassName)
		}
	}
	return all
}

// OtherClass returns the DeviceClass of another vendor's accelerator that a pod claims, or "".
func (f *Facts) OtherClass(pod *corev1.Pod) string {
	for _, class := range f.classesOf(pod) {
		if OfOthers(class) {
			return class
		}
	}
	return ""
}

// classesOf returns the DeviceClasses that a pod's claims require.
func (f *Facts) classesOf(pod *corev1.Pod) (all []string) {
	for _, wanted := range pod.Spec.ResourceClaims {
		if claim := ClaimOf(f, pod, wanted); claim != nil {
			all = append(all, ClassesOf(claim)...)
		}
	}
	return all
}

// AsksForGPU reports whether the pod requests NVIDIA GPUs, either as an extended resource of any name or with a
// resource claim that is known to be for NVIDIA devices. A claim can also be for a NIC, a CPU or another vendor's
// device, so a claim that is missing from the snapshot does not count.
func (f *Facts) AsksForGPU(pod *corev1.Pod) bool {
	return len(GPURequests(pod)) > 0 || requestsModel(pod) || shares(pod) ||
		len(pod.Spec.ResourceClaims) > 0 && f.claimants()[pod]
}

// shares reports whether the pod requests a part of a GPU with an annotation of KAI Scheduler or Run:ai.
func shares(pod *corev1.Pod) bool {
	return pod.Annotations["gpu-fraction"]+pod.Annotations["gpu-memory"] != "" &&
		words.ContainsAny(pod.Spec.SchedulerName, []string{"kai-", "runai-"})
}

// UsesGPU reports whether the pod is a GPU pod. A GPU pod requests NVIDIA GPUs, or is failing although NVIDIA's runtime
// gives it GPUs without a request. A pod of the second kind is recognized by its RuntimeClass or, if NVIDIA's runtime
// is the default runtime, by an error from NVIDIA's hook.
func (f *Facts) UsesGPU(pod *corev1.Pod) bool {
	if f.AsksForGPU(pod) {
		return true
	}
	class := pod.Spec.RuntimeClassName
	return slices.ContainsFunc(f.Troubles(pod), func(t Trouble) bool {
		return class != nil && strings.Contains(*class, "nvidia") || strings.Contains(t.Message, "nvidia-container-cli")
	})
}

func (f *Facts) findClaimants() map[*corev1.Pod]bool {
	all := map[*corev1.Pod]bool{}
	if len(f.ResourceClaims) == 0 {
		return all
	}
	for i := range f.Snapshot.Pods {
		if pod := &f.Snapshot.Pods[i]; len(pod.Spec.ResourceClaims) > 0 && NvidiaClaims(f, pod) {
			all[pod] = true
		}
	}
	return all
}

// NvidiaClaims reports whether any of a pod's claims is for an NVIDIA driver.
func NvidiaClaims(f *Facts, pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(wanted corev1.PodResourceClaim) bool {
		claim := ClaimOf(f, pod, wanted)
		if claim == nil {
			return false
		}
		// If the claim is allocated, the allocation is authoritative.
		if a := claim.Status.Allocation; a != nil && len(a.Devices.Results) > 0 {
			return slices.ContainsFunc(a.Devices.Results,
				func(d resourcev1.DeviceRequestAllocationResult) bool { return isNVIDIAs(d.Driver) })
		}
		return slices.ContainsFunc(claim.Spec.Devices.Requests, func(request resourcev1.DeviceRequest) bool {
			return request.Exactly != nil && f.isNVIDIAClass(request.Exactly.DeviceClassName) ||
				slices.ContainsFunc(request.FirstAvailable,
					func(sub resourcev1.DeviceSubRequest) bool { return f.isNVIDIAClass(sub.DeviceClassName) })
		})
	})
}

// isNVIDIAClass reports whether a DeviceClass is for NVIDIA devices, either by its name, which NVIDIA's charts set to
// the driver's name, or by its selectors.
func (f *Facts) isNVIDIAClass(name string) bool {
	if isNVIDIAs(name) {
		return true
	}
	return slices.ContainsFunc(f.DeviceClasses, func(class resourcev1.DeviceClass) bool {
		return class.Name == name && slices.ContainsFunc(class.Spec.Selectors, func(s resourcev1.DeviceSelector) bool {
			return s.CEL != nil && strings.Contains(s.CEL.Expression, "nvidia.com")
		})
	})
}

// isNVIDIAs reports whether a driver or class belongs to NVIDIA: gpu.nvidia.com, mig.nvidia.com,
// compute-domain-default-channel.nvidia.com.
func isNVIDIAs(name string) bool { return strings.HasSuffix(name, ".nvidia.com") }

// OffersClaims reports whether the cluster has NVIDIA's DRA driver or its device classes. If so, an unknown claim may
// be for an NVIDIA device.
func (f *Facts) OffersClaims() bool {
	return len(f.Component(DRADriver)) > 0 ||
		slices.ContainsFunc(f.DeviceClasses, func(c resourcev1.DeviceClass) bool { return f.isNVIDIAClass(c.Name) })
}
