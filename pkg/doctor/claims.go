package doctor

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// wantsGPU reports whether the pod asks for GPUs of NVIDIA: by a resource, or by a resource claim that is known to be
// for NVIDIA's devices. Claims are for network cards, CPUs and the devices of others, too, so that one which the
// snapshot does not have makes no GPU pod.
func (f *Facts) wantsGPU(pod *corev1.Pod) bool {
	return len(GPURequests(pod)) > 0 || len(pod.Spec.ResourceClaims) > 0 && f.claimants()[pod]
}

func (f *Facts) findClaimants() map[*corev1.Pod]bool {
	all := map[*corev1.Pod]bool{}
	if len(f.ResourceClaims) == 0 {
		return all
	}
	for i := range f.Snapshot.Pods {
		if pod := &f.Snapshot.Pods[i]; len(pod.Spec.ResourceClaims) > 0 && nvidiaClaims(f, pod) {
			all[pod] = true
		}
	}
	return all
}

// nvidiaClaims reports whether one of a pod's claims is for NVIDIA's driver.
func nvidiaClaims(f *Facts, pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(wanted corev1.PodResourceClaim) bool {
		claim := claimOf(f, pod, wanted)
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

// offersClaims reports whether the cluster has NVIDIA's DRA driver or its classes, so that a claim nobody knows may be
// for its devices.
func (f *Facts) offersClaims() bool {
	return len(f.Component(DRADriver)) > 0 ||
		slices.ContainsFunc(f.DeviceClasses, func(c resourcev1.DeviceClass) bool { return f.isNVIDIAClass(c.Name) })
}
