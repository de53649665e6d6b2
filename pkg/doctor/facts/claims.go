package facts

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The names of NVIDIA's DRA drivers.
const (
	DRAForGPUs = "gpu.nvidia.com"
)

// DRADevicesOn counts the devices of NVIDIA's GPU driver that slices offer on a node.
func DRADevicesOn(f *Facts, node string) int {
	sum := 0
	for i := range f.ResourceSlices {
		s := &f.ResourceSlices[i].Spec
		if s.Driver == DRAForGPUs && s.NodeName != nil && *s.NodeName == node {
			sum += len(s.Devices)
		}
	}
	return sum
}

// ClaimOf returns the claim by which a pod wants something; nil when it is not there.
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
	for _, c := range owned { // made from a template, and the pod's status does not name it yet
		if len(owned) == 1 || c.Annotations["resource.kubernetes.io/pod-claim-name"] == wanted.Name {
			return c
		}
	}
	return nil
}

// AsksForGPU reports whether the pod asks for GPUs of NVIDIA: by a resource, or by a resource claim that is known to be
// for NVIDIA's devices. Claims are for network cards, CPUs and the devices of others, too, so that one which the
// snapshot does not have makes no GPU pod.
func (f *Facts) AsksForGPU(pod *corev1.Pod) bool {
	return len(GPURequests(pod)) > 0 || len(pod.Spec.ResourceClaims) > 0 && f.claimants()[pod]
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

// NvidiaClaims reports whether one of a pod's claims is for NVIDIA's driver.
func NvidiaClaims(f *Facts, pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(wanted corev1.PodResourceClaim) bool {
		claim := ClaimOf(f, pod, wanted)
		if claim == nil {
			return false
		}
		if a := claim.Status.Allocation; a != nil && len(a.Devices.Results) > 0 { // this is what it got
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

// isNVIDIAClass reports whether a DeviceClass is for NVIDIA's devices: by its name, which is that of the driver in
// NVIDIA's charts, or because it selects them.
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

// isNVIDIAs reports whether a driver or class is of NVIDIA's GPUs: gpu.nvidia.com, mig.nvidia.com,
// compute-domain-default-channel.nvidia.com.
func isNVIDIAs(name string) bool { return strings.HasSuffix(name, ".nvidia.com") }

// OffersClaims reports whether the cluster has NVIDIA's DRA driver or its classes, so that a claim nobody knows may be
// for its devices.
func (f *Facts) OffersClaims() bool {
	return len(f.Component(DRADriver)) > 0 ||
		slices.ContainsFunc(f.DeviceClasses, func(c resourcev1.DeviceClass) bool { return f.isNVIDIAClass(c.Name) })
}
