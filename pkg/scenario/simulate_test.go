package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

func bare(name string, change func(*corev1.Node)) *corev1.Node {
	return aNode(name, "amd64", "", func(n *corev1.Node) {
		n.Labels = map[string]string{}
		if change != nil {
			change(n)
		}
	})
}

// The cluster is seen as it will be: GPUs on as many nodes as are asked for, those of the control plane last, and what
// pods wait for is known.
func TestSimulateGPUs(t *testing.T) {
	t.Parallel()
	control := func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }
	client := fake.NewClientset(bare("a", control), bare("b", nil), bare("c", nil),
		bare("cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		aPod("waits", "", "3", corev1.PodPending))
	f, err := SimulateGPUs(t.Context(), client, 4, 2)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Simulation{GPUs: 4, Nodes: []string{"b", "c"}}, f.Simulation); diff != "" {
		t.Error(diff)
	}
	want := NodeFacts{
		Name: "b", Architecture: "amd64", Hostname: "b", GPUs: 4, FreeGPUs: 4, Product: "Simulated-GPU",
		MemoryMiB: 16384, Runtime: "containerd://2.3.7",
	}
	if diff := cmp.Diff(want, f.Nodes[0]); diff != "" {
		t.Error(diff)
	}
	if !f.Simulated || f.Lab || f.GPUNodes != 2 || f.GPUsPerNode != 4 || f.MostGPUs != 4 || f.Architecture != "amd64" ||
		f.WaitingGPUs != 3 || f.Nodes[2].GPUs != 0 {
		t.Errorf("%+v", f)
	}
	if f, err := SimulateGPUs(t.Context(), client, 1, 9); err != nil || len(f.Simulation.Nodes) != 3 ||
		f.Simulation.Nodes[2] != "a" {
		t.Errorf("%+v, %v", f.Simulation, err)
	}
}

// GPUs are simulated nowhere in a cluster that has some, by whatever it shows: others' pods would get those that are
// none.
func TestSimulateGPUsIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gpus int
		node *corev1.Node
		want string
	}{
		"none":     {0, bare("a", nil), "must be 1 to 16"},
		"too many": {17, bare("a", nil), "must be 1 to 16"},
		"no node":  {1, bare("a", func(n *corev1.Node) { n.Spec.Unschedulable = true }), "uncordon or untaint"},
		"capacity": {
			1,
			bare("a",
				func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{GPUResource: resource.MustParse("8")} }),
			"resource nvidia.com/gpu",
		},
		"MIG": {1, bare("a", func(n *corev1.Node) {
			n.Status.Capacity = corev1.ResourceList{"nvidia.com/mig-1g.10gb": resource.MustParse("7")}
		}), "mig-1g.10gb"},
		"discovered": {
			1, bare("a", func(n *corev1.Node) { n.Labels["nvidia.com/gpu.present"] = "true" }),
			"label nvidia.com/gpu.present",
		},
		"by PCI": {
			1,
			bare("a", func(n *corev1.Node) { n.Labels["feature.node.kubernetes.io/pci-0302_10de.present"] = "true" }),
			"pci-0302_10de",
		},
		"simulated": {1, bare("a", func(n *corev1.Node) {
			for name, value := range (Simulation{GPUs: 1}).Labels() {
				n.Labels[name] = value
			}
		}), "end the exercise that created them"},
		"not usable": {1, bare("a", func(n *corev1.Node) {
			n.Spec.Unschedulable, n.Status.Capacity = true, corev1.ResourceList{GPUResource: resource.MustParse("8")}
		}), "resource nvidia.com/gpu"},
	} {
		if _, err := SimulateGPUs(t.Context(), fake.NewClientset(test.node), test.gpus, 2); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	zeroed := bare("a",
		func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{GPUResource: resource.MustParse("0")} })
	if _, err := SimulateGPUs(t.Context(), fake.NewClientset(zeroed), 1, 2); err != nil {
		t.Errorf("what a restarted kubelet has left: %v", err)
	}
}

// Every scenario that needs no container toolkit can be played with simulated GPUs, and its card says that they are.
func TestScenariosWithSimulatedGPUs(t *testing.T) {
	t.Parallel()
	all, err := Builtin()
	if err != nil {
		t.Fatal(err)
	}
	nodes := []runtime.Object{bare("a", nil), bare("b", nil)}
	f, err := SimulateGPUs(t.Context(), fake.NewClientset(nodes...), 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if !s.Requires.Simulatable() {
			continue
		}
		for seed := range int64(20) {
			r, err := s.Resolve(seed, nil, f)
			if err != nil {
				t.Fatalf("%s: %v", s.Metadata.Name, err)
			}
			if !strings.HasSuffix(r.Public.Simulated, SimulatedNote) {
				t.Errorf("%s: %q", s.Metadata.Name, r.Public.Simulated)
			}
			for _, step := range r.Inject {
				if step.XID != nil && !strings.Contains(step.XID.GPU, ":") {
					t.Errorf("%s writes XIDs of GPU %q, which no driver knows", s.Metadata.Name, step.XID.GPU)
				}
			}
			for _, image := range r.Requires.Images {
				if strings.HasPrefix(image, "registry.lab.internal/") {
					t.Errorf("%s needs %s, which only prepared nodes have", s.Metadata.Name, image)
				}
			}
		}
	}
}
