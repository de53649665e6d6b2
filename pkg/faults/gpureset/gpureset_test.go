package gpureset

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// node is a node and its debug pod. Its GPU is reset unless err is set.
type node struct {
	step     *ledger.Step
	err      error
	reset    []string
	recorded bool // before the first reset
	closed   bool
}

func (n *node) Inspect(context.Context, api.Inspect) (*api.Info, error) { return &api.Info{}, nil }
func (n *node) ListDevices(context.Context) (*api.Devices, error)       { return &api.Devices{}, nil }
func (n *node) Close(context.Context) error                             { n.closed = true; return nil }
func (n *node) Run() ledger.Run                                         { return ledger.Run{ID: "device-7k3f9q"} }
func (n *node) Progress(string)                                         {}
func (n *node) Save(_ context.Context, change func(*ledger.Step)) error { change(n.step); return nil }
func (n *node) ResetGPU(_ context.Context, what api.ResetGPU) (*api.GPUReset, error) {
	n.recorded = n.recorded || len(n.reset) == 0 && len(n.step.Detail) > 0
	n.reset = append(n.reset, what.PCI)
	return &api.GPUReset{UUID: "GPU-1", Said: "GPU was successfully reset."}, n.err
}

// TestReset: what cannot be undone is in the record before it begins, is never called reverted, and does not begin if
// the GPU is refused.
func TestReset(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		refused, failed error
		state           ledger.State
	}{
		"well":    {nil, nil, ledger.StatePermanent},
		"refused": {errors.New("a pod holds it"), nil, ledger.StateReverted},
		"lost":    {nil, errors.New("no response"), ledger.StatePermanent}, // it may have been reset
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &node{step: &ledger.Step{}, err: test.failed}
			in := Injection{
				Start: func(context.Context, ledger.Run, string, func(string)) (Pod, error) { return n, nil },
				Choose: func(context.Context, api.Info, api.Devices) ([]string, error) {
					return []string{"0000:17:00.0"}, test.refused
				},
			}
			change := in.Change("gpu-1", "reset GPU 0")
			if !change.Undo.IsPermanent() {
				t.Error("the node stays locked, and the user is told how to undo a reset")
			}
			evidence, err := change.Apply(t.Context(), n)
			if want := errors.Join(test.refused, test.failed); (err == nil) != (want == nil) {
				t.Errorf("%v, want %v", err, want)
			}
			n.step.Evidence = evidence
			if !n.closed || len(n.reset) > 0 && !n.recorded || test.refused != nil && len(n.reset) > 0 {
				t.Errorf("closed %t, reset %v, recorded before %t", n.closed, n.reset, n.recorded)
			}
			if name == "well" && !strings.Contains(evidence[0].Text, "GPU-1 responds again") {
				t.Errorf("evidence %+v", evidence)
			}
			state, _, err := Undoer{}.Undo(t.Context(), ledger.Run{}, *n.step)
			if err != nil || state != test.state {
				t.Errorf("the undo says %s, %v; want %s", state, err, test.state)
			}
		})
	}
}
