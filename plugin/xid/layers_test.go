package xid

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/daemonpod"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/gpus"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// TestCompleteLayers: kernel comes first, and each layer once.
func TestCompleteLayers(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"":              "kernel kernel,cuda kernel,nvml kernel,device kernel,dcgm",
		"kernel,":       "kernel,cuda kernel,nvml kernel,device kernel,dcgm",
		"device":        "",
		"kernel,nvml,d": "kernel,nvml,device kernel,nvml,dcgm",
	} {
		words, _ := completeLayers(nil, nil, prefix)
		for i, word := range words {
			words[i], _, _ = strings.Cut(word, "\t")
		}
		if got := strings.Join(words, " "); got != want {
			t.Errorf("%q: %s, want %s", prefix, got, want)
		}
	}
}

// TestPlanOfLayers: a dry run of several layers prints each of them for scripts, not only the debug pod.
func TestPlanOfLayers(t *testing.T) {
	t.Parallel()
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	node := ledger.Target{Kind: "Node", Name: "gpu-1"}
	w := &writing{
		inject: newInject(), streams: streams, connection: kube.NewConnection(streams), action: "write 1 record",
		summary: "XID 48",
		layers:  layering{layers: []string{layerKernel, layerNVML}},
		more: prepared{changes: []fault.Change{
			{Target: node, Action: "load the shim", Undo: ledger.Undo{Kind: daemonpod.UndoKind}},
		}},
	}
	w.Format.Output, w.DryRun = "json", "client"
	if err := w.printPlan([]string{"gpu-1"}); err != nil {
		t.Fatal(err)
	}
	var plan struct {
		Kind   string
		Layers []plannedLayer
		Pods   []corev1.Pod
	}
	if err := json.Unmarshal(out.Bytes(), &plan); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	got := fmt.Sprint(plan.Kind, plan.Layers, len(plan.Pods))
	if got != "Plan[{nvml node/gpu-1 load the shim} {kernel node/gpu-1 write 1 record}] 1" {
		t.Error(got)
	}
}

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
		"unknown":         {layers("", "kernel", "dmesg"), []string{"79", "n"}, `value "dmesg" for --layers`},
		"nothing in NVML": {layers("", "kernel", "nvml"), []string{"154", "n"}, "no known reaction to XID 154"},
		"a reader without nvml": {
			func(f *flags) { layers("", "kernel", "device")(f); f.layers.daemonSet = "a/b" }, []string{"79", "n"},
			"--daemonset requires --layers kernel,nvml",
		},
		"a reader without a namespace": {
			func(f *flags) { layers("", "kernel", "nvml")(f); f.layers.daemonSet = "plugin" }, []string{"79", "n"},
			"specify NAMESPACE/NAME",
		},
		"empty":           {layers("", "kernel", ""), []string{"79", "n"}, `invalid value "" for --layers`},
		"without kernel":  {layers("", "device"), []string{"79", "n"}, "device unhealthy"},
		"workload alone":  {layers("deployment/a", "kernel"), []string{"79", "n"}, "--workload requires --layers"},
		"no workload":     {layers("", "kernel", "cuda"), []string{"79", "n"}, "requires --workload TYPE/NAME"},
		"two codes":       {layers("", "kernel", "device"), []string{"79,48", "n"}, "requires exactly one XID"},
		"missing GPU":     {layers("", "kernel", "device"), []string{"fallen-off-bus", "n"}, "requires exactly one XID"},
		"not a workload":  {layers("vllm", "kernel", "cuda"), []string{"79", "n"}, "deployment/vllm"},
		"nothing to see":  {layers("deployment/a", "kernel", "cuda"), []string{"45", "n"}, "do not see XID 45"},
		"unknown to CUDA": {layers("deployment/a", "kernel", "cuda"), []string{"8", "n"}, "cuda profiles"},
		"empty node":      {layers("deployment/a", "kernel", "cuda"), []string{"79", ""}, "a node name is empty"},
		"two nodes":       {layers("deployment/a", "kernel", "cuda"), []string{"79", "n", "m"}, "supports only one node"},
		"GPU by its UUID": {
			func(f *flags) {
				layers("deployment/a", "kernel", "cuda")(f)
				f.gpu = "GPU-11111111-1111-1111-1111-111111111111"
			}, []string{"79", "n"}, "specify indexes among the GPUs of the workload's pod",
		},
		"MIG": {
			func(f *flags) { layers("", "kernel", "device")(f); f.mig = "5" }, []string{"79", "n"}, "--mig cannot",
		},
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

// With the cuda layer, the other layers are those of the GPU that the workload's new pod holds, on the node that was
// named; without such a pod, nothing is changed on the node.
func TestLayersAreOfOneGPU(t *testing.T) {
	t.Parallel()
	pod := func(name, node string, phase corev1.PodPhase) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: "uid-of-" + "x"},
			Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	change := fault.Change{Target: ledger.Target{Kind: "Node", Name: "gpu-1"}}
	running, failed := corev1.PodRunning, corev1.PodFailed
	for name, test := range map[string]struct {
		pods []corev1.Pod
		err  error
		want string // the pod, or a part of the error
	}{
		"it runs there":     {pods: []corev1.Pod{pod("a", "gpu-2", running), pod("b", "gpu-1", running)}, want: "pod ml/b"},
		"it runs elsewhere": {pods: []corev1.Pod{pod("a", "gpu-2", running)}, want: "no pod of the workload"},
		"it has ended":      {pods: []corev1.Pod{pod("a", "gpu-1", failed)}, want: "pod a on node gpu-1 has terminated"},
		"two of them":       {pods: []corev1.Pod{pod("a", "gpu-1", running), pod("b", "gpu-1", running)}, want: "2 pods"},
		"unknown":           {err: errors.New("the API server is away"), want: "the API server is away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pods := test.pods
			p := prepared{pod: &gpus.Pod{}, pods: func(context.Context, ledger.Run) ([]corev1.Pod, error) {
				return pods, test.err
			}}
			for range 2 { // the second layer, when the pod has been replaced
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
				if err == nil {
					pods = []corev1.Pod{pod("c", "gpu-1", running)}
				}
			}
		})
	}
}

// The programs of the workload lose the same GPUs as the node, and a process that has others can still begin.
func TestGPUsOfTheLayerCUDA(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gpu  string
		each int
		code int
		want string // the devices, and what new processes get; or a part of the error
	}{
		"the only one":       {"0", 1, 79, "[] <nil>"},
		"one of several":     {"1", 8, 79, "[1] 0"},
		"two of several":     {"1,3", 8, 48, "[1 3] <nil>"},
		"all":                {"all", 8, 79, "[] <nil>"},
		"all, unknown":       {"all", 0, 79, "[] <nil>"},
		"not there":          {"1", 1, 79, "has 1 GPU, with indexes from 0 to 0"},
		"no GPUs":            {"all", -1, 79, "deployment/a does not request a GPU"},
		"several containers": {"0", 0, 79, "specify --gpu all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chosen, err := gpus.Parse(test.gpu)
			if err != nil {
				t.Fatal(err)
			}
			f, err := ofGPUs(test.code, chosen, "deployment/a", test.each)
			got := fmt.Sprint(f.Devices, " ", "<nil>")
			if f.PhaseNew != nil {
				got = fmt.Sprint(f.Devices, " ", *f.PhaseNew)
			}
			if err != nil {
				got = err.Error()
			} else if err := f.Validate(); err != nil {
				t.Error(err)
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
