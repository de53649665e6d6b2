package faults

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/workload"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// shimmed is a run with the CUDA shim in a workload whose pods are replaced in that way.
func shimmed(t *testing.T, how workload.Replacement, recreated *workload.Recreated) ledger.Run {
	t.Helper()
	data, err := json.Marshal(workload.Data{
		Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment", Namespace: "prod", Name: "web", UID: "u", ConfigMap: "gpu-fault-cuda-222222",
		Variable: workload.PreloadVar, Preload: workload.Executable, Replaced: how, Recreated: recreated,
	})
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Run{ID: "cuda-222222", Phase: ledger.Proven, Fault: "cuda", Steps: []ledger.Step{{
		ID: "1", Target: ledger.Target{Kind: "Deployment", Namespace: "prod", Name: "web"}, State: ledger.StateProven, Undo: ledger.Undo{Kind: workload.UndoKind, Data: data},
	}}}
}

// Where a controller replaces pods by itself, --without-restart cannot be had; who asks for it hears of what can.
func TestRevertWithoutRestart(t *testing.T) {
	t.Parallel()
	node := ledger.Run{ID: "runtime-222222", Phase: ledger.Proven, Steps: []ledger.Step{{
		Target: ledger.Target{Kind: "Node", Name: "a"}, State: ledger.StateProven, Undo: ledger.Undo{Kind: "node-files"},
	}}}
	for name, test := range map[string]struct {
		run  ledger.Run
		want string
	}{
		"rolling":   {shimmed(t, workload.Rolling, nil), "kubectl gpu-fault cuda disarm cuda-222222"},
		"on delete": {shimmed(t, workload.OnDelete, nil), ""},
		"next job":  {shimmed(t, workload.NextJob, nil), ""},
		"recreated": {shimmed(t, workload.Recreate, &workload.Recreated{Original: json.RawMessage(`{}`)}), "deleted and created again"},
		"node":      {node, "is for faults in workloads"},
	} {
		err := withoutRestart([]ledger.Run{test.run})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// When the time of a CUDA fault is up its processes are well, which the list must say: only the template waits for its revert.
func TestAnExpiredShimIsIdle(t *testing.T) {
	t.Parallel()
	now := time.Now()
	run := shimmed(t, workload.Rolling, nil)
	run.Until = now.Add(-time.Minute)
	undoers := session.Undoers(xid.Detectors)
	if text := undo(undoers, run, now); !strings.HasPrefix(text, "its processes are healthy since "+run.Until.Local().Format("15:04")+", and the pod template still has the shim; ") {
		t.Errorf("expired: %s", text)
	}
	if text := undo(undoers, run, run.Until.Add(-time.Second)); strings.Contains(text, "healthy") {
		t.Errorf("before: %s", text)
	}
}
