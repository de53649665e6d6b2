package doctor

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

func operandCheck() Check {
	return Check{
		ID: "op.operand-failing", Layer: LayerOperator,
		Title: "a pod of the GPU software does not become ready",
		Needs: []Need{NeedAPI, NeedLogs},
		Reads: "state, last state and restarts of all containers of the driver, toolkit, feature discovery, DCGM, MIG manager, MPS, validator, operator, NFD and DRA pods, their newest warning, and the " +
			"end of their logs",
		Why: "A symptom: it is told so that nothing stays unseen whose cause no other check knows. Pods that start for less than 2 minutes (the driver: 20), that have ended, or that are being " +
			"deleted are not counted.",
		Explains: []string{"op.clusterpolicy", "gfd.labels"},
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/troubleshooting.html",
		Sources:  []string{"gpu-operator#1598", "gpu-operator#441"},
		Run: func(f *Facts, r *Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, c := range operandKinds() {
				for _, pod := range f.Component(c) {
					checkOperand(f, r, c, pod)
				}
			}
		},
	}
}

// operandKinds returns all components but the device plugin, which has a check of its own.
func operandKinds() []Component {
	return []Component{
		Driver, Toolkit, FeatureDiscovery, DCGMExporter, DCGM, MIGManager, MPS, Validator, Operator, NFD, DRADriver,
	}
}

func checkOperand(f *Facts, r *Result, c Component, pod *corev1.Pod) {
	if n := f.Node(pod.Spec.NodeName); n != nil && !alive(n) {
		r.Unknown(PodObject(pod), "node %s is not Ready: what the API says of the pod is old", n.Name)
		return
	}
	t, bad := operandTrouble(f, pod)
	if !bad {
		r.Pass(PodObject(pod))
		return
	}
	found := troubleFinding(t)
	found.Title = fmt.Sprintf("a pod of the %s %s", c, troubleWords(t))
	if slices.Contains([]Component{DCGMExporter, DCGM, FeatureDiscovery, MIGManager, NFD, Operator}, c) {
		found.Severity = Warning // GPU workloads run without it
	}
	r.Add(found)
}

// troubleFinding returns the finding of a symptom check about a pod.
func troubleFinding(t podTrouble) Finding {
	pod := t.Pod
	found := Finding{Object: PodObject(pod), Evidence: t.Evidence, Fix: Fix{
		Text:     "Read why in the evidence, and the rest of the log. When the cause is gone and the pod still waits, delete it: its owner makes a new one.",
		Commands: []string{command("kubectl describe pod %s -n %s", pod.Name, pod.Namespace)},
	}}
	if t.Container != "" {
		found.Fix.Commands = append(found.Fix.Commands,
			command("kubectl logs %s -n %s -c %s", pod.Name, pod.Namespace, t.Container))
	}
	if pod.Spec.NodeName != "" {
		found.Nodes = []string{pod.Spec.NodeName}
	}
	return found
}

// troubleWords returns what a pod's trouble is, as the end of a sentence about it.
func troubleWords(t podTrouble) string {
	switch {
	case t.Pod.Spec.NodeName == "":
		return "is on no node (" + t.Reason + ")"
	case t.Container == "":
		return "does not start (" + t.Reason + ")"
	case t.Init && t.Waits:
		return "waits in its init container " + t.Container
	case t.Waits:
		return "runs and does not become ready"
	case strings.Contains(t.Reason, "Image"):
		return "has no image (" + t.Reason + ")"
	}
	return fmt.Sprintf("fails in its container %s (%s)", t.Container, t.Reason)
}
