package facts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// leftTaint reports for an unscheduled pod a node that still has a startup taint, although the node's pod of the agent
// that should remove the taint, such as a CSI driver, has been ready for long:
//
//	startup taint KEY left on NODE: Pod NAMESPACE/NAME has been ready there for AGE
func (f *Facts) leftTaint(pod *corev1.Pod) []signatures.Line {
	if !Unscheduled(pod) {
		return nil
	}
	return Once(f, leftTaints)
}

// startupTaints are lines about startup taints that are left on nodes.
type startupTaints []signatures.Line

// leftTaints returns the line about the first node with such a taint.
func leftTaints(f *Facts) startupTaints {
	for _, n := range f.Nodes {
		for i := range n.Spec.Taints {
			key := n.Spec.Taints[i].Key
			domain, ok := strings.CutSuffix(key, "/agent-not-ready")
			if !ok {
				continue
			}
			agent, _, _ := strings.Cut(strings.TrimPrefix(domain, "node."), ".")
			for _, p := range n.Pods {
				owner := metav1.GetControllerOf(p)
				if age := UpFor(f, p); owner != nil && owner.Kind == "DaemonSet" && age >= stuckTaint &&
					strings.HasPrefix(owner.Name+"-", agent+"-") {
					return startupTaints{{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
						Source: n.Object().String() + " .spec.taints and " + PodObject(p).String() + " .status",
						Text: fmt.Sprintf("startup taint %s left on %s: Pod %s/%s has been ready there for %s", key,
							n.Name, p.Namespace, p.Name, words.AgeText(age)),
					}}}
				}
			}
		}
	}
	return nil
}

// stuckTaint is the time within which an agent that is ready removes its startup taint.
const stuckTaint = 10 * time.Minute

// keptOff reports required anti-affinity rules that keep an unscheduled pod off the nodes of other pods. The rules are
// in those other pods or in the unscheduled pod itself:
//
//	kept off: NUMBER pods, such as NAME, must not share a KEY with pods that match SELECTOR
//	kept off: its own rule against SELECTOR also matches NAMESPACE/NAME on NODE
//
// It ignores pods with the same owner, which the rule is meant for.
func (f *Facts) keptOff(pod *corev1.Pod) []signatures.Line {
	says := func(message string) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return strings.Contains(c.Message, message)
		})
	}
	own := says("didn't match pod anti-affinity rules")
	if !own && !says("existing pods anti-affinity rules") {
		return nil
	}
	var first *corev1.Pod
	var rule string
	pods, node := 0, boundTo(pod)
	for i := range f.Snapshot.Pods {
		other := &f.Snapshot.Pods[i]
		if other.Spec.NodeName == "" || Ended(other) || CreatorOf(other) == CreatorOf(pod) ||
			node != "" && node != other.Spec.NodeName {
			continue
		}
		has, matches := other, pod
		if own {
			has, matches = pod, other
		}
		term, selector := f.shuns(has, matches)
		if term == nil {
			continue
		}
		if pods++; first == nil {
			first, rule = other, fmt.Sprintf("must not share a %s with pods that match %s", term.TopologyKey, selector)
			if own {
				rule = fmt.Sprintf("its own rule against %s also matches %s/%s on %s", selector, other.Namespace,
					other.Name, other.Spec.NodeName)
			}
		}
	}
	if first == nil {
		return nil
	}
	has, matches := first, pod
	text := fmt.Sprintf("kept off: %s, such as %s, %s", count.Of(pods, "pod"), first.Name, rule)
	if own {
		has, matches, text = pod, first, "kept off: "+rule
	}
	return []signatures.Line{{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
		Source: PodObject(has).String() + " .spec.affinity.podAntiAffinity, and the labels of " +
			PodObject(matches).String(),
		Text: text,
	}}}
}

// boundTo returns the name of the only node on which the pod of a DaemonSet may run, or "" for other pods.
func boundTo(pod *corev1.Pod) string {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range t.MatchFields {
				return strings.Join(e.Values, "")
			}
		}
	}
	return ""
}

// CreatorOf returns an identifier for the object from which the user created a pod, as far as the pod's owner reveals
// it.
func CreatorOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return pod.Namespace + "/" + pod.Name
	}
	if owner.Kind == "ReplicaSet" {
		return pod.Namespace + "/" + DeploymentName(pod, owner.Name)
	}
	return pod.Namespace + "/" + owner.Kind + "/" + owner.Name
}

// shuns returns a pod's required anti-affinity term that matches another pod, and the term's selector, or nil if there
// is none.
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
