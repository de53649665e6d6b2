package facts

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// untolerated returns evidence that Kueue finds no node in a topology, because each GPU node has a taint that the pods do
// not tolerate. Kueue 0.9.0 and 0.9.1 ignore the tolerations of ResourceFlavors.
//
//	no toleration for TAINT of the GPU nodes, such as NAME
func (f *comparer) untolerated(object, cluster *unstructured.Unstructured) []finding.Evidence {
	var all corev1.PodSpec // the tolerations of the flavors and the pods
	add := func(spec any) {
		var own corev1.PodSpec
		fields, _ := spec.(map[string]any)
		if runtime.DefaultUnstructuredConverter.FromUnstructured(
			map[string]any{"tolerations": fields["tolerations"]}, &own) == nil {
			all.Tolerations = append(all.Tolerations, own.Tolerations...)
		}
	}
	old := slices.ContainsFunc(f.Snapshot.Pods, func(pod corev1.Pod) bool {
		return strings.HasPrefix(pod.Name, "kueue-") &&
			words.ContainsAny(ImageOf(&pod, "manager"), []string{"kueue:v0.9.0", "kueue:v0.9.1"})
	})
	for _, q := range quotasOf(cluster) {
		flavor := f.queueOf(kueueGroup, "ResourceFlavor", "", fmt.Sprint(q.flavor))
		if flavor == nil {
			return nil // not read
		}
		if !old {
			add(flavor.Object["spec"])
		}
	}
	for _, set := range mapsIn(object.Object, "spec", "podSets") {
		template, _ := set["template"].(map[string]any)
		add(template["spec"])
	}
	text := ""
	for _, n := range f.GPUNodes {
		at := slices.IndexFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Effect != corev1.TaintEffectPreferNoSchedule && !slices.ContainsFunc(all.Tolerations,
				func(by corev1.Toleration) bool { return nfdTolerates(by, t) })
		})
		if at < 0 {
			return nil
		}
		text = "no toleration for " + TaintText(&n.Spec.Taints[at]) + " of the GPU nodes, such as " + n.Name
	}
	if text == "" {
		return nil
	}
	return []finding.Evidence{{
		Source: "Workload " + object.GetNamespace() + "/" + object.GetName() + ", ResourceFlavors and taints of nodes",
		Text:   text,
	}}
}
