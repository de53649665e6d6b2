package facts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// oldKueue matches images of Kueue releases that ignore a ResourceFlavor's tolerations when they select a topology's
// nodes.
var oldKueue = regexp.MustCompile(`\bv?(0\.9\.[01])(?:$|[@-])`)

// untolerated returns evidence that Kueue finds no node in a topology because of taints: no node whose taints the pods
// tolerate has room, but nodes with other taints have room for all pods.
//
//	no toleration for TAINT of NODES, with room for NUMBER pods
//	no toleration for TAINT of NODES, with room for NUMBER pods: Kueue VERSION ignores that of ResourceFlavor NAME
func (f *comparer) untolerated(object, cluster *unstructured.Unstructured) []finding.Evidence {
	flavors, read := f.flavorsOf(cluster)
	for _, set := range mapsIn(object.Object, "spec", "podSets") {
		template, _, _ := unstructured.NestedMap(set, "template", "spec")
		wants, _, _ := unstructured.NestedInt64(set, "count")
		var pod corev1.Pod
		if runtime.DefaultUnstructuredConverter.FromUnstructured(template, &pod.Spec) != nil || !read {
			continue
		}
		var taints, names []string
		var room int64
		by := "" // the flavor that tolerates the taints
		for _, n := range f.GPUNodes {
			fits := roomFor(&pod, n)
			if fits == 0 || !Available(n) {
				continue
			}
			taint := firstTaint(n, pod.Spec.Tolerations)
			if taint == nil {
				return nil
			}
			for _, name := range words.SortedKeys(flavors) {
				if firstTaint(n, slices.Concat(pod.Spec.Tolerations, flavors[name])) == nil {
					by = name
				}
			}
			room += fits
			taints, names = append(taints, TaintText(taint)), append(names, n.Name)
		}
		if room < max(wants, 1) {
			continue
		}
		slices.Sort(taints)
		text := fmt.Sprintf("no toleration for %s of %s, with room for %s",
			words.Joined(slices.Compact(taints)), words.Joined(names[:min(len(names), words.Few)]),
			count.Of(room, "pod"))
		if by != "" {
			version := f.oldKueue()
			if version == "" {
				return nil // Kueue adds the flavor's tolerations
			}
			text += ": Kueue " + version + " ignores that of ResourceFlavor " + by
		}
		return []finding.Evidence{{
			Source: "Workload " + object.GetNamespace() + "/" + object.GetName() + " .spec.podSets, ResourceFlavors " +
				"and taints of nodes",
			Text: words.Clip(text),
		}}
	}
	return nil
}

// flavorsOf returns the tolerations of a ClusterQueue's flavors. read is false if the flavors were not read.
func (f *comparer) flavorsOf(cluster *unstructured.Unstructured) (flavors map[string][]corev1.Toleration, read bool) {
	flavors = map[string][]corev1.Toleration{}
	for _, q := range quotasOf(cluster) {
		flavor := f.queueOf(kueueGroup, "ResourceFlavor", "", fmt.Sprint(q.flavor))
		if flavor == nil {
			continue
		}
		spec, _, _ := unstructured.NestedMap(flavor.Object, "spec")
		var own corev1.PodSpec // has the field tolerations, too
		if runtime.DefaultUnstructuredConverter.FromUnstructured(
			map[string]any{"tolerations": spec["tolerations"]}, &own) == nil {
			flavors[flavor.GetName()], read = own.Tolerations, true
		}
	}
	return flavors, read
}

// oldKueue returns the version of Kueue if it ignores a flavor's tolerations, or "".
func (f *comparer) oldKueue() string {
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if !strings.HasPrefix(pod.Name, "kueue-controller-manager") {
			continue
		}
		for c := range Containers(pod) {
			if m := oldKueue.FindStringSubmatch(c.Image); m != nil && strings.Contains(c.Image, "kueue") {
				return m[1]
			}
		}
	}
	return ""
}

// roomFor returns the number of pods whose GPU requests fit on a node, not counting taints and other resources.
func roomFor(pod *corev1.Pod, n *Node) int64 {
	fits := int64(0)
	for name, want := range Demand(pod) {
		if !LooksLikeGPU(name) || want == 0 {
			continue
		}
		free := n.Allocatable(name)
		for _, other := range n.Pods {
			if !Ended(other) {
				free -= Demand(other)[name]
			}
		}
		fits = max(free/want, 0)
	}
	return fits
}

// firstTaint returns a node's first taint that excludes pods with these tolerations, or nil.
func firstTaint(n *Node, tolerations []corev1.Toleration) *corev1.Taint {
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !slices.ContainsFunc(tolerations,
			func(by corev1.Toleration) bool { return nfdTolerates(by, *t) }) {
			return t
		}
	}
	return nil
}
