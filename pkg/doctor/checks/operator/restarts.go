package operator

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

func restartsCheck() engine.Check {
	return engine.Check{
		ID: "op.restarts", Symptom: engine.Explained, Layer: finding.LayerOperator,
		Title: "a pod of the GPU software is running, but fails repeatedly",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "restarts, last state and age of ready pods of the device plugin, the operator, its operands, NFD and the " +
			"DRA driver; the logs of their previous instances",
		Why:     facts.RestartWhy,
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
	found, ok := f.RestartFinding(pod, facts.RestartWords{
		Fails:  fmt.Sprintf("a pod of the %s fails repeatedly, and runs in between", c),
		Killed: fmt.Sprintf("the kernel repeatedly kills a pod of the %s, because the pod runs out of memory", c),
		KilledFix: "Raise the container's memory limit in the chart's values, or in the object that creates the pod. " +
			"If the container has no memory limit, the node itself ran out of memory.",
	})
	if !ok {
		r.Pass(facts.PodObject(pod))
		return
	}
	r.Add(found)
}
