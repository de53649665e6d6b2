package facts

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// kserveDefaults reports an InferenceService that requests no resources and whose container therefore has the limits
// that KServe sets by default.
func (f *Facts) kserveDefaults(pod *corev1.Pod, _ *Node) (source, text string) {
	if kind, _ := GeneratedBy(pod); kind != "InferenceService" || f.AsksForGPU(pod) {
		return "", ""
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		is := func(list corev1.ResourceList) bool {
			return list.Cpu().String() == "1" && list.Memory().String() == "2Gi"
		}
		if c.Name == "kserve-container" && is(c.Resources.Limits) && is(c.Resources.Requests) {
			return PodObject(pod).String() + ", container " + c.Name + " .resources",
				"conflict: KServe's defaults of 1 CPU and 2Gi memory in container " + c.Name + ", no GPU requested"
		}
	}
	return "", ""
}

// withoutSidecar reports a pod with a volume of GKE's CSI driver for Cloud Storage, if the pod has neither the sidecar
// nor the annotation that makes GKE add it.
func (f *Facts) withoutSidecar(pod *corev1.Pod, _ *Node) (source, text string) {
	const driver, annotation = "gcsfuse.csi.storage.gke.io", "gke-gcsfuse/volumes"
	for c := range Containers(pod) {
		if strings.HasPrefix(c.Name, "gke-gcsfuse-") {
			return "", ""
		}
	}
	at := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.CSI != nil && v.CSI.Driver == driver
	})
	if at < 0 || pod.Annotations[annotation] == "true" {
		return "", ""
	}
	return PodObject(pod).String() + " .spec.volumes, .spec.containers and .metadata.annotations",
		"conflict: volume " + pod.Spec.Volumes[at].Name + " of " + driver + ", no annotation " + annotation +
			" and no sidecar"
}
