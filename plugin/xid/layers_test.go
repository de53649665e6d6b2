package xid

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
)

// Layers that cannot be injected are refused before anything is touched, with what to do instead.
func TestLayersRefused(t *testing.T) {
	t.Parallel()
	layers := func(workload string, all ...string) func(*flags) {
		return func(f *flags) { f.layers = layering{layers: all, workload: workload} }
	}
	for name, test := range map[string]struct {
		change func(*flags)
		args   []string
		want   string
	}{
		"unknown":          {layers("", "kernel", "nvml"), []string{"79", "n"}, `invalid value "nvml" for --layers`},
		"empty":            {layers("", "kernel", ""), []string{"79", "n"}, `invalid value "" for --layers`},
		"without kernel":   {layers("", "device"), []string{"79", "n"}, "device unhealthy"},
		"workload alone":   {layers("deployment/a", "kernel"), []string{"79", "n"}, "--workload requires --layers"},
		"no workload":      {layers("", "kernel", "cuda"), []string{"79", "n"}, "requires --workload TYPE/NAME"},
		"two codes":        {layers("", "kernel", "device"), []string{"79,48", "n"}, "requires one XID"},
		"missing GPU":      {layers("", "kernel", "device"), []string{"fallen-off-bus", "n"}, "requires one XID"},
		"not a workload":   {layers("vllm", "kernel", "cuda"), []string{"79", "n"}, "deployment/vllm"},
		"nothing to see":   {layers("deployment/a", "kernel", "cuda"), []string{"45", "n"}, "see nothing of XID 45"},
		"unknown to CUDA":  {layers("deployment/a", "kernel", "cuda"), []string{"8", "n"}, "cuda profiles"},
		"empty node":       {layers("deployment/a", "kernel", "cuda"), []string{"79", ""}, "a node name is empty"},
		"with a pod":       {withPod(layers("deployment/a", "kernel", "cuda")), []string{"79"}, "--pod cannot be used"},
		"device for good":  {endless(layers("", "kernel", "device")), []string{"79", "n"}, "--ttl 0 cannot be used"},
		"unknown workload": {layers("deployment/", "kernel", "cuda"), []string{"79", "n"}, "deployment/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(t, test.change, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	o, err := parse(t, layers("deployment/a", "kernel", "cuda", "kernel", "device"), "79", "n")
	if err != nil || strings.Join(o.layers.layers, " ") != "kernel cuda device" {
		t.Errorf("%v, %v", o, err)
	}
}

func withPod(change func(*flags)) func(*flags) {
	return func(f *flags) { change(f); f.Nodes.Pod = "p" }
}

func endless(change func(*flags)) func(*flags) {
	return func(f *flags) { change(f); f.TTL.TTL, f.TTL.Reason = 0, "a test" }
}

// With the layer cuda, the other layers are those of the GPU that the workload's new pod holds, on the node that was
// named; without such a pod, nothing is changed on the node.
func TestLayersAreOfOneGPU(t *testing.T) {
	t.Parallel()
	pod := func(name, node string, phase corev1.PodPhase) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: "uid-of-" + "x"},
			Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	const elsewhere = "no pod of the workload runs on node gpu-1: specify"
	change := fault.Change{Target: ledger.Target{Kind: "Node", Name: "gpu-1"}}
	for name, test := range map[string]struct {
		pods []corev1.Pod
		err  error
		want string // the pod, or a part of the error
	}{
		"it runs there": {
			pods: []corev1.Pod{pod("a", "gpu-2", "Running"), pod("b", "gpu-1", "Running")}, want: "pod ml/b",
		},
		"it runs elsewhere": {pods: []corev1.Pod{pod("a", "gpu-2", "Running")}, want: elsewhere},
		"it has ended":      {pods: []corev1.Pod{pod("a", "gpu-1", "Failed")}, want: elsewhere},
		"unknown":           {err: errors.New("the API server is away"), want: "the API server is away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := prepared{pods: func(context.Context, ledger.Run) ([]corev1.Pod, error) { return test.pods, test.err }}
			var of gpus.Pod
			_, err := p.onItsGPU(change, func(pod gpus.Pod) (fault.Change, error) {
				of = pod
				apply := func(context.Context, fault.Recorder) ([]ledger.Evidence, error) { return nil, nil }
				return fault.Change{Apply: apply}, nil
			}).Apply(t.Context(), recorder{})
			got := of.String()
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, test.want) {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// recorder is a fault.Recorder that records nothing.
type recorder struct{}

func (recorder) Run() ledger.Run                                { return ledger.Run{ID: "xid-aaaaaa"} }
func (recorder) Save(context.Context, func(*ledger.Step)) error { return nil }
func (recorder) Progress(string)                                {}
