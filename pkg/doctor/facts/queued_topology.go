package facts

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// untolerated returns evidence that Kueue finds no node in a topology, because each GPU node has a taint whose key is
// in no toleration. Kueue 0.9.0 and 0.9.1 ignore the tolerations of ResourceFlavors.
//
//	no toleration for TAINT of the GPU nodes, such as NAME
func (f *comparer) untolerated(object *unstructured.Unstructured) (all []finding.Evidence) {
	of := fmt.Sprint(object.Object["spec"])
	read := false
	for i := range f.Snapshot.Queues {
		if q := &f.Snapshot.Queues[i]; q.GetKind() == "ResourceFlavor" {
			read = true
			of += fmt.Sprint(mapsIn(q.Object, "spec", "tolerations"))
		}
	}
	for i := range f.Snapshot.Pods {
		if pod := &f.Snapshot.Pods[i]; strings.HasPrefix(pod.Name, "kueue-") &&
			words.ContainsAny(ImageOf(pod, "manager"), []string{"kueue:v0.9.0", "kueue:v0.9.1"}) {
			of = fmt.Sprint(object.Object["spec"])
		}
	}
	for _, n := range f.GPUNodes {
		at := slices.IndexFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.Contains(of, "key:"+t.Key)
		})
		if at < 0 || !read || words.ContainsAny(of, []string{"[operator:Exists", "e operator:Exists"}) { // all taints
			return nil
		}
		all = []finding.Evidence{{
			Source: "podSets, ResourceFlavors and nodes",
			Text:   "no toleration for " + TaintText(&n.Spec.Taints[at]) + " of the GPU nodes, such as " + n.Name,
		}}
	}
	return all
}
