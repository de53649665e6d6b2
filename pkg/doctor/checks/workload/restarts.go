package workload

import (
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
)

func restartsCheck() engine.Check {
	return engine.Check{
		ID: "wl.restarts", Symptom: engine.Explained, Layer: finding.LayerWorkload,
		Title: "a GPU pod runs, but fails again and again",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "restarts, last state and age of ready pods that request GPUs; the log of their previous instance",
		Why: "A container was restarted at least three times, less than 12 hours apart, and has run no longer than three " +
			"times the time between its failures. It was OOMKilled, or a signature knows a message of the instance that " +
			"failed. Restarts from outside (a reboot of the node, a failed probe) and in the first hour of a pod do not count.",
		Explains: []string{"wl.pod-failing"},
		Doc:      "https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/",
		Run:      checkRestarts,
	}
}

func checkRestarts(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range f.Workloads() {
		s, killed := f.Restarting(pod)
		if n := f.Node(pod.Spec.NodeName); s == nil || n != nil && !facts.Alive(n) {
			r.Pass(facts.PodObject(pod))
			continue
		}
		found := finding.Finding{
			Title:  "the GPU pod fails again and again, and runs in between",
			Object: facts.PodObject(pod), Nodes: facts.OnNode(pod), Severity: finding.Warning,
			As: signatures.Restarted, Evidence: facts.RestartEvidence(pod, s),
			Fix: finding.Fix{
				Text: "See the log of the previous instance for the reason.",
				Commands: []string{shell.Command(
					"kubectl -n %s logs %s -c %s --previous --tail=50", pod.Namespace, pod.Name, s.Name,
				)},
			},
		}
		if killed {
			found.As = signatures.Killed
			found.Title = "the kernel kills the container again and again for using too much of the host's memory"
			found.Fix = finding.Fix{
				Text: "Raise the container's memory limit, or load less into the host's memory (fewer data loader " +
					"workers, weights loaded in parts).",
				Commands: slices.Concat(facts.EditCommands(pod), []string{shell.Command(
					"kubectl -n %s top pod %s --containers", pod.Namespace, pod.Name,
				)}),
			}
		}
		r.Add(found)
	}
}
