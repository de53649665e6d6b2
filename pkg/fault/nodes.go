package fault

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// nodes returns all nodes of the cluster, without large fields that are not needed. Checking the blast radius requires
// more than the target nodes.
func (s *Session) nodes(ctx context.Context) ([]corev1.Node, error) {
	var nodes []corev1.Node
	err := EachNode(ctx, s.Client, "", func(node *corev1.Node) {
		node.ManagedFields, node.Annotations, node.Status.Images = nil, nil, nil
		nodes = append(nodes, *node)
	})
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	return nodes, nil
}

// EachNode visits the nodes that match a label selector, page by page, because a typical node object is 20 KB, mostly
// image names. The visit function must not keep the pointer.
func EachNode(ctx context.Context, client kubernetes.Interface, selector string, visit func(*corev1.Node)) error {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Nodes().List(ctx, options)
	})
	pages.PageBufferSize = 1
	options := metav1.ListOptions{LabelSelector: selector}
	return pages.EachListItem(ctx, options, func(object runtime.Object) error {
		if node, ok := object.(*corev1.Node); ok {
			visit(node)
		}
		return nil
	})
}

// Allocatable returns the allocatable resources in the status of a node. Fractions are rounded up.
func Allocatable(
	ctx context.Context, client kubernetes.Interface, name string,
) (map[corev1.ResourceName]int64, error) {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	all := map[corev1.ResourceName]int64{}
	for resource, quantity := range node.Status.Allocatable {
		all[resource] = quantity.Value()
	}
	return all, nil
}

func nodeTargets(plan Plan) []ledger.Target {
	var targets []ledger.Target
	for _, change := range plan.Changes {
		if change.Target.Kind == kindNode && !slices.ContainsFunc(targets, change.Target.Same) {
			targets = append(targets, change.Target)
		}
	}
	return targets
}

// harmed reports whether any change in the plan reduces the capacity of the target.
func harmed(plan Plan, target ledger.Target) bool {
	return slices.ContainsFunc(plan.Changes,
		func(change Change) bool { return change.Target.Same(target) && !change.Harmless })
}

// checkNodes checks that each target node exists, can run a debug pod, and is not a control plane node that the plan
// would harm.
func checkNodes(plan Plan, nodes []corev1.Node) []error {
	var problems []error
	for _, target := range nodeTargets(plan) {
		i := slices.IndexFunc(nodes, func(node corev1.Node) bool { return node.Name == target.Name })
		if i < 0 {
			problems = append(problems, NodeNotFound(target.Name, NodeNames(nodes)))
			continue
		}
		node := nodes[i]
		if target.UID != "" && target.UID != string(node.UID) {
			problems = append(problems,
				fmt.Errorf("node %q was re-registered since the command started; try again",
					node.Name))
		}
		if os := operatingSystem(node); os != "linux" {
			problems = append(problems, fmt.Errorf("node %s runs %s: faults are supported only on Linux nodes", node.Name, os))
		}
		if ready, why := isReady(node); !ready {
			problems = append(problems,
				fmt.Errorf("node %s is not Ready (%s), so faults on it could not be verified or undone", node.Name,
					why))
		}
		if role, ok := ControlPlaneRole(node); ok && !plan.Allow.ControlPlane && harmed(plan, target) {
			problems = append(problems,
				fmt.Errorf("node %s belongs to the control plane (label %s); to allow this, pass --allow-control-plane",
					node.Name, role))
		}
	}
	return problems
}

func isReady(node corev1.Node) (bool, string) {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue, condition.Reason
		}
	}
	return false, "it has not reported its status yet"
}

func operatingSystem(node corev1.Node) string {
	for _, os := range []string{node.Labels[corev1.LabelOSStable], node.Status.NodeInfo.OperatingSystem} {
		if os != "" {
			return os
		}
	}
	return "linux" // nodes without a kubelet, such as those in kwok and tests, report no OS
}

// ControlPlaneRole returns the label that marks a node as part of the control plane. kubeadm uses control-plane and,
// before Kubernetes 1.24, master. RKE uses controlplane and etcd.
func ControlPlaneRole(node corev1.Node) (string, bool) {
	for _, role := range []string{"control-plane", "master", "controlplane", "etcd"} {
		label := "node-role.kubernetes.io/" + role
		if value, ok := node.Labels[label]; ok && value != "false" {
			return label, true
		}
	}
	return "", false
}

// NodeNames returns the names of the nodes in the same order.
func NodeNames(nodes []corev1.Node) []string {
	names := make([]string, len(nodes))
	for i := range nodes {
		names[i] = nodes[i].Name
	}
	return names
}

// NodeNotFound returns an error for a node that does not exist. The error suggests up to three nodes with similar
// names.
func NodeNotFound(name string, nodes []string) error {
	type candidate struct {
		name     string
		distance int
	}
	var near []candidate
	for _, node := range nodes {
		distance := levenshtein.Distance(name, node, nil)
		// Users abbreviate names as often as they mistype them: "gpu-1" for "gpu-1.example.com".
		if distance <= max(2, len(name)/4) || strings.HasPrefix(node, name) {
			near = append(near, candidate{node, distance})
		}
	}
	if len(near) == 0 {
		return fmt.Errorf("node %q not found; see: kubectl get nodes", name)
	}
	sorting.StableFunc(near, func(a, b candidate) int { return a.distance - b.distance })
	var names []string
	for _, c := range near[:min(3, len(near))] {
		names = append(names, c.name)
	}
	return fmt.Errorf("node %q not found; did you mean %s?", name, strings.Join(names, ", "))
}
