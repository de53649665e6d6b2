package faults

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// shimmed returns a run with the CUDA shim in a workload whose pods are replaced in that way.
func shimmed(t *testing.T, how cudashim.Replacement, recreated *cudashim.Recreated) ledger.Run {
	t.Helper()
	data, err := json.Marshal(cudashim.Data{
		Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment", Namespace: "prod", Name: "web",
		UID: "u", ConfigMap: "gpu-fault-cuda-222222",
		Variable: cudashim.PreloadVar, Preload: cudashim.Executable, Replaced: how, Recreated: recreated,
	})
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Run{ID: "cuda-222222", Phase: ledger.Proven, Fault: "cuda", Steps: []ledger.Step{{
		ID: "1", Target: ledger.Target{Kind: "Deployment", Namespace: "prod", Name: "web", UID: "u"},
		State: ledger.StateProven, Undo: ledger.Undo{Kind: cudashim.UndoKind, Data: data},
	}}}
}

// live returns the workload of that run as it is now in the cluster.
func live(change func(spec map[string]any)) *unstructured.Unstructured {
	spec := map[string]any{
		"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "main"}}}},
	}
	change(spec)
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"namespace": "prod", "name": "web", "uid": "u"}, "spec": spec,
	}}
}

// Where a controller replaces pods by itself, --without-restart cannot be had; who asks for it hears of what can. The
// workload as it is now says so, not as it was when the run was made.
func TestRevertWithoutRestart(t *testing.T) {
	t.Parallel()
	node := ledger.Run{ID: "runtime-222222", Phase: ledger.Proven, Steps: []ledger.Step{{
		Target: ledger.Target{Kind: "Node", Name: "a"}, State: ledger.StateProven,
		Undo: ledger.Undo{Kind: "node-files"},
	}}}
	rolls := live(func(map[string]any) {})
	paused := live(func(spec map[string]any) { spec["paused"] = true })
	another := rolls.DeepCopy()
	another.SetUID("v")
	unknown := rolls.DeepCopy()
	unknown.SetKind("Custom")
	for name, test := range map[string]struct {
		run  ledger.Run
		now  *unstructured.Unstructured
		want string
	}{
		"rolling": {
			shimmed(t, cudashim.Rolling, nil), rolls,
			"replaces its pods as soon as their template changes; to stop the fault of run cuda-222222 without a restart: kubectl gpu-fault cuda disarm cuda-222222",
		},
		"resumed since":        {shimmed(t, cudashim.Paused, nil), rolls, "replaces its pods as soon as"},
		"paused since":         {shimmed(t, cudashim.Rolling, nil), paused, ""},
		"nobody knows":         {shimmed(t, cudashim.OnDelete, nil), unknown, "it is unknown whether"},
		"gone":                 {shimmed(t, cudashim.Rolling, nil), nil, ""},
		"another of that name": {shimmed(t, cudashim.Rolling, nil), another, ""},
		"recreated": {
			shimmed(t, cudashim.Recreate, &cudashim.Recreated{Original: json.RawMessage(`{}`)}), rolls,
			"must be recreated",
		},
		"a fault that is in a node": {node, rolls, "is only for faults in workloads"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
			if test.now != nil {
				deployments := client.Resource(
					schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
				).Namespace("prod")
				if _, err := deployments.Create(t.Context(), test.now, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			err := withoutRestart(t.Context(), client, []ledger.Run{test.run})
			if test.want == "" && err != nil ||
				test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// Who may not read the workload does not hear that nothing is restarted.
func TestRevertWithoutRestartMustKnow(t *testing.T) {
	t.Parallel()
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	client.PrependReactor("get", "deployments",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("refused") })
	if err := withoutRestart(t.Context(), client, []ledger.Run{shimmed(t, cudashim.OnDelete, nil)}); err == nil ||
		!strings.Contains(err.Error(), "cannot determine") {
		t.Errorf("%v", err)
	}
}

// When the time of a CUDA fault is up its processes are well, which the list must say: only the template waits for its
// revert.
func TestAnExpiredShimIsIdle(t *testing.T) {
	t.Parallel()
	now := time.Now()
	run := shimmed(t, cudashim.Rolling, nil)
	run.Until = now.Add(-time.Minute)
	undoers := session.Undoers(xid.Detectors)
	if text := undo(undoers, run, now); !strings.HasPrefix(text, "the processes have been healthy since "+
		run.Until.Local().Format("15:04")+", but the shim is still in the pod template; ") {
		t.Errorf("expired: %s", text)
	}
	if text := undo(undoers, run, run.Until.Add(-time.Second)); strings.Contains(text, "healthy") {
		t.Errorf("before: %s", text)
	}
}
