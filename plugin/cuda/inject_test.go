package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/ttl"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

func asked(change func(*injecting)) *injecting {
	in := &injecting{
		name: "deployment/web", fault: lostGPU, pin: "hard", dryRun: "none", timeout: time.Minute, ttl: ttl.New(),
	}
	if change != nil {
		change(in)
	}
	return in
}

// Bad input is refused before a cluster is asked, with a way out.
func TestValidate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*injecting)
		want   string // in the error; empty: fine
	}{
		"fine":             {nil, ""},
		"no type":          {func(in *injecting) { in.name = "web" }, "such as deployment/web"},
		"no name":          {func(in *injecting) { in.name = "deployment/" }, "TYPE/NAME"},
		"empty":            {func(in *injecting) { in.name = "" }, "is a variable unset?"},
		"with a namespace": {func(in *injecting) { in.name = "deployment/prod/web" }, "the namespace with -n"},
		"no fault":         {func(in *injecting) { in.fault = cudafault.Fault{} }, "--xid"},
		"unknown XID":      {func(in *injecting) { in.fault.XID = 4711 }, "4711"},
		"contradiction":    {func(in *injecting) { in.fault.Error = 719 }, "--xid and --error"},
		"unknown error":    {func(in *injecting) { in.fault = cudafault.Fault{Error: 12345} }, "12345"},
		"empty container": {
			func(in *injecting) { in.selection.Containers = []string{""} }, "--container contains an empty name",
		},
		"empty node": {
			func(in *injecting) { in.onlyOn = []string{"gpu-1", " "} }, "--only-on-node contains an empty name",
		},
		"pin": {func(in *injecting) { in.pin = "firmly" }, "hard, soft"},
		"pinned away": {
			func(in *injecting) {
				in.pinTo, in.onlyOn = []string{"a"}, []string{"b"}
			}, "no process would see the fault",
		},
		"pinned there": {
			func(in *injecting) { in.pinTo, in.onlyOn = []string{"node/a"}, []string{"nodes/a", "b"} }, "",
		},
		"disarmed and at start": {
			func(in *injecting) { in.disarmed, in.atStart = true, true }, "cannot be used together",
		},
		"no time": {func(in *injecting) { in.timeout = 0 }, "--timeout"},
		"too many nodes": {func(in *injecting) {
			for i := range 65 {
				in.onlyOn = append(in.onlyOn, fmt.Sprint("gpu-", i))
			}
		}, "64"},
		"for ever":       {func(in *injecting) { in.ttl.TTL = 0 }, "--reason"},
		"dry run":        {func(in *injecting) { in.dryRun = "maybe" }, "client, server"},
		"output":         {func(in *injecting) { in.format.Output = "xml" }, "xml"},
		"a long process": {func(in *injecting) { in.fault.Process = strings.Repeat("x", 64) }, "63"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := asked(test.change).validate()
			if test.want == "" && err != nil ||
				test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// A fault that only processes see which start with it must be there when they start.
func TestFaultsOfNewProcessesBeginAtTheStart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault cudafault.Fault
		want  bool
	}{
		"XID 79":          {lostGPU, false},
		"driver mismatch": {cudafault.Fault{DriverMismatch: true}, true},
		"fabric":          {cudafault.Fault{FabricNotReady: true}, true},
		"hidden devices":  {cudafault.Fault{HideDevices: []int{0}}, true},
		"hidden and slow": {cudafault.Fault{HideDevices: []int{0}, Latency: time.Millisecond}, false},
		"memory limit":    {cudafault.Fault{MemLimit: 1 << 30}, false},
		"hang":            {cudafault.Fault{Hang: true}, false},
	} {
		in := asked(func(in *injecting) { in.fault = test.fault })
		if err := in.validate(); err != nil || in.atStart != test.want {
			t.Errorf("%s: %v, at start %v", name, err, in.atStart)
		}
		in = asked(func(in *injecting) { in.fault, in.disarmed = test.fault, true })
		if err := in.validate(); err != nil || in.atStart {
			t.Errorf("%s, disarmed: %v, at start %v", name, err, in.atStart)
		}
	}
}

const webYAML = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: prod, uid: uid-web}
spec:
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: "registry.local/vllm:1", resources: {limits: {nvidia.com/gpu: 1}}}
      - {name: istio-proxy, image: "registry.local/istio:1"}
`

// deployment returns a workload, with what was asked for it.
func deployment(asked string) *cudashim.Workload {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(webYAML), &object.Object); err != nil {
		return nil
	}
	return &cudashim.Workload{
		Object: object, Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		Templates: cudashim.Templates(object), Asked: asked,
	}
}

// Before the question stands what will happen, who will not see it, and how it ends.
func TestBefore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ask  func(*injecting)
		know func(*decided)
	}{
		"xid": {nil, nil},
		"everything": {func(in *injecting) {
			in.onlyOn, in.pinTo, in.pin = []string{"gpu-1"}, []string{"gpu-1", "gpu-2"}, "soft"
		}, func(d *decided) {
			d.notes = []string{"Argo CD manages it"}
			d.budgets = []string{"web (2 of 3 pods must be healthy)"}
			d.unread = []string{"registry.local/vllm:1 (its registry does not answer)"}
			d.without = []string{"riscv64"}
		}},
		"disarmed": {func(in *injecting) {
			in.fault, in.disarmed, in.ttl = cudafault.Fault{Error: 719}, true, ttl.Flags{Reason: "drill"}
		}, nil},
		"later": {nil, func(d *decided) {
			d.replaced, d.notes = cudashim.OnDelete, []string{"pods get it when you delete them"}
		}},
		"at-start":  {func(in *injecting) { in.atStart = true }, nil},
		"new-alone": {func(in *injecting) { in.fault = cudafault.Fault{DriverMismatch: true} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, w := asked(test.ask), deployment("")
			if err := in.validate(); err != nil {
				t.Fatal(err)
			}
			chosen, err := w.Select(in.selection)
			if err != nil {
				t.Fatal(err)
			}
			d := &decided{workload: w, chosen: chosen, replaced: cudashim.Rolling}
			if test.know != nil {
				test.know(d)
			}
			var out bytes.Buffer
			in.before(func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }, d, "staging")
			golden.Compare(t, "before-"+name+".golden", out.String())
		})
	}
}

func TestMemoryLimitAboveTheDevice(t *testing.T) {
	t.Parallel()
	node := func(mib string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{memoryLabel: mib}}}
	}
	for name, test := range map[string]struct {
		limit uint64
		nodes []corev1.Node
		fails bool
	}{
		"below":       {20 << 30, []corev1.Node{node("24576"), node("81920")}, false},
		"above one":   {40 << 30, []corev1.Node{node("24576"), node("81920")}, false},
		"above all":   {90 << 30, []corev1.Node{node("24576"), node("81920")}, true},
		"none tells":  {90 << 30, []corev1.Node{{}, node("lots")}, false},
		"not limited": {0, []corev1.Node{node("1")}, false},
	} {
		if err := checkMemory(test.limit, test.nodes); (err != nil) != test.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// That another run is in the workload is said once: by its lock, or where there is none by its shim.
func TestASecondInjectionIsToldOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := &fault.Session{Client: w.client, Ledger: w.store()}
	holder, err := w.store().Get(t.Context(), runID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store().Lock(t.Context(), holder, holder.Targets()); err != nil {
		t.Fatal(err)
	}
	in := asked(nil)
	if err := in.unlessLocked(
		t.Context(), s, &cudashim.InjectedError{Ref: "deployment.apps/web", Run: runID},
	); err != nil {
		t.Errorf("its lock says it already: %v", err)
	}
	if err := in.unlessLocked(
		t.Context(), s, &cudashim.InjectedError{Ref: "deployment.apps/web", Run: "cuda-222222"},
	); err == nil || !strings.Contains(err.Error(), "cuda-222222") {
		t.Errorf("nobody else says it: %v", err)
	}
	if err := in.unlessLocked(t.Context(), s, errMissing); !errors.Is(err, errMissing) {
		t.Errorf("%v", err)
	}
}

// The usual trap of GPU clusters: no room for the surge pod of a rolling update.
func TestRollingUpdatesThatNeedAFreeGPU(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"spec: {}":            true, // one replica, 25%
		"spec: {replicas: 3}": true,
		"spec: {replicas: 4}": false,
		"spec: {replicas: 0}": false,
		"spec: {replicas: 1, strategy: {type: Recreate}}":                           false,
		"spec: {replicas: 1, strategy: {rollingUpdate: {maxUnavailable: 1}}}":       false,
		"spec: {replicas: 8, strategy: {rollingUpdate: {maxUnavailable: 0}}}":       true,
		"spec: {replicas: 8, strategy: {rollingUpdate: {maxUnavailable: \"10%\"}}}": true,
	} {
		w := deployment("")
		if err := yaml.Unmarshal([]byte("apiVersion: apps/v1\nkind: Deployment\n"+text), &w.Object.Object); err != nil {
			t.Fatal(err)
		}
		if got := needsRoom(w); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// One node of an architecture without a shim must not keep a fault from the others.
func TestArchitecturesWithoutAShim(t *testing.T) {
	t.Parallel()
	found, without, err := libraries([]string{"amd64", "riscv64"}, "")
	if err != nil || len(found) != 1 || len(found["amd64"]) == 0 {
		t.Errorf("%v, %d libraries", err, len(found))
	}
	if diff := cmp.Diff([]string{"riscv64"}, without); diff != "" {
		t.Error(diff)
	}
	if _, _, err := libraries([]string{"riscv64"}, ""); err == nil || !strings.Contains(err.Error(), "riscv64") {
		t.Errorf("only riscv64: %v", err)
	}
}

// An LD_PRELOAD of the image's own is found, and an unreachable registry only noted.
func TestPreloadsOfImages(t *testing.T) {
	t.Parallel()
	read := func(_ context.Context, image string) ([]string, error) {
		switch image {
		case "registry.local/vllm:1":
			return []string{"PATH=/bin", "LD_PRELOAD=/usr/lib/libjemalloc.so"}, nil
		case "registry.local/istio:1":
			return nil, errors.New("dial tcp: lookup registry.local: no such host")
		}
		return nil, nil
	}
	chosen, err := deployment("").Select(cudashim.Selection{Containers: []string{"main", "istio-proxy"}})
	if err != nil {
		t.Fatal(err)
	}
	found, unread := preloads(t.Context(), chosen, read)
	if diff := cmp.Diff(map[string]string{"registry.local/vllm:1": "/usr/lib/libjemalloc.so"}, found); diff != "" {
		t.Error(diff)
	}
	if len(unread) != 1 || !strings.HasPrefix(unread[0], "registry.local/istio:1 (") {
		t.Errorf("%q", unread)
	}
}
