// Package gpureset resets GPUs on a node through the driver. A reset cannot be undone.
package gpureset

import (
	"context"
	"errors"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// UndoKind is the ledger.Undo.Kind for resets.
const UndoKind = "gpu-reset"

// Pod is a debug pod running on a node. debugpod.Session implements it.
type Pod interface {
	Inspect(ctx context.Context, what api.Inspect) (*api.Info, error)
	ListDevices(ctx context.Context) (*api.Devices, error)
	ResetGPU(ctx context.Context, what api.ResetGPU) (*api.GPUReset, error)
	// Close deletes the pod, even if ctx is canceled.
	Close(ctx context.Context) error
}

// Injection resets GPUs.
type Injection struct {
	// Start creates a debug pod for a run on a node and waits until it is running.
	Start func(ctx context.Context, run ledger.Run, nodeName string, progress func(string)) (Pod, error)
	// Choose returns the PCI addresses of the GPUs. If it returns an error, nothing is reset.
	Choose func(ctx context.Context, info api.Info, devices api.Devices) ([]string, error)
}

// Change returns the change to one node, for use in a fault.Plan.
func (in Injection) Change(nodeName, action string) fault.Change {
	return fault.Change{
		Target: ledger.Target{Kind: "Node", Name: nodeName}, Action: action,
		Undo: ledger.Undo{Kind: UndoKind, Permanent: true},
		Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			return in.apply(ctx, nodeName, r)
		},
	}
}

func (in Injection) apply(
	ctx context.Context, nodeName string, r fault.Recorder,
) (evidence []ledger.Evidence, err error) {
	r.Progress("starting the debug pod")
	pod, err := in.Start(ctx, r.Run(), nodeName, r.Progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pod.Close(ctx)) }()
	info, err := pod.Inspect(ctx, api.Inspect{})
	if err != nil {
		return nil, err
	}
	devices, err := pod.ListDevices(ctx)
	if err != nil {
		return nil, err
	}
	chosen, err := in.Choose(ctx, *info, *devices)
	if err != nil {
		return nil, err
	}
	// The record shows what may have been reset, even if the response is lost.
	if err := r.Save(ctx, func(s *ledger.Step) { s.Detail = []byte(`{"begun":true}`) }); err != nil {
		return nil, err
	}
	for _, at := range chosen {
		r.Progress("resetting the GPU at " + at)
		done, err := pod.ResetGPU(ctx, api.ResetGPU{PCI: at})
		if err != nil {
			return evidence, err
		}
		evidence = append(evidence, ledger.NewEvidence("nvidia-smi", "%s; %s responds again", done.Said, done.UUID))
	}
	return evidence, nil
}

// Undoer closes steps that reset GPUs. It changes nothing.
type Undoer struct{}

// Describe implements fault.Undoer.
func (Undoer) Describe(ledger.Step) string { return "none (a reset cannot be undone)" }

// Undo implements fault.Undoer.
func (Undoer) Undo(_ context.Context, _ ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if len(step.Evidence) == 0 && len(step.Detail) == 0 {
		return ledger.StateReverted, "nothing had been reset", nil
	}
	return ledger.StatePermanent, "a reset cannot be undone; the GPU's memory and error state were cleared", nil
}
