package scheduler

import (
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

// closed returns the verdict if taints or the state of the nodes with enough GPUs exclude the pod.
func (s *Scheduler) closed(pod *corev1.Pod, big []*facts.Node) verdict {
	// A node that is only excluded by its state could run the pod after it recovers.
	tainted := Keep(big, func(n *facts.Node) bool { return ForeignTaint(pod, n) != nil })
	sick := Keep(big, func(n *facts.Node) bool { return ForeignTaint(pod, n) == nil })
	v := verdict{Severity: finding.Error, Confidence: finding.Certain}
	if len(sick) > 0 {
		v.Id, v.Nodes = "sched.nodes-unavailable", s.names(sick)
		v.Title = "all nodes with the GPUs that the pod requests are cordoned, not ready or under pressure"
		for _, n := range sick[:min(words.Few, len(sick))] {
			v.Evidence = append(v.Evidence, quoteState(pod, n))
		}
		v.Fix = finding.Fix{
			Text:     "Make the nodes ready, and uncordon those that are not under maintenance.",
			Commands: []string{shell.Command("kubectl describe node %s", sick[0].Name)},
		}
		return v
	}
	v.Id, v.Nodes = "sched.taint", s.names(tainted)
	v.Title = "the pod does not tolerate the taint of the GPU nodes"
	var t *corev1.Taint
	for _, n := range tainted[:min(words.Few, len(tainted))] {
		t = ForeignTaint(pod, n)
		v.Evidence = append(
			v.Evidence, finding.Evidence{Source: n.Object().String() + " .spec.taints", Text: facts.TaintText(t)},
		)
	}
	t = ForeignTaint(pod, tainted[0])
	v.Fix = finding.Fix{
		Text:     "Add the toleration to the pod's template. The taint keeps pods without GPUs off the nodes.",
		Commands: tolerate(pod, t),
	}
	return v
}

// tolerate returns the command that adds a toleration to the template of the pod's owner, or to the pod itself if it
// has no such owner. The API allows adding tolerations to an existing pod.
func tolerate(pod *corev1.Pod, t *corev1.Taint) []string {
	more := corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists, Effect: t.Effect}
	if t.Value != "" {
		more.Operator, more.Value = corev1.TolerationOpEqual, t.Value
	}
	// The patch replaces the whole list, so keep the pod's own tolerations, without the default ones.
	all := append(slices.DeleteFunc(slices.Clone(pod.Spec.Tolerations), func(t corev1.Toleration) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	}), more)
	owner := metav1.GetControllerOf(pod)
	if owner != nil {
		kind, name := strings.ToLower(owner.Kind), owner.Name
		if kind == "replicaset" {
			kind, name = "deployment", facts.DeploymentName(pod, name)
		}
		if slices.Contains([]string{"deployment", "statefulset", "daemonset"}, kind) {
			patch, err := json.Marshal(map[string]any{
				"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"tolerations": all}}},
			})
			if err != nil {
				return nil
			}
			return []string{
				shell.Command(
					"kubectl -n %s patch %s %s --type merge -p %s",
					pod.Namespace,
					kind,
					name,
					string(patch),
				),
			}
		}
	}
	operation := map[string]any{"op": "add", "path": "/spec/tolerations/-", "value": more}
	if len(pod.Spec.Tolerations) == 0 {
		operation["path"], operation["value"] = "/spec/tolerations", []corev1.Toleration{more}
	}
	patch, err := json.Marshal([]any{operation})
	if err != nil {
		return nil
	}
	return []string{
		shell.Command("kubectl -n %s patch pod %s --type json -p %s", pod.Namespace, pod.Name, string(patch)),
	}
}

// ForeignTaint returns the first taint of a node that the pod does not tolerate and that does not represent the node's
// state.
func ForeignTaint(pod *corev1.Pod, n *facts.Node) *corev1.Taint {
	if len(n.Spec.Taints) == 0 {
		return nil
	}
	without := *n.Node
	without.Spec.Unschedulable = false
	without.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints),
		func(t corev1.Taint) bool { return ofNodeState(&t) })
	return untolerated(pod, &facts.Node{Node: &without})
}

// quoteState returns the state that keeps pods off a node as evidence.
func quoteState(pod *corev1.Pod, n *facts.Node) finding.Evidence {
	if ready := n.Ready(); ready.Status != corev1.ConditionTrue && ready.Status != "" {
		return finding.Evidence{
			Source: n.Object().String() + " .status.conditions[Ready].message", Time: ready.LastTransitionTime.Time,
			Text: words.Cut(ready.Message),
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
