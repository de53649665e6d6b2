package xid

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/realxid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// parseReal returns what a command line with --real is checked to be.
func parseReal(t *testing.T, args ...string) (*realXID, error) {
	t.Helper()
	f := newFlags()
	cmd := &cobra.Command{}
	f.add(cmd, &kube.Connection{})
	if err := cmd.ParseFlags(append(args, "--real")); err != nil {
		t.Fatal(err)
	}
	if err := f.checkReal(cmd); err != nil {
		return nil, err
	}
	return f.toReal(cmd.Flags().Args())
}

func TestRealRefusesFlags(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"79 gpu-1":                         "only XIDs 13, 31 and 43",
		"13,31 gpu-1":                      "does not support 13,31",
		"sxid:20034 gpu-1":                 "--real does not support",
		"fallen-off-bus gpu-1":             "--real does not support",
		"bus gpu-1":                        "bus",
		"gpu-1 31":                         "the code comes before the node",
		"31":                               "no target",
		"31 gpu-1 --via kmod":              "--via cannot be used with --real: the driver writes the line",
		"31 gpu-1 --message x":             "--message cannot be used with --real",
		"31 gpu-1 --form plain":            "--form cannot be used with --real",
		"31 gpu-1 --driver 580":            "--driver cannot be used with --real",
		"31 gpu-1 --count 2":               "--count cannot be used with --real",
		"31 gpu-1 --interval 1s":           "--interval cannot be used with --real",
		"31 gpu-1 --cascade":               "--cascade cannot be used with --real",
		"31 gpu-1 --process none":          "--process cannot be used with --real",
		"31 gpu-1 --mig 1":                 "--mig cannot be used with --real",
		"31 gpu-1 --switch 1":              "--switch cannot be used with --real",
		"31 gpu-1 --link 1":                "--link cannot be used with --real",
		"31 gpu-1 --seed 1":                "--seed cannot be used with --real",
		"31 gpu-1 --layers kernel,cuda":    "--layers cannot be used with --real",
		"31 gpu-1 --workload deployment/a": "--workload cannot be used with --real",
		"31 gpu-1 --ko a.ko":               "--ko cannot be used with --real",
		"31 gpu-1 --kmod-headers /usr":     "--kmod-headers cannot be used with --real",
		"31 gpu-1 --gpu 0":                 "--gpu cannot be used with --real: the device plugin allocates a free GPU",
		"31 --pod trainer":                 "--pod cannot be used with --real: the device plugin allocates a free GPU",
		"31 gpu-1 --in-cluster":            "--in-cluster cannot be used with --real",
		"31 gpu-1 --real-image=":           "--real-image must not be empty",
		"31 gpu-1 --ttl 1s":                "--ttl",
	} {
		if _, err := parseReal(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", line, err, want)
		}
	}
	for _, code := range []string{"13", "31", "43"} {
		x, err := parseReal(t, code, "gpu-1", "gpu-2", "--yes", "--timeout", "1m", "-o", "json")
		if err != nil || x.event.Code != x.code || len(x.Nodes.Names) != 2 {
			t.Errorf("%s: %+v, %v", code, x, err)
		}
	}
}

func gpuNode(labels map[string]string, resources map[string]string) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: labels},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{}},
	}
	for name, quantity := range resources {
		node.Status.Allocatable[corev1.ResourceName(name)] = resource.MustParse(quantity)
	}
	return node
}

func holder(name, node string, phase corev1.PodPhase, gpus string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "research", Name: name},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)},
		}}}},
		Status: corev1.PodStatus{Phase: phase},
	}
}

func TestRealRefusesNodes(t *testing.T) {
	t.Parallel()
	two := map[string]string{"nvidia.com/gpu": "2"}
	label := func(name, value string) map[string]string { return map[string]string{"nvidia.com/" + name: value} }
	for name, test := range map[string]struct {
		node *corev1.Node
		want string
	}{
		"time-slicing": {gpuNode(label("gpu.sharing-strategy", "time-slicing"), two), "shared by pods"},
		"MPS":          {gpuNode(label("gpu.sharing-strategy", "mps"), two), "shared by pods"},
		"replicas":     {gpuNode(label("gpu.replicas", "4"), two), "gpu.replicas=4"},
		"renamed":      {gpuNode(nil, label("gpu.shared", "8")), "resource nvidia.com/gpu.shared"},
		"MIG mixed":    {gpuNode(nil, label("mig-1g.10gb", "7")), "resource nvidia.com/mig-1g.10gb"},
		"MIG single":   {gpuNode(label("gpu.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"), two), "MIG instances"},
		"MIG slices":   {gpuNode(label("gpu.slices.gi", "1"), two), "MIG instances"},
		"no GPU":       {gpuNode(nil, nil), "no allocatable nvidia.com/gpu"},
		"one left": {gpuNode(map[string]string{
			"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1",
			"nvidia.com/mig.strategy": "single",
		}, map[string]string{"nvidia.com/gpu": "3", "nvidia.com/mig-1g.10gb": "0"}), ""},
		"all held": {gpuNode(nil, two), "none of the node's 2 GPUs is free (held by research/train (2)"},
	} {
		client := fake.NewClientset(test.node, holder("train", "gpu-1", corev1.PodRunning, "2"),
			holder("done", "gpu-1", corev1.PodSucceeded, "2"), holder("elsewhere", "gpu-2", corev1.PodRunning, "2"))
		_, err := checkGPUs(t.Context(), client, "gpu-1")
		if test.want == "" && err != nil ||
			test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
	}
	if _, err := checkGPUs(t.Context(), fake.NewClientset(), "gpu-1"); err == nil ||
		!strings.Contains(err.Error(), "not found") {
		t.Errorf("a node that does not exist: %v", err)
	}
}

// After the run, its step is one of a kernel log, so that revert describes what detectors need to forget the line.
func TestRemains(t *testing.T) {
	t.Parallel()
	step := ledger.Step{Undo: ledger.Undo{Kind: "objects", Data: json.RawMessage(`{}`)}}
	remains(&step, realxid.Result{Outcome: realxid.Outcome{XID: 31}, Line: &api.KernelRecord{Text: "line"}})
	var detail kernellog.Detail
	if err := json.Unmarshal(step.Detail, &detail); err != nil || len(detail.XIDs) != 1 || detail.XIDs[0] != "31" ||
		detail.Records[0] != "line" {
		t.Errorf("%s, %v", step.Detail, err)
	}
	if step.Undo.Kind != kernellog.UndoKind || !step.Undo.IsPermanent() || step.Undo.Data != nil {
		t.Errorf("%+v", step.Undo)
	}
}
