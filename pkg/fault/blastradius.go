package fault

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// checkBlastRadius keeps GPU work in the cluster possible.
//
// What counts are the usable GPU nodes: Ready and not cordoned. Of these, hit are the plan's targets together with
// those that another run holds broken. None left (hit = usable) needs --allow-last-gpu-node; more than half (2*hit >
// usable) needs --allow-majority, except where there is only one, which has no majority. So one of two may be hit and
// two of three may not. A plan that hits no usable GPU node passes: it makes nothing worse.
func checkBlastRadius(plan Plan, nodes []corev1.Node, held []*ledger.LockedError) []error {
	targets := map[string]bool{}
	for _, target := range nodeTargets(plan) {
		targets[target.Name] = harmed(plan, target)
	}
	broken := map[string]bool{}
	for _, lock := range held {
		if lock.Target.Kind == kindNode {
			broken[lock.Target.Name] = true
		}
	}
	usable, hit, ours := 0, 0, 0
	for _, node := range nodes {
		if ready, _ := isReady(node); !ready || node.Spec.Unschedulable || !IsGPUNode(node) {
			continue
		}
		usable++
		if targets[node.Name] {
			ours++
		}
		if targets[node.Name] || broken[node.Name] {
			hit++
		}
	}
	if ours == 0 {
		return nil
	}
	others := ""
	if hit > ours {
		others = fmt.Sprintf(" (%d of them held by other runs)", hit-ours)
	}
	var problems []error
	if hit == usable && !plan.Allow.LastGPUNode {
		problems = append(problems,
			fmt.Errorf("no usable GPU node would be left: the plan hits %d of %d that are Ready and not cordoned%s; "+
				"to go on anyway: --allow-last-gpu-node", hit, usable, others))
	}
	if 2*hit > usable && usable > 1 && !plan.Allow.Majority {
		problems = append(problems,
			fmt.Errorf("over half of the GPU nodes would be hit: %d of %d that are Ready and not cordoned%s; "+
				"to go on anyway: --allow-majority", hit, usable, others))
	}
	return problems
}

// IsGPUNode reports whether a node has NVIDIA GPUs: a device plugin offers them or MIG slices of them, or GPU feature
// discovery saw them.
func IsGPUNode(node corev1.Node) bool {
	if node.Labels["nvidia.com/gpu.present"] == "true" {
		return true
	}
	for name, quantity := range node.Status.Capacity {
		if (strings.HasPrefix(string(name), "nvidia.com/gpu") || strings.HasPrefix(string(name), "nvidia.com/mig-")) &&
			!quantity.IsZero() {
			return true
		}
	}
	return false
}
