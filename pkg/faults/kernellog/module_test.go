package kernellog

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// watching notes which undo the ledger has at each call to the pod.
type watching struct {
	recorder
	undos []string
}

func (w *watching) Save(ctx context.Context, change func(*ledger.Step)) error {
	if err := w.recorder.Save(ctx, change); err != nil {
		return err
	}
	w.undos = append(w.undos, w.step.Undo.Kind)
	return nil
}

// While the module may be loaded the ledger must say how to unload it; when it surely is not, nobody must have to.
func TestTheUndoIsRecordedBeforeTheModuleIsLoaded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file  []byte
		fails error
		calls string
		undo  string
		gone  bool // the detail, as nothing was written
	}{
		"built on the node": {nil, nil, "inspect,build,write through built", UndoKind, false},
		"given":             {[]byte("given"), nil, "inspect,write through given", UndoKind, false},
		"refused before it was loaded": {
			[]byte("given"), &api.Error{Code: api.CodeUntrusted, Message: "lockdown"}, "inspect,write through given",
			UndoKind, true,
		},
		"a record was lost, and it was unloaded": {
			[]byte("given"), &api.Error{Code: api.CodeNotProven, Message: "lost"}, "inspect,write through given",
			UndoKind, false,
		},
		"it stays": {
			[]byte("given"), &api.Error{Code: api.CodeStays, Message: "in use"}, "inspect,write through given",
			ModuleUndoKind, false,
		},
		"nobody knows": {
			[]byte("given"), debugpod.ErrOutputLost, "inspect,write through given", ModuleUndoKind, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &fakePod{proves: 1, fails: tc.fails}
			rec := &watching{recorder: recorder{pod: pod}}
			in := injection(pod, 1)
			in.Module = &Module{File: tc.file}
			_, err := in.Change(ledger.Target{Name: "a"}, "write").Apply(t.Context(), rec)
			if (err == nil) != (tc.fails == nil) {
				t.Errorf("error %v", err)
			}
			if got := strings.Join(pod.calls, ","); got != tc.calls {
				t.Errorf("the pod saw %s, wanted %s", got, tc.calls)
			}
			if len(rec.saves) == 0 || rec.saves[0] != len(pod.calls)-1 || rec.undos[0] != ModuleUndoKind {
				t.Errorf("saved after %v calls, %v: wanted the undo %s right before the last call", rec.saves,
					rec.undos, ModuleUndoKind)
			}
			if rec.step.Undo.Kind != tc.undo || (rec.step.Detail == nil) != tc.gone {
				t.Errorf("the ledger ends with %+v, detail %s; wanted %s", rec.step.Undo, rec.step.Detail, tc.undo)
			}
			if pod.closed != 1 {
				t.Errorf("the pod was closed %d times", pod.closed)
			}
		})
	}
}

func TestNoModuleIsLoadedWithoutARecord(t *testing.T) {
	t.Parallel()
	pod := &fakePod{proves: 1}
	in := injection(pod, 1)
	in.Module = &Module{}
	_, err := in.Change(ledger.Target{Name: "a"},
		"write").Apply(t.Context(), &recorder{pod: pod, fails: errors.New("etcd is full")})
	if err == nil || strings.Contains(strings.Join(pod.calls, ","), "write") {
		t.Errorf("%v, the pod saw %v: wanted an error before the module is loaded", err, pod.calls)
	}
}

func TestModuleUndo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		found api.RemovedModule
		fails error
		says  string
	}{
		"still loaded": {api.RemovedModule{Removed: true}, nil, "has been unloaded"},
		"not loaded":   {api.RemovedModule{}, nil, "is not loaded"},
		"another's":    {api.RemovedModule{Other: "run xid-999999"}, nil, "xid-999999, and was not unloaded"},
		"in use": {
			api.RemovedModule{}, &api.Error{Code: api.CodeStays, Message: "in use"}, "rmmod gpu_fault_xid",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &fakePod{module: tc.found, fails: tc.fails}
			u := ModuleUndoer{
				Start: func(context.Context, ledger.Run, string, func(string)) (Pod, error) { return pod, nil },
			}
			step := ledger.Step{Detail: json.RawMessage(`{"xids":["79"]}`), Undo: ledger.Undo{Kind: ModuleUndoKind}}
			state, said, err := u.Undo(t.Context(), ledger.Run{}, step)
			if tc.fails != nil {
				said = err.Error()
			} else if err != nil || state != ledger.StatePermanent || !strings.Contains(said, "cannot be removed") {
				t.Errorf("%v %q %v: wanted to hear that the lines stay", state, said, err)
			}
			if !strings.Contains(said, tc.says) {
				t.Errorf("%q does not say %q", said, tc.says)
			}
			if pod.closed != 1 {
				t.Errorf("the pod was closed %d times", pod.closed)
			}
		})
	}
}
