package facts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// KeptAway returns the node's first taint that the DaemonSet's pods do not tolerate.
func KeptAway(n *Node, d *appsv1.DaemonSet) (corev1.Taint, bool) {
	if all := Untolerated(n, d); len(all) > 0 {
		return all[0], true
	}
	return corev1.Taint{}, false
}

// Untolerated returns the node's taints that the DaemonSet's pods do not tolerate.
func Untolerated(n *Node, d *appsv1.DaemonSet) (all []corev1.Taint) {
	for _, taint := range n.Spec.Taints {
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			continue // DaemonSet pods tolerate the taints for node conditions
		}
		if !slices.ContainsFunc(
			d.Spec.Template.Spec.Tolerations, func(t corev1.Toleration) bool { return nfdTolerates(t, taint) },
		) {
			all = append(all, taint)
		}
	}
	return all
}

func nfdTolerates(t corev1.Toleration, taint corev1.Taint) bool {
	switch {
	case t.Effect != "" && t.Effect != taint.Effect, t.Key != "" && t.Key != taint.Key,
		t.Key == "" && t.Operator != corev1.TolerationOpExists:
		return false
	case t.Operator == corev1.TolerationOpExists:
		return true
	}
	return t.Value == taint.Value
}

// TroubleFinding returns a symptom check's finding about a pod.
func TroubleFinding(t PodTrouble) finding.Finding {
	pod := t.Pod
	found := finding.Finding{Object: PodObject(pod), Evidence: t.Evidence, Fix: finding.Fix{
		Text: "Check the evidence and the rest of the log for the reason. If the pod is still waiting after you have " +
			"fixed the cause, delete it: its owner recreates it.",
		Commands: []string{shell.Command("kubectl describe pod %s -n %s", pod.Name, pod.Namespace)},
	}}
	if taints := untoleratedIn(t); taints != "" {
		found.Fix.Text = "Add a toleration for the taint of the nodes on which the pod should run, in the chart's " +
			"values or the manifest that defines the pod, unless a controller removes the taint soon. Do not remove " +
			"the taint."
	}
	if !t.Waits && !strings.Contains(t.Reason, "Image") {
		found.Crashed = t.Container
	}
	if t.Container != "" {
		found.Fix.Commands = append(found.Fix.Commands,
			shell.Command("kubectl logs %s -n %s -c %s", pod.Name, pod.Namespace, t.Container))
	}
	if pod.Spec.NodeName != "" {
		found.Nodes = []string{pod.Spec.NodeName}
	}
	return found
}

// OperatorDenied quotes the GPU operator's log if the API server denies the operator a required permission. In that
// case, the operator creates no pods.
func OperatorDenied(f *Facts) []finding.Evidence {
	for _, pod := range f.Component(Operator) {
		if e, ok := LogEvidence(f, pod, "is forbidden: User"); ok {
			return []finding.Evidence{e}
		}
	}
	return nil
}

var taintInMessage = regexp.MustCompile(`\{[^}]*\}`)

// untoleratedIn returns the taints that keep an unscheduled pod off all nodes according to the scheduler's message, or
// "" if the message also names other reasons, or taints for conditions of nodes.
func untoleratedIn(t PodTrouble) string {
	if t.Pod.Spec.NodeName != "" || len(t.Evidence) == 0 {
		return ""
	}
	_, reasons, _ := strings.Cut(t.Evidence[0].Text, " nodes are available: ")
	reasons, _, _ = strings.Cut(reasons, ". ")
	if strings.Count(reasons, " had untolerated taint {") != strings.Count(reasons, ", ")+1 ||
		strings.Contains(reasons, "{node.kubernetes.io/") {
		return ""
	}
	return strings.Join(taintInMessage.FindAllString(reasons, -1), ", ")
}

// TroubleWords describes a pod's trouble in words that complete a sentence about the pod.
func TroubleWords(t PodTrouble) string {
	taints := untoleratedIn(t)
	switch {
	case taints != "":
		return "is not scheduled, because it does not tolerate the nodes' taints: " + taints
	case t.Pod.Spec.NodeName == "":
		return "is not scheduled (" + t.Reason + ")"
	case t.Container == "":
		return "does not start (" + t.Reason + ")"
	case t.Init && t.Waits:
		return "is waiting in its init container " + t.Container
	case t.Waits:
		return "is running but does not become ready"
	case strings.Contains(t.Reason, "Image"):
		return "cannot pull its image (" + t.Reason + ")"
	}
	return fmt.Sprintf("fails in its container %s (%s)", t.Container, t.Reason)
}

// ForMachines reports whether the node's GPUs are intentionally configured for virtual machines.
func ForMachines(n *Node) bool {
	return strings.HasPrefix(n.Labels["nvidia.com/gpu.workload.config"], "vm-")
}
