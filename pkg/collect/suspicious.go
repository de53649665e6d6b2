package collect

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// suspicious returns the GPU nodes that look unhealthy in the API, sorted. These should be inspected directly.
func suspicious(s *snapshot.Snapshot) []string {
	f := facts.New(s)
	suspects := map[string]bool{}
	dra := map[string]bool{}
	for _, slice := range s.ResourceSlices {
		if slice.Spec.NodeName != nil && isNVIDIAs(slice.Spec.Driver) {
			dra[*slice.Spec.NodeName] = true
		}
	}
	for _, run := range s.Runs {
		for _, target := range run.Targets {
			if target.Kind == "Node" && run.Closed.IsZero() {
				suspects[target.Name] = true
			}
		}
	}
	for _, n := range f.GPUNodes {
		if hasProblem(n) || isUnsettled(n) || lacksGPUs(n, dra[n.Name]) ||
			slices.ContainsFunc(n.Pods, func(pod *corev1.Pod) bool { return fails(f, pod) }) {
			suspects[n.Name] = true
		}
	}
	known := map[string]bool{}
	for _, n := range f.GPUNodes {
		known[n.Name] = true
	}
	maps.DeleteFunc(suspects, func(name string, _ bool) bool { return !known[name] })
	return slices.Sorted(maps.Keys(suspects))
}

// hasProblem reports whether a node condition indicates a problem: Ready or a similar condition is not true, or another
// condition is true.
func hasProblem(n *facts.Node) bool {
	return n.Ready().Status != corev1.ConditionTrue ||
		slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			good := corev1.ConditionFalse
			for _, suffix := range []string{"Ready", "Healthy", "Available", "Synced"} {
				if strings.HasSuffix(string(c.Type), suffix) {
					good = corev1.ConditionTrue
				}
			}
			return c.Status != good && (c.Status != corev1.ConditionUnknown || c.Type == corev1.NodeReady)
		})
}

// isUnsettled reports whether the MIG manager has not finished, or feature discovery has not reported the GPUs.
func isUnsettled(n *facts.Node) bool {
	if slices.Contains([]string{"failed", "pending", "rebooting"}, n.Labels["nvidia.com/mig.config.state"]) {
		return true
	}
	return n.Labels["nvidia.com/gpu.product"] == "" && slices.ContainsFunc(n.Pods, func(pod *corev1.Pod) bool {
		return facts.ComponentOf(pod.Labels, &pod.Spec) == facts.FeatureDiscovery
	})
}

// lacksGPUs reports whether the node advertises fewer GPUs than it has, or none. A node whose GPUs are claimed (DRA)
// does not advertise them as extended resources.
func lacksGPUs(n *facts.Node, claimed bool) bool {
	offered := false
	for name, capacity := range n.Status.Capacity {
		if !facts.IsGPUResource(name) {
			continue
		}
		allocatable := n.Status.Allocatable[name]
		if allocatable.Cmp(capacity) < 0 {
			return true
		}
		offered = offered || !capacity.IsZero()
	}
	return !offered && !claimed
}

// fails reports whether a GPU-related pod is not running as expected.
func fails(f *facts.Facts, pod *corev1.Pod) bool {
	if facts.WantsGPU(pod) || pod.Spec.RuntimeClassName != nil || facts.ComponentOf(pod.Labels, &pod.Spec) != "" {
		return !isWell(pod)
	}
	return !isWell(pod) && slices.ContainsFunc(f.EventsOf("Pod", pod.Namespace, pod.Name),
		func(e *corev1.Event) bool { return e.Reason == "FailedCreatePodSandBox" })
}
