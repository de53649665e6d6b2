package operator

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
)

func restartsCheck() engine.Check {
	return engine.Check{
		ID: "op.restarts", Symptom: engine.Explained, Layer: finding.LayerOperator,
		Title: "a pod of the GPU software runs, but fails again and again",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "restarts, last state and age of ready pods of the device plugin, the operator, its operands, NFD and the " +
			"DRA driver; the log of their previous instance",
		Why: "A container was restarted at least three times, less than 12 hours apart, and has run no longer than three " +
			"times the time between its failures. It was OOMKilled, or a signature knows a message of the instance that " +
			"failed. Restarts from outside (a reboot of the node, a failed probe) and in the first hour of a pod do not count.",
		Doc:     "https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/",
		Sources: []string{"aws-observability/helm-charts#61"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, c := range append([]facts.Component{facts.DevicePlugin}, operandKinds()...) {
				for _, pod := range f.Component(c) {
					checkRestarts(f, r, c, pod)
				}
			}
		},
	}
}

func checkRestarts(f *facts.Facts, r *engine.Result, c facts.Component, pod *corev1.Pod) {
	s, killed := f.Restarting(pod)
	if n := f.Node(pod.Spec.NodeName); s == nil || n != nil && !facts.Alive(n) {
		r.Pass(facts.PodObject(pod))
		return
	}
	found := finding.Finding{
		Title:  fmt.Sprintf("a pod of the %s fails again and again, and runs in between", c),
		Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Severity: finding.Warning,
		As: signatures.Restarted, Evidence: facts.RestartEvidence(pod, s),
		Fix: finding.Fix{
			Text: "See the log of the previous instance for the reason.",
			Commands: []string{shell.Command(
				"kubectl logs %s -n %s -c %s --previous --tail=50", pod.Name, pod.Namespace, s.Name,
			)},
		},
	}
	if killed {
		found.As = signatures.Killed
		found.Title = fmt.Sprintf("the kernel kills a pod of the %s again and again for lack of memory", c)
		found.Fix = finding.Fix{
			Text: "Raise the memory limit of the container in the values of the chart, or in the object, that installs " +
				"it. Without a limit, the node itself ran out of memory.",
			Commands: slices.Concat(facts.EditCommands(pod), []string{shell.Command(
				"kubectl top pod %s -n %s --containers", pod.Name, pod.Namespace,
			)}),
		}
	}
	r.Add(found)
}
