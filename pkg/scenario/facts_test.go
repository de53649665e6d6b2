package scenario

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

func aNode(name, arch, gpus string, change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "143771",
			corev1.LabelHostname: "host-" + name,
		}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{},
			NodeInfo:    corev1.NodeSystemInfo{Architecture: arch, ContainerRuntimeVersion: "containerd://2.3.7"},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if gpus != "" {
		n.Status.Allocatable[GPUResource] = resource.MustParse(gpus)
	}
	if change != nil {
		change(n)
	}
	return n
}

func aPod(name, node, gpus string, phase corev1.PodPhase) *corev1.Pod {
	limits := corev1.ResourceRequirements{Limits: corev1.ResourceList{GPUResource: resource.MustParse(gpus)}}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"},
		Status: corev1.PodStatus{Phase: phase}, Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Resources: limits}},
			InitContainers: []corev1.Container{{Resources: limits}},
		}}
}

// TestGatherFacts holds which nodes a scenario can build on, and in which order: those with GPUs first, and none that
// pods do not get to.
func TestGatherFacts(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(
		aNode("d", "amd64", "", nil), aNode("c", "amd64", "4", nil),
		aNode("b", "amd64", "2", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{
				{Key: GPUResource, Effect: corev1.TaintEffectNoSchedule},
				{Key: "x", Effect: corev1.TaintEffectPreferNoSchedule},
			}
			n.Labels["node-role.kubernetes.io/control-plane"] = ""
			n.Labels["nvidia.com/gpu.machine"] = "Simulated-GPU-Server"
		}),
		aNode("cordoned", "amd64", "8", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		aNode("tainted", "amd64", "8", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoExecute}}
		}),
		aNode("down", "amd64", "8", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
		aNode("new", "amd64", "8", func(n *corev1.Node) { n.Status.Conditions = nil }),
		aPod("one", "b", "1", corev1.PodRunning), aPod("done", "b", "1", corev1.PodSucceeded),
		aPod("two", "c", "3", corev1.PodPending),
	)
	got, err := GatherFacts(context.Background(), client)
	if err != nil {
		t.Fatal(err)
	}
	node := func(name string, gpus, free int, control bool) NodeFacts {
		return NodeFacts{
			Name: name, Architecture: "amd64", Hostname: "host-" + name, GPUs: gpus, FreeGPUs: free,
			Product: "NVIDIA-H200", MemoryMiB: 143771, ControlPlane: control, Runtime: "containerd://2.3.7",
		}
	}
	got.Kubernetes = "" // the fake's own
	want := Facts{
		Nodes: []NodeFacts{node("b", 2, 1, true), node("c", 4, 1, false), node("d", 0, 0, false)}, GPUNodes: 2,
		GPUsPerNode: 2, MostGPUs: 4, Architecture: "amd64", Simulated: true, Lab: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestFactsOfMixedNodes holds that the architecture is that of the nodes with GPUs, and none where they differ.
func TestFactsOfMixedNodes(t *testing.T) {
	t.Parallel()
	for want, nodes := range map[string][]runtime.Object{
		"arm64": {aNode("a", "arm64", "1", nil), aNode("b", "amd64", "", nil)},
		"":      {aNode("a", "arm64", "1", nil), aNode("b", "amd64", "1", nil)},
		"amd64": {aNode("a", "amd64", "", nil)},
	} {
		got, err := GatherFacts(context.Background(), fake.NewClientset(nodes...))
		if err != nil || got.Architecture != want {
			t.Errorf("%q, and not %q: %v", got.Architecture, want, err)
		}
	}
}

// TestFactsForbidden holds that the error says what could not be seen.
func TestFactsForbidden(t *testing.T) {
	t.Parallel()
	for resource, want := range map[string]string{"nodes": "list nodes", "pods": "list pods"} {
		client := fake.NewClientset()
		client.PrependReactor("list", resource,
			func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
		if _, err := GatherFacts(context.Background(), client); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", resource, err)
		}
	}
}
