package facts

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
)

// keptOff reports required anti-affinity rules in other pods that keep an unscheduled pod off the nodes of these pods:
//
//	kept off: NUMBER pods, such as NAME, must not share a KEY with pods that match SELECTOR
//
// It ignores pods with the same owner, because the pod itself has the same rule.
func (f *Facts) keptOff(pod *corev1.Pod) []signatures.Line {
	if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return strings.Contains(c.Message, "existing pods anti-affinity rules")
	}) {
		return nil
	}
	var first *corev1.Pod
	var rule string
	pods := 0
	for i := range f.Snapshot.Pods {
		other := &f.Snapshot.Pods[i]
		if other.Spec.NodeName == "" || Ended(other) || ownerOf(other) == ownerOf(pod) {
			continue
		}
		term, selector := f.shuns(other, pod)
		if term == nil {
			continue
		}
		if pods++; first == nil {
			first, rule = other, fmt.Sprintf("must not share a %s with pods that match %s", term.TopologyKey, selector)
		}
	}
	if first == nil {
		return nil
	}
	return []signatures.Line{{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
		Source: PodObject(first).String() + " .spec.affinity.podAntiAffinity, and the labels of " +
			PodObject(pod).String(),
		Text: fmt.Sprintf("kept off: %s, such as %s, %s", count.Of(pods, "pod"), first.Name, rule),
	}}}
}

// ownerOf returns an identifier for the object from which the user created a pod, as far as the pod's owner reveals it.
func ownerOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return pod.Namespace + "/" + pod.Name
	}
	if owner.Kind == "ReplicaSet" {
		return pod.Namespace + "/" + DeploymentName(pod, owner.Name)
	}
	return pod.Namespace + "/" + owner.Kind + "/" + owner.Name
}

// shuns returns the required anti-affinity term in a pod that another pod matches, and the term's selector, or nil if
// there is none.
func (f *Facts) shuns(pod, other *corev1.Pod) (*corev1.PodAffinityTerm, labels.Selector) {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil, nil
	}
	terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	for i := range terms {
		term := &terms[i]
		selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
		if err != nil || !selector.Matches(labels.Set(other.Labels)) {
			continue
		}
		everywhere := term.NamespaceSelector != nil &&
			len(term.NamespaceSelector.MatchLabels)+len(term.NamespaceSelector.MatchExpressions) == 0
		own := len(term.Namespaces) == 0 && term.NamespaceSelector == nil && pod.Namespace == other.Namespace
		if own || everywhere || slices.Contains(term.Namespaces, other.Namespace) {
			return term, selector
		}
	}
	return nil, nil
}
