package cudashim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

// placement is the part of a pod spec that restricts the nodes on which pods may run.
type placement struct {
	NodeName     string            `json:"nodeName"`
	NodeSelector map[string]string `json:"nodeSelector"`
	Affinity     *corev1.Affinity  `json:"affinity"`
}

// Architectures returns the sorted architectures (amd64, arm64) of the nodes on which pods of the chosen templates may
// run. If containers request GPUs and the cluster has GPU nodes, only those nodes count. It returns an error for a
// template that matches no node or runs only on Windows.
func (c *Cluster) Architectures(ctx context.Context, w *Workload, chosen []Chosen) ([]string, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var archs []string
	for _, chosen := range chosen {
		spec := kubeedit.Map(w.Object.Object, chosen.Template.spec)
		if os := kubeedit.Text(spec, kubeedit.Fields("os", "name")); os == "windows" {
			return nil, fmt.Errorf("%s: template %q is for Windows, which the shim does not support", w.Ref(),
				chosen.Template.label())
		}
		var p placement
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{
			"nodeName": spec["nodeName"], "nodeSelector": spec["nodeSelector"], "affinity": spec["affinity"],
		}, &p); err != nil {
			return nil, fmt.Errorf("%s: decode the node restrictions of the pods: %w", w.Ref(), err)
		}
		nodes := slices.DeleteFunc(slices.Clone(list.Items), func(n corev1.Node) bool { return !p.allows(&n) })
		if len(nodes) == 0 {
			return nil,
				fmt.Errorf("%s: the architecture is unknown, because no node matches the nodeName, nodeSelector or nodeAffinity of template %q",
					w.Ref(), chosen.Template.label())
		}
		if slices.ContainsFunc(chosen.Containers, func(c Container) bool { return c.GPU }) {
			if withGPU := slices.DeleteFunc(
				slices.Clone(nodes), func(n corev1.Node) bool { return !hasGPU(&n) },
			); len(withGPU) > 0 {
				nodes = withGPU
			}
		}
		linux := false
		for _, n := range nodes {
			if n.Status.NodeInfo.OperatingSystem == "windows" {
				continue
			}
			linux = true
			if arch := n.Status.NodeInfo.Architecture; arch != "" && !slices.Contains(archs, arch) {
				archs = append(archs, arch)
			}
		}
		if !linux {
			return nil,
				fmt.Errorf("%s: the pods can run only on Windows nodes, which the shim does not support", w.Ref())
		}
	}
	slices.Sort(archs)
	return archs, nil
}

func hasGPU(n *corev1.Node) bool {
	for name, amount := range n.Status.Capacity {
		if strings.HasPrefix(string(name), "nvidia.com/") && !amount.IsZero() {
			return true
		}
	}
	return false
}

// allows reports whether pods may run on a node according to its labels. Taints are ignored, because they may change at
// any time.
func (p placement) allows(n *corev1.Node) bool {
	if p.NodeName != "" {
		return p.NodeName == n.Name
	}
	if !labels.SelectorFromSet(p.NodeSelector).Matches(labels.Set(n.Labels)) {
		return false
	}
	if p.Affinity == nil || p.Affinity.NodeAffinity == nil ||
		p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	return slices.ContainsFunc(p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms,
		func(term corev1.NodeSelectorTerm) bool {
			if len(term.MatchExpressions)+len(term.MatchFields) == 0 { // matches no node, by definition
				return false
			}
			names := labels.Set{"metadata.name": n.Name}
			return matches(term.MatchExpressions, labels.Set(n.Labels)) && matches(term.MatchFields, names)
		})
}

// matches reports whether all requirements are met. As in the scheduler, an invalid requirement is never met.
func matches(requirements []corev1.NodeSelectorRequirement, set labels.Set) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists:       selection.Exists,
		corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpGt: selection.GreaterThan,
		corev1.NodeSelectorOpLt: selection.LessThan,
	}
	for _, r := range requirements {
		requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		if err != nil || !requirement.Matches(set) {
			return false
		}
	}
	return true
}
