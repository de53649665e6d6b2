package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// nodeSelector returns the verdict if the pod's node selector or affinity matches no GPU node.
func (s *Scheduler) nodeSelector(pod *corev1.Pod, want map[corev1.ResourceName]int64) verdict {
	able := Keep(s.nodes, func(n *facts.Node) bool {
		return covers(want, func(r corev1.ResourceName) int64 { return min(n.Allocatable(r), 1) * want[r] })
	})
	v := verdict{
		Id: "sched.node-selector", Severity: finding.Error, Confidence: finding.Certain, Nodes: s.names(able),
		Title: "no GPU node has the labels that the pod's node selector or affinity requires",
		Evidence: []finding.Evidence{{
			Source: facts.PodObject(pod).String() + " .spec.nodeSelector and .spec.affinity.nodeAffinity",
			Text:   SelectorText(pod),
		}},
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		for _, n := range able[:min(words.Few, len(able))] {
			if value, ok := n.Labels[key]; value != pod.Spec.NodeSelector[key] || !ok {
				text := key + "=" + value
				if !ok {
					text = "has no label " + key
				}
				v.Evidence = append(v.Evidence,
					finding.Evidence{Source: n.Object().String() + " .metadata.labels", Text: words.Clip(text)})
			}
		}
	}
	v.Evidence = v.Evidence[:min(len(v.Evidence), words.Few+1)]
	v.Fix = finding.Fix{
		Text:     "Change the selector to labels that the GPU nodes have" + orLabel(pod),
		Commands: facts.EditCommands(pod),
	}
	for _, n := range able {
		for key, value := range pod.Spec.NodeSelector {
			if have := n.Labels[key]; have != value && value != "" &&
				strings.Contains(strings.ToLower(have), strings.ToLower(value)) {
				v.Fix.Text = fmt.Sprintf("Change the selector: on %[2]s, the value of %[1]s is %[3]s, not "+
					"%[4]s.", key, n.Name,
					have, value)
			}
		}
	}
	s.unmet(pod, able, &v)
	underOtherKey(pod, able, &v)
	if plain := Keep(s.F.Nodes, func(n *facts.Node) bool { return Selects(pod, n) }); len(plain) > 0 {
		v.Title = "the pod's node selector or affinity matches only nodes that have no GPUs"
		v.Evidence = append(v.Evidence,
			finding.Evidence{Source: plain[0].Object().String() + " .status.allocatable", Text: "no GPU resource"})
	}
	v.Evidence = append(v.Evidence, s.byKueue(pod, able)...)
	if keys := keysOf(pod); len(able) > 0 && len(keys) > 0 {
		v.Fix.Commands = append(v.Fix.Commands, shell.Command("kubectl get nodes -L %s", strings.Join(keys, ",")))
	}
	return v
}

// unmet describes the requirements that no node meets, if some node meets the others. It also describes the node label
// that comes closest to meeting the first of the unmet requirements.
func (s *Scheduler) unmet(pod *corev1.Pod, able []*facts.Node, v *verdict) {
	if len(able) == 0 {
		return
	}
	none, keys := MissingLabels(pod.Spec, able[0]), keysOf(pod)
	for _, n := range able[1:] {
		lacks := MissingLabels(pod.Spec, n)
		none = slices.DeleteFunc(none, func(one string) bool { return !slices.Contains(lacks, one) })
	}
	if len(none) == 0 || len(none) >= len(keys) {
		return
	}
	text := "no GPU node has " + strings.Join(none, " and ")
	v.Title = words.Clip(text + ", but the pod's node selector or affinity requires it")
	key := none[0][:strings.IndexAny(none[0]+" ", "= ")]
	beside := slices.DeleteFunc(words.SortedKeys(able[0].Labels), func(have string) bool {
		return !strings.HasPrefix(have, key[:strings.LastIndex(key, ".")+1]) || slices.Contains(keys, have)
	})
	if len(beside) == 1 {
		has := able[0].Name + " has " + beside[0] + "=" + able[0].Labels[beside[0]]
		v.Fix.Text = "Correct this requirement where it is set: the GPU nodes meet the other requirements, " +
			"and " + has + "."
		text += "; " + has
	}
	v.Evidence = append(v.Evidence, finding.Evidence{Source: "labels of the GPU nodes", Text: words.Clip(text)})
}

// underOtherKey describes a label of the node selector whose value a node has under a different key.
func underOtherKey(pod *corev1.Pod, able []*facts.Node, v *verdict) {
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		value := pod.Spec.NodeSelector[key]
		if slices.Contains([]string{"", "1", "true", "yes", "enabled", "default", "none", "linux", "amd64"}, value) ||
			slices.ContainsFunc(able, func(n *facts.Node) bool { _, has := n.Labels[key]; return has }) {
			continue
		}
		moved := pod.DeepCopy()
		delete(moved.Spec.NodeSelector, key)
		for _, n := range able {
			for _, other := range words.SortedKeys(n.Labels) {
				if n.Labels[other] == value && Selects(moved, n) {
					v.Title = fmt.Sprintf("no GPU node has the label %s that the pod selects, but %s has %s=%s",
						key, n.Name, other, value)
					v.Fix.Text = "Select that label instead" + orLabel(pod)
					return
				}
			}
		}
	}
}

// unlabeled returns a node with free GPUs that the pod would select if GPU feature discovery had labeled the node like
// the others, or nil.
func (s *Scheduler) unlabeled(pod *corev1.Pod, want map[corev1.ResourceName]int64, like *facts.Node) *facts.Node {
	const ours = "nvidia.com/"
	for _, n := range s.nodes {
		if n.Labels[ours+"gpu.product"] != "" || like.Labels[ours+"gpu.product"] == "" || Selects(pod, n) ||
			len(facts.Current(n, facts.FeatureDiscovery)) == 0 || untolerated(pod, n) != nil || !facts.Available(n) ||
			!covers(want, func(name corev1.ResourceName) int64 { return s.Free(n, name) }) {
			continue
		}
		labeled := n.DeepCopy()
		for key, value := range like.Labels {
			if _, has := labeled.Labels[key]; !has && strings.HasPrefix(key, ours) {
				metav1.SetMetaDataLabel(&labeled.ObjectMeta, key, value)
			}
		}
		if Selects(pod, &facts.Node{Node: labeled}) {
			return n
		}
	}
	return nil
}

// byKueue returns evidence that the pod's node selector contains labels that Kueue added and that no GPU node has.
func (s *Scheduler) byKueue(pod *corev1.Pod, able []*facts.Node) []finding.Evidence {
	keys, flavors, workload := s.F.SelectedByKueue(pod)
	source := "compared with Workload " + workload
	if workload == "" && slices.ContainsFunc(s.F.Snapshot.Pods, func(p corev1.Pod) bool {
		return strings.HasPrefix(p.Name, "kueue-controller-manager-")
	}) { // Kueue Workloads before 0.3 are not collected; no manifest selects nodes by Helm labels
		source, flavors = "while Kueue runs in the cluster", []string{"of its queue"}
		for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
			if slices.Contains([]string{"app.kubernetes.io/managed-by", "helm.sh/chart"}, key) {
				keys = append(keys, key)
			}
		}
	}
	var lacks []string
	for _, key := range keys {
		if value := pod.Spec.NodeSelector[key]; !slices.ContainsFunc(able, func(n *facts.Node) bool {
			have, ok := n.Labels[key]
			return ok && have == value
		}) {
			lacks = append(lacks, key+"="+value)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return []finding.Evidence{{
		Source: facts.PodObject(pod).String() + " .spec.nodeSelector, " + source,
		Text: words.Clip("conflict: Kueue selects " + strings.Join(lacks, ", ") + " by ResourceFlavor " +
			words.Joined(flavors) + ", and no GPU node has it"),
	}}
}

// setByOthers contains the prefixes of labels that clouds, autoscalers and feature discovery set. Users should not set
// such labels manually: the values may be wrong, and new nodes would lack them.
var setByOthers = []string{
	"cloud.google.com/", "eks.amazonaws.com/", "karpenter.", "kubernetes.azure.com/", "agentpool",
	"topology.kubernetes.io/",
	"node.kubernetes.io/instance-type", "beta.kubernetes.io/", "kubernetes.io/", "nvidia.com/gpu.", "nvidia.com/cuda.",
	"nvidia.com/mig.", "feature.node.kubernetes.io/", "oci.oraclecloud.com/",
}

// orLabel returns the last part of the fix for a selector, which suggests labeling nodes, unless the platform or
// feature discovery sets the labels.
func orLabel(pod *corev1.Pod) string {
	for _, key := range keysOf(pod) {
		for _, prefix := range setByOthers {
			if strings.HasPrefix(key, prefix) {
				return ", or add nodes that have them. The platform or feature discovery sets " + key +
					": do not set it manually."
			}
		}
	}
	return ", or label the intended nodes."
}

// keysOf returns the label keys in the pod's node selector and affinity, sorted.
func keysOf(pod *corev1.Pod) []string {
	keys := slices.Collect(maps.Keys(pod.Spec.NodeSelector))
	if required := requiredAffinity(pod); required != nil {
		for _, t := range required.NodeSelectorTerms {
			for _, e := range t.MatchExpressions {
				keys = append(keys, e.Key)
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
