package exercise

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
)

// placements are the fields that placing allows.
var placements = []string{
	"spec.template.spec.nodeSelector",
	"spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
}

// placing allows additional node requirements, such as nvidia.com/gpu.present=true, in workloads that a solution
// changes, if these requirements are met by all nodes on which the pods could run before.
func (l *Lab) placing(
	ctx context.Context, allow []scenario.Allowed, differences []baseline.Difference,
	begin, now func(scenario.Ref) map[string]any,
) ([]scenario.Allowed, error) {
	var nodes []corev1.Node
	var all []scenario.Allowed
	for _, d := range differences {
		if d.Kind != baseline.Changed || !slices.ContainsFunc(allow, func(a scenario.Allowed) bool {
			return baseline.Concerns(a, d.Ref) && len(a.Fields) > 0 && slices.Contains(workloads, a.Kind)
		}) {
			continue
		}
		was, is := podSpec(begin(d.Ref)), podSpec(now(d.Ref))
		if was == nil || is == nil || samePlacement(was, is) {
			continue
		}
		if nodes == nil {
			list, err := l.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			if err != nil {
				return nil, fmt.Errorf("list nodes: %w", err)
			}
			nodes = list.Items
		}
		if onlyStricter(was, is, nodes) {
			all = append(all, scenario.Allowed{
				Kind: d.Ref.Kind, Namespace: d.Ref.Namespace, Name: d.Ref.Name, Fields: placements,
			})
		}
	}
	return all, nil
}

// podSpec returns the pod template of a workload, or nil.
func podSpec(workload map[string]any) *corev1.PodSpec {
	var typed struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if workload == nil || runtime.DefaultUnstructuredConverter.FromUnstructured(workload, &typed) != nil {
		return nil
	}
	return &typed.Spec.Template.Spec
}

// required returns the required node affinity, or nil.
func required(spec *corev1.PodSpec) *corev1.NodeSelector {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func samePlacement(a, b *corev1.PodSpec) bool {
	return maps.Equal(a.NodeSelector, b.NodeSelector) && reflect.DeepEqual(required(a), required(b))
}

// onlyStricter reports whether the new requirements exclude none of the nodes on which the pods could run before, and
// would not admit any other node. So that this also applies to nodes that will be added, the new requirements must not
// refer to the nodes by name.
func onlyStricter(was, is *corev1.PodSpec, nodes []corev1.Node) bool {
	before, after := mentioned(was), mentioned(is)
	for _, name := range []string{corev1.LabelHostname, byName} {
		if after[name] != nil && before[name] == nil {
			return false
		}
	}
	possible := false
	for _, node := range nodes {
		if !selectsNode(was, &node) || !offers(&node, is) {
			continue
		}
		if !selectsNode(is, &node) {
			return false
		}
		possible = true
	}
	for key, values := range after {
		before[key] = append(before[key], values...)
	}
	for _, node := range slices.Concat(nodes, []corev1.Node{{}}) {
		for _, other := range variants(node, before) {
			if selectsNode(is, &other) && !selectsNode(was, &other) {
				return false
			}
		}
	}
	return possible
}

// byName is the key that represents a node's name in maps of labels.
const byName = metav1.ObjectNameField

// mentioned returns the labels that the requirements of a pod mention, with their values.
func mentioned(spec *corev1.PodSpec) map[string][]string {
	all := map[string][]string{}
	for key, value := range spec.NodeSelector {
		all[key] = append(all[key], value)
	}
	if affinity := required(spec); affinity != nil {
		for _, term := range affinity.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				all[e.Key] = append(all[e.Key], slices.Concat([]string{""}, e.Values)...)
			}
			for _, e := range term.MatchFields {
				all[e.Key] = append(all[e.Key], e.Values...)
			}
		}
	}
	return all
}

// variants returns the node, and copies of it in which one of the labels has another value or is missing.
func variants(node corev1.Node, labels map[string][]string) []corev1.Node {
	all := []corev1.Node{node}
	for key, values := range labels {
		values = append(slices.Clone(values), "another-value")
		for _, value := range values {
			if number, err := strconv.Atoi(value); err == nil { // for Gt and Lt
				values = append(values, strconv.Itoa(number-1), strconv.Itoa(number+1))
			}
		}
		for _, value := range values {
			other := *node.DeepCopy()
			if key == byName {
				other.Name = value
			} else {
				other.Labels = maps.Clone(other.Labels)
				if other.Labels == nil {
					other.Labels = map[string]string{}
				}
				other.Labels[key] = value
			}
			all = append(all, other)
		}
		without := *node.DeepCopy()
		delete(without.Labels, key)
		all = append(all, without)
	}
	return all
}

// selectsNode reports whether the node selector and the required affinity of a pod admit the node.
func selectsNode(spec *corev1.PodSpec, node *corev1.Node) bool {
	match, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec}).Match(node)
	return err == nil && match
}

// offers reports whether a node has the devices that the pod requests.
func offers(node *corev1.Node, spec *corev1.PodSpec) bool {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for name, wanted := range c.Resources.Limits {
			has, is := node.Status.Allocatable[name]
			if name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage &&
				(!is || has.Cmp(wanted) < 0) {
				return false
			}
		}
	}
	return true
}
