package scheduler

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// closed returns the verdict if the nodes with enough GPUs exclude the pod because of their taints or state.
func (s *Scheduler) closed(pod *corev1.Pod, big []*facts.Node) verdict {
	// A node that is excluded only because of its state could run the pod after the node recovers.
	tainted := Keep(big, func(n *facts.Node) bool { return Foreign(pod, n) })
	sick := Keep(big, func(n *facts.Node) bool { return !Foreign(pod, n) })
	v := verdict{Severity: finding.Error, Confidence: finding.Certain}
	if len(sick) > 0 {
		v.Id, v.Nodes = "sched.nodes-unavailable", s.names(sick)
		v.Title = "all nodes with the GPUs that the pod requests are cordoned, tainted, not ready, under pressure, " +
			"starting or being removed"
		for _, n := range sick[:min(words.Few, len(sick))] {
			v.Evidence = append(v.Evidence, quoteState(pod, n))
		}
		v.Fix = finding.Fix{
			Text:     "Make the nodes ready, and uncordon nodes that are not under maintenance.",
			Commands: []string{shell.Command("kubectl describe node %s", sick[0].Name)},
		}
		return v
	}
	v.Id, v.Nodes = "sched.taint", s.names(tainted)
	for _, n := range tainted[:min(words.Few, len(tainted))] {
		v.Evidence = append(v.Evidence, finding.Evidence{
			Source: n.Object().String() + " .spec.taints", Text: facts.TaintsText(foreignTaints(pod, n)),
		})
	}
	taints := foreignTaints(pod, tainted[0])
	v.Title = "the pod does not tolerate the taint " + facts.TaintsText(taints) + " on the GPU nodes"
	v.Fix = finding.Fix{
		Text: "If the pod may run on these nodes, add a toleration for each taint to its template." + purpose(taints),
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "ClusterPolicy" {
		v.Fix.Text = "The GPU operator creates this pod. Set the toleration in the ClusterPolicy " +
			"(daemonsets.tolerations). If the ClusterPolicy already contains the toleration, this release of the " +
			"operator does not apply it to this pod: upgrade the operator. Until then, add the toleration to the pod " +
			"itself."
		v.Fix.Commands = []string{shell.Command("kubectl get clusterpolicy %s -o yaml", owner.Name)}
	}
	if kind, _ := facts.GeneratedBy(pod); kind != "" {
		v.Fix.Text = "An operator generates the pod from a " + kind + " resource. Add a toleration for each taint to " +
			"that resource. If the operator's Helm values already contain the tolerations, they do not apply to this " +
			"pod: look for a release of the chart that applies them. If the pod belongs to a Job, delete the Job, so " +
			"that the operator recreates it." + purpose(taints)
	} else if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Job" {
		v.Fix.Text = "Add a toleration for each taint to the job's manifest, and recreate the job, because the " +
			"template of a Job cannot be changed. Until then, the command allows this pod on the " +
			"nodes." + purpose(taints)
	}
	v.Fix.Commands = append(v.Fix.Commands, tolerate(pod, taints...)...)
	return v
}

// purpose returns an additional sentence about the purpose of taints, if their keys reveal it.
func purpose(taints []corev1.Taint) string {
	for _, t := range taints {
		switch key := strings.ToLower(t.Key + "=" + t.Value); {
		case words.ContainsAny(key, []string{"spot", "interrupt", "preempt"}):
			return " The taint marks nodes that the cloud can reclaim at any time."
		case words.ContainsAny(key, []string{"gpu", "nvidia", "accelerator"}):
			return " The taint keeps pods without GPUs off the nodes."
		}
	}
	return ""
}

// tolerate returns the commands that add tolerations for taints to the template of the pod's owner, or to the pod
// itself if it has no owner with a mutable template. The API allows adding tolerations to an existing pod.
func tolerate(pod *corev1.Pod, taints ...corev1.Taint) []string {
	var more []corev1.Toleration
	for _, t := range taints {
		one := corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists, Effect: t.Effect}
		if t.Value != "" {
			one.Operator, one.Value = corev1.TolerationOpEqual, t.Value
		}
		more = append(more, one)
	}
	// The patch replaces the entire list, so it includes the pod's existing tolerations, except the default ones.
	all := append(slices.DeleteFunc(slices.Clone(pod.Spec.Tolerations), func(t corev1.Toleration) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	}), more...)
	kind, name := facts.GeneratedBy(pod)
	if owner := metav1.GetControllerOf(pod); kind == "" && owner != nil {
		kind, name = owner.Kind, owner.Name
		if kind == "ReplicaSet" {
			kind, name = "Deployment", facts.DeploymentName(pod, name)
		}
	}
	spec := map[string]any{"tolerations": all}
	switch kind {
	case "Deployment", "StatefulSet", "DaemonSet":
		spec = map[string]any{"template": map[string]any{"spec": spec}}
	case "InferenceService":
		spec = map[string]any{cmp.Or(pod.Labels["component"], "predictor"): spec}
	case "LeaderWorkerSet", "LLMInferenceService":
		return facts.EditCommands(pod)
	case "NIMCache", "NIMService":
	default:
		return toleratePod(pod, more)
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return nil
	}
	return []string{
		shell.Command("kubectl -n %s patch %s %s --type merge -p %s",
			pod.Namespace, strings.ToLower(kind), name, string(patch)),
	}
}

// toleratePod returns the command that adds tolerations to the pod itself.
func toleratePod(pod *corev1.Pod, more []corev1.Toleration) []string {
	operations := []any{map[string]any{"op": "add", "path": "/spec/tolerations", "value": more}}
	if len(pod.Spec.Tolerations) > 0 {
		operations = nil
		for _, one := range more {
			operations = append(operations, map[string]any{"op": "add", "path": "/spec/tolerations/-", "value": one})
		}
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return nil
	}
	return []string{
		shell.Command("kubectl -n %s patch pod %s --type json -p %s", pod.Namespace, pod.Name, string(patch)),
	}
}

// Foreign reports whether a node has a taint that the pod does not tolerate and that does not represent the node's
// state.
func Foreign(pod *corev1.Pod, n *facts.Node) bool { return len(foreignTaints(pod, n)) > 0 }

// foreignTaints returns the node's taints that the pod does not tolerate and that do not represent the node's state.
func foreignTaints(pod *corev1.Pod, n *facts.Node) (all []corev1.Taint) {
	for _, t := range n.Spec.Taints {
		if ofNodeState(&t) {
			continue
		}
		with := *n.Node
		with.Spec.Unschedulable, with.Spec.Taints = false, []corev1.Taint{t}
		if untolerated(pod, &facts.Node{Node: &with}) != nil {
			all = append(all, t)
		}
	}
	return all
}

// quoteState returns as evidence the state that keeps pods off a node.
func quoteState(pod *corev1.Pod, n *facts.Node) finding.Evidence {
	if ready := n.Ready(); ready.Status != corev1.ConditionTrue && ready.Status != "" {
		return finding.Evidence{
			Source: n.Object().String() + " .status.conditions[Ready].message", Time: ready.LastTransitionTime.Time,
			Text: words.Clip(ready.Message),
		}
	}
	if n.Spec.Unschedulable {
		return finding.Evidence{Source: n.Object().String() + " .spec.unschedulable", Text: "true"}
	}
	if t := untolerated(pod, n); t != nil {
		return finding.Evidence{Source: n.Object().String() + " .spec.taints", Text: facts.TaintText(t)}
	}
	return finding.Evidence{Source: n.Object().String(), Text: "not available"}
}
