package workload

import (
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

func restartsCheck() engine.Check {
	return engine.Check{
		ID: "wl.restarts", Symptom: engine.Explained, Layer: finding.LayerWorkload,
		Title: "a running GPU pod fails again and again",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "restarts, last state and age of ready pods that request GPUs or other accelerators; logs of their " +
			"containers' previous instances",
		Why:      facts.RestartWhy,
		Explains: []string{"wl.pod-failing"},
		Doc:      "https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/",
		Run:      checkRestarts,
	}
}

func checkRestarts(f *facts.Facts, r *engine.Result) {
	if r.Lacks(f, "api/pods") {
		return
	}
	for _, pod := range slices.Concat(f.Workloads(), f.Others()) {
		found, ok := f.RestartFinding(pod, facts.RestartWords{
			Fails:  "the GPU pod fails again and again, and runs between the failures",
			Killed: "the kernel kills the container again and again for using too much of the host's memory",
			KilledFix: "Raise the container's memory limit, or load less into the host's memory (fewer data loader " +
				"workers, weights loaded in parts). If the container has no limit, the node ran out of memory.",
		})
		if !ok {
			r.Pass(facts.PodObject(pod))
			continue
		}
		r.Add(found)
	}
}
