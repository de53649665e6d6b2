package exercise

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// This file finds changes that work now, but not after the next rollout or reschedule, or that prevent other
// applications' pods from being scheduled. Such a change may be in a field that a repair is allowed to change.

// tied returns a note if a workload's template has a new required affinity that concerns other applications' pods, or
// that the pods of a second revision cannot meet. Otherwise, it returns "".
func tied(was, is map[string]any) string {
	before := ties(was)
	for _, note := range ties(is) {
		if !slices.Contains(before, note) {
			return note
		}
	}
	return ""
}

// ofRevision returns a note if an object selects pods by a revision label, and did not do so before. Otherwise, it
// returns "".
func ofRevision(was, is map[string]any) string {
	for _, label := range []string{appsv1.DefaultDeploymentUniqueLabelKey, appsv1.ControllerRevisionHashLabelKey} {
		if selected(is["spec"], label) && !selected(was["spec"], label) {
			return "it selects pods by the label " + label + ", which the next rollout changes"
		}
	}
	return ""
}

// selected reports whether a selector in a value names the label.
func selected(value any, label string) bool {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			if name == label || name == "key" && inner == label || selected(inner, label) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(value, func(inner any) bool { return selected(inner, label) })
	}
	return false
}

// ties returns notes on the required affinities in a workload's template that concern other applications' pods, or that
// the pods of a second revision cannot meet.
func ties(workload map[string]any) (notes []string) {
	var template corev1.PodTemplateSpec
	raw, _, _ := unstructured.NestedMap(workload, "spec", "template")
	if runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &template) != nil || template.Spec.Affinity == nil {
		return nil
	}
	if a := template.Spec.Affinity.PodAffinity; a != nil {
		for _, term := range a.RequiredDuringSchedulingIgnoredDuringExecution {
			if !related(term, template.Labels) || len(term.MismatchLabelKeys) > 0 {
				notes = append(notes,
					"its pods can only run beside pods of others (podAffinity with "+term.TopologyKey+")")
			}
		}
	}
	if a := template.Spec.Affinity.PodAntiAffinity; a != nil {
		for _, term := range a.RequiredDuringSchedulingIgnoredDuringExecution {
			switch {
			case len(term.MismatchLabelKeys) > 0:
				notes = append(notes, fmt.Sprintf("pods of two revisions exclude each other, so that the next rollout "+
					"may never finish (podAntiAffinity with mismatchLabelKeys %v)", term.MismatchLabelKeys))
			case !related(term, template.Labels):
				notes = append(notes,
					"it keeps the pods of others away (podAntiAffinity with "+term.TopologyKey+")")
			case term.TopologyKey != corev1.LabelHostname && term.TopologyKey != corev1.LabelTopologyZone:
				notes = append(notes,
					"only one of its pods can run at a time (podAntiAffinity with "+term.TopologyKey+")")
			}
		}
	}
	return notes
}

// related reports whether a term concerns pods of the same application: it requires a label that the pod itself has,
// and is limited to the pod's namespace.
func related(term corev1.PodAffinityTerm, own map[string]string) bool {
	if term.LabelSelector == nil || term.NamespaceSelector != nil || len(term.Namespaces) > 0 {
		return false
	}
	for name, value := range term.LabelSelector.MatchLabels {
		if has, is := own[name]; is && has == value {
			return true
		}
	}
	return slices.ContainsFunc(term.LabelSelector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return r.Operator == metav1.LabelSelectorOpIn && len(r.Values) == 1 && own[r.Key] == r.Values[0]
	})
}
