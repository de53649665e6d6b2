package scheduler

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// VolumeElsewhere reports whether the scheduler's message states that nodes, for example in other zones, cannot attach
// a volume of the pod. Newer releases use the second wording.
func VolumeElsewhere(message string) bool {
	return strings.Contains(message, "volume node affinity conflict") ||
		strings.Contains(message, "PersistentVolume's node affinity")
}

// Unbound reports whether the scheduler's message states that a claim of the pod is not bound but must be.
func Unbound(message string) bool {
	return strings.Contains(message, "unbound immediate PersistentVolumeClaims")
}

// volume returns the verdict if a volume excludes the pod from all nodes that have room for it.
func (s *Scheduler) volume(pod *corev1.Pod, message string, roomy []*facts.Node) verdict {
	v := verdict{
		Id: "sched.volume", Severity: finding.Error, Confidence: finding.Certain,
		Title: "a volume prevents the pod from being scheduled",
	}
	if message == "" {
		v.Confidence = finding.Possible
	}
	var claims []string
	for _, volume := range pod.Spec.Volumes {
		if claim := volume.PersistentVolumeClaim; claim != nil {
			v.Evidence = append(v.Evidence, finding.FieldEvidence(
				facts.PodObject(pod), ".spec.volumes[].persistentVolumeClaim", "%s", claim.ClaimName,
			))
			v.Fix.Commands = append(v.Fix.Commands,
				shell.Command("kubectl -n %s describe pvc %s", pod.Namespace, claim.ClaimName))
			claims = append(claims, claim.ClaimName)
		}
	}
	v.Fix.Text =
		"Bind the claim: its storage class must exist and have a provisioner, and an existing volume must be " +
			"accessible from a GPU node's zone."
	if VolumeElsewhere(message) {
		v.Fix.Text = "The claim is bound. Compare the node affinity of its volume with the labels of the nodes that " +
			"have room for the pod."
		for _, claim := range claims {
			if nowhere := s.nowhere(pod.Namespace, claim); len(nowhere) > 0 {
				v.Evidence = append(v.Evidence, nowhere...)
			} else {
				v.Evidence = append(v.Evidence, s.elsewhere(pod.Namespace, claim, roomy)...)
			}
		}
		return v
	}
	for _, claim := range claims { // provisioners use the claim's name in the name of the volume's directory
		v.Evidence = append(v.Evidence,
			s.keptHelper(&v.Helper, pod.Namespace+"-"+claim+"-", pod.Namespace+"_"+claim)...)
	}
	return v
}

// nowhere returns evidence that no node in the cluster matches the node affinity of a claim's volume, and that the pod
// that should have created the volume is not scheduled.
func (s *Scheduler) nowhere(namespace, claim string) (all []finding.Evidence) {
	name, required := facts.AffinityOf(s.F, namespace, claim)
	if required == nil || admits(required, s.F.Nodes) {
		return nil
	}
	all = append(all, finding.Evidence{
		Source: "PersistentVolume " + name + " .spec.nodeAffinity, and labels of all nodes",
		Text:   "volume on no node: claim " + claim + " requires " + rulesOf(required),
	})
	return append(all, s.keptHelper(nil, name)...)
}

// rulesOf formats the expressions of a node selector.
func rulesOf(required *corev1.NodeSelector) string {
	var rules []string
	for _, t := range required.NodeSelectorTerms {
		for _, e := range t.MatchExpressions {
			rules = append(rules, fmt.Sprintf("%s %s %q", e.Key, e.Operator, e.Values))
		}
	}
	return strings.Join(rules, " or ")
}

// admits reports whether a volume with the node affinity can be attached to one of the nodes.
func admits(required *corev1.NodeSelector, nodes []*facts.Node) bool {
	return required != nil && slices.ContainsFunc(nodes, func(n *facts.Node) bool {
		return slices.ContainsFunc(required.NodeSelectorTerms,
			func(t corev1.NodeSelectorTerm) bool { return termMatches(t, n) })
	})
}

// keptHelper returns evidence that a pod that should create a volume does not tolerate its node's taint. It looks for
// one of the names in the pod's own name or in its command. If helper is not nil, keptHelper sets it to the pod.
func (s *Scheduler) keptHelper(helper **corev1.Pod, names ...string) []finding.Evidence {
	for i := range s.F.Snapshot.Pods {
		pod := &s.F.Snapshot.Pods[i]
		if !facts.Unscheduled(pod) || !words.ContainsAny(pod.Name+commandOf(pod), names) {
			continue
		}
		for _, n := range s.F.Nodes {
			if t := untolerated(pod, n); t != nil && Selects(pod, n) {
				if helper != nil {
					*helper = pod
				}
				return []finding.Evidence{finding.FieldEvidence(facts.PodObject(pod),
					".spec.tolerations, and taints of nodes",
					"conflict: Pod %s/%s, which creates the volume, does not tolerate %s of %s", pod.Namespace,
					pod.Name, facts.TaintText(t), n.Object())}
			}
		}
	}
	return nil
}

// commandOf returns the commands and arguments of all containers in a pod.
func commandOf(pod *corev1.Pod) (all string) {
	for c := range facts.Containers(pod) {
		all += " " + strings.Join(slices.Concat(c.Command, c.Args), " ")
	}
	return all
}

// elsewhere compares the zone, node or labels that a claim's volume requires with the nodes that have room for the pod.
func (s *Scheduler) elsewhere(namespace, claim string, roomy []*facts.Node) []finding.Evidence {
	name, there := facts.PlacesOf(s.F, namespace, claim)
	if _, required := facts.AffinityOf(s.F, namespace, claim); len(there) == 0 && required != nil &&
		!admits(required, roomy) {
		var fit []string
		for _, pvc := range s.F.PersistentVolumeClaims {
			_, other := facts.AffinityOf(s.F, namespace, pvc.GetName())
			if pvc.GetNamespace() == namespace && admits(other, roomy) {
				fit = append(fit, pvc.GetName())
			}
		}
		return []finding.Evidence{{
			Source: "PersistentVolume " + name + " .spec.nodeAffinity, and labels of nodes",
			Text: "volume bound by labels: claim " + claim + " requires " + rulesOf(required) +
				"; claims on GPU nodes with room: " + words.OrNone(words.Joined(fit)),
		}}
	}
	label, text := corev1.LabelTopologyZone, "volume in %s; GPU nodes with room in %s"
	for _, n := range s.F.Nodes {
		if len(there) == 1 && n.Labels[corev1.LabelHostname] == there[0] {
			label, text = corev1.LabelHostname, "volume only on node %s; GPU nodes with room: %s"
		}
	}
	var here []string
	for _, n := range roomy {
		here = append(here, n.Labels[label])
	}
	slices.Sort(here)
	here = slices.Compact(here)
	both := func(zone string) bool { return slices.Contains(here, zone) }
	if len(there) == 0 || slices.ContainsFunc(there, both) {
		return nil
	}
	return []finding.Evidence{{
		Source: "PersistentVolume " + name + " .spec.nodeAffinity, and labels of nodes",
		Text:   fmt.Sprintf(text, words.Joined(there), words.OrNone(words.Joined(here))),
	}}
}

// VolumeApart returns evidence that an unscheduled pod may not use any of the nodes that can attach one of its volumes,
// but may use others.
//
//	volume apart: claim NAME requires RULES; the pod may not use NODE (REASON); it may use NODES
//	...; Pod NAME uses the claim on Node NAME and tolerates TAINT
func VolumeApart(f *facts.Facts, pod *corev1.Pod) []finding.Evidence {
	if !facts.Unscheduled(pod) || !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return VolumeElsewhere(c.Message)
	}) {
		return nil
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim := v.PersistentVolumeClaim.ClaimName
		name, required := facts.AffinityOf(f, pod.Namespace, claim)
		var apart, others []string
		usable, user := false, ""
		for _, n := range f.Nodes {
			t, attaches := untolerated(pod, n), admits(required, []*facts.Node{n})
			switch selects := Selects(pod, n); {
			case !attaches && t == nil && selects:
				others = append(others, placeOf(n))
			case !attaches:
			case t != nil && strings.Contains(t.Key, "node.kubernetes.io/"): // for example a cordon
				usable = true
			case t != nil:
				apart = append(apart, placeOf(n)+" (taint "+facts.TaintText(t)+")")
				if at := slices.IndexFunc(n.Pods, func(other *corev1.Pod) bool {
					return other.Namespace == pod.Namespace && !facts.Ended(other) && untolerated(other, n) == nil &&
						selects && slices.ContainsFunc(other.Spec.Volumes, func(v corev1.Volume) bool {
						return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
					})
				}); at >= 0 {
					user = "; Pod " + n.Pods[at].Name + " uses the claim on Node " + n.Name + " and tolerates " +
						facts.TaintText(t)
				}
			case !selects:
				apart = append(apart, placeOf(n)+" ("+words.Joined(MissingLabels(pod.Spec, n))+")")
			default:
				usable = true
			}
		}
		if !usable && len(apart) > 0 && len(others) > 0 {
			return []finding.Evidence{{
				Source: "PersistentVolume " + name + " .spec.nodeAffinity, labels and taints of the nodes, and " +
					facts.PodObject(pod).String() + " .spec",
				Text: "volume apart: claim " + claim + " requires " + rulesOf(required) + "; the pod may not use " +
					few(apart) + "; it may use " + few(others) + user,
			}}
		}
	}
	return nil
}

// few joins the first few strings, without duplicates.
func few(all []string) string {
	slices.Sort(all)
	all = slices.Compact(all)
	return words.Joined(all[:min(len(all), words.Few)])
}

// placeOf describes where a node is.
func placeOf(n *facts.Node) string {
	if zone := n.Labels[corev1.LabelTopologyZone]; zone != "" {
		return "nodes in " + zone
	}
	return "Node " + n.Name
}
