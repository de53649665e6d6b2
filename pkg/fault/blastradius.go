package fault

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// checkBlastRadius checks that the plan leaves enough GPU nodes usable.
//
// A GPU node is usable if it is Ready and not cordoned. A usable node is hit if the plan targets it or if another
// run holds its lock. Hitting all usable nodes (hit = usable) requires --allow-last-gpu-node. Hitting more than half of
// them (2*hit > usable) requires --allow-majority, unless there is only one. For example, a plan may hit one of two
// nodes, but not two of three. A plan that hits no usable GPU node always passes.
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
			fmt.Errorf("no usable GPU node would be left: the plan affects %d of %d that are Ready and not "+
				"cordoned%s; to allow this, pass --allow-last-gpu-node", hit, usable, others))
	}
	if 2*hit > usable && usable > 1 && !plan.Allow.Majority {
		problems = append(problems,
			fmt.Errorf("more than half of the GPU nodes would be affected: %d of %d that are Ready and not "+
				"cordoned%s; to allow this, pass --allow-majority", hit, usable, others))
	}
	return problems
}

// IsGPUNode reports whether a node has NVIDIA GPUs: its capacity lists GPUs or MIG devices, or GPU feature discovery
// has labeled it.
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
