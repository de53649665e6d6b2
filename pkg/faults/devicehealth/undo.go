package devicehealth

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Undoer ends the fault. Client and Start may be nil if only Describe is called.
type Undoer struct {
	fault.OnNode
	Client kubernetes.Interface
	Start  Start
}

var (
	_ fault.Undoer     = Undoer{}
	_ fault.Needer     = Undoer{}
	_ fault.NodeUndoer = Undoer{}
)

// Describe implements fault.Undoer.
func (u Undoer) Describe(ledger.Step) string {
	return "stop reporting devices as unhealthy; the device plugin then reports them again"
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if len(step.Undo.Data) == 0 {
		return ledger.StateReverted, "nothing had been changed", nil
	}
	say := u.Say(step)
	recovered, err := u.recover(ctx, run, step.Target.Name, say)
	if err != nil {
		return "", "", fmt.Errorf("%w; the fault also ends if you delete the device plugin's pod on the node", err)
	}
	if !recovered.Found {
		return ledger.StateReverted,
			"the node has no record of this run: the fault never started, another client ended it, or the node has rebooted", nil
	}
	if recovered.Resource == "" {
		return ledger.StateReverted, "the fault's processes were stopped; its record on the node had already been deleted", nil
	}
	say("waiting for the node's status")
	// The device plugin may have reported more devices since then, for example if it has just restarted.
	if err := awaitAllocatable(ctx, u.Client, step.Target.Name, recovered.Resource, int64(recovered.Healthy),
		math.MaxInt64); err != nil {
		return "", "", err
	}
	said := fmt.Sprintf("healthy and allocatable again: %s of %s", count.Of(recovered.Healthy, "device"),
		recovered.Resource)
	if recovered.Cause != "requested" {
		said += fmt.Sprintf("; the fault had ended at %s (%s)", recovered.Ended.UTC().Format(time.RFC3339),
			recovered.Cause)
	}
	return ledger.StateReverted, said, nil
}

func (u Undoer) recover(
	ctx context.Context, run ledger.Run, nodeName string, say func(string),
) (recovered *api.RecoveredDevices, err error) {
	pod, err := u.Start(ctx, run, nodeName, say)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pod.Close(ctx)) }()
	say("re-registering the device plugin")
	return pod.RecoverDevices(ctx)
}
