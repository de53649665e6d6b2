package facts

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// PlacesOf returns the name of the volume bound to a claim, and the zones or nodes that can attach it.
func PlacesOf(f *Facts, namespace, claim string) (name string, places []string) {
	for _, pv := range f.PersistentVolumes {
		ref, _, _ := unstructured.NestedFieldNoCopy(pv.Object, "spec", "claimRef")
		by, _ := ref.(map[string]any)
		if by["namespace"] != namespace || by["name"] != claim {
			continue
		}
		terms, _, _ := unstructured.NestedSlice(pv.Object, "spec", "nodeAffinity", "required", "nodeSelectorTerms")
		for _, term := range terms {
			term, _ := term.(map[string]any)
			rules, _, _ := unstructured.NestedSlice(term, "matchExpressions")
			for _, rule := range rules {
				rule, _ := rule.(map[string]any)
				values, _, _ := unstructured.NestedStringSlice(rule, "values")
				key, _ := rule["key"].(string)
				if rule["operator"] == "In" && (strings.HasSuffix(key, "zone") || key == corev1.LabelHostname) {
					places = append(places, values...)
				}
			}
		}
		slices.Sort(places)
		return pv.GetName(), slices.Compact(places)
	}
	return "", nil
}

// AffinityOf returns the name of the volume bound to a claim, and the volume's required node affinity, or nil.
func AffinityOf(f *Facts, namespace, claim string) (name string, required *corev1.NodeSelector) {
	if name, _ = PlacesOf(f, namespace, claim); name == "" {
		return "", nil
	}
	for _, pv := range f.PersistentVolumes {
		object, ok, _ := unstructured.NestedMap(pv.Object, "spec", "nodeAffinity", "required")
		if pv.GetName() != name || !ok {
			continue
		}
		required = &corev1.NodeSelector{}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(object, required) == nil {
			return name, required
		}
	}
	return name, nil
}

// pinned reports a volume that can be mounted on only one node, if only other nodes have a device that the pod
// requests. It also reports a claim with an empty storage class:
//
//	volume pinned: claim NAME to node NAME, RESOURCE only on NODES
//	volume unbound: claim NAME, storageClassName ""
func (f *Facts) pinned(pod *corev1.Pod) []signatures.Line {
	if !Unscheduled(pod) {
		return nil
	}
	for i := range pod.Spec.Volumes {
		claim := pod.Spec.Volumes[i].PersistentVolumeClaim
		if claim == nil {
			continue
		}
		for _, pvc := range f.PersistentVolumeClaims {
			class, set, _ := unstructured.NestedString(pvc.Object, "spec", "storageClassName")
			if pvc.GetNamespace() == pod.Namespace && pvc.GetName() == claim.ClaimName && set && class == "" {
				return []signatures.Line{{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
					Source: "PersistentVolumeClaim " + pod.Namespace + "/" + claim.ClaimName + " .spec",
					Text:   "volume unbound: claim " + claim.ClaimName + `, storageClassName ""`,
				}}}
			}
		}
		pv, places := PlacesOf(f, pod.Namespace, claim.ClaimName)
		n := f.byHostname(places)
		if n == nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(Demand(pod))) {
			var elsewhere []string
			for _, other := range f.Nodes {
				if other.Allocatable(name) > 0 {
					elsewhere = append(elsewhere, other.Name)
				}
			}
			if strings.Contains(string(name), "/") && n.Allocatable(name) == 0 && len(elsewhere) > 0 {
				return []signatures.Line{{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
					Source: "PersistentVolume " + pv + " .spec.nodeAffinity, and .status.allocatable of nodes",
					Text: "volume pinned: claim " + claim.ClaimName + " to node " + n.Name + ", " + string(name) +
						" only on " + words.Joined(elsewhere),
				}}}
			}
		}
	}
	return nil
}

// byHostname returns the node whose hostname is the only element of places, or nil if places has several elements or no
// node matches.
func (f *Facts) byHostname(places []string) *Node {
	for _, n := range f.Nodes {
		if len(places) == 1 && n.Labels[corev1.LabelHostname] == places[0] {
			return n
		}
	}
	return nil
}
