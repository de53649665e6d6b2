// Package devicehealth implements the fault in which a node's kubelet considers devices of an extended resource
// unhealthy, as if their device plugin had reported it.
//
// The devices stay unhealthy because a process on the node keeps reporting them; see debugpod/node/device. That process
// is also the dead man's switch: the fault ends when its TTL expires, or when the process, the kubelet or the device
// plugin terminates.
package devicehealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// UndoKind is the ledger.Undo.Kind for unhealthy devices.
const UndoKind = "device-health"

// Pod is a debug pod running on a node. debugpod.Session implements it.
type Pod interface {
	Inspect(ctx context.Context, what api.Inspect) (*api.Info, error)
	ListDevices(ctx context.Context) (*api.Devices, error)
	FailDevices(ctx context.Context, what api.FailDevices) (*api.FailedDevices, error)
	RecoverDevices(ctx context.Context) (*api.RecoveredDevices, error)
	// Close deletes the pod, even if ctx is canceled. The devices stay unhealthy.
	Close(ctx context.Context) error
}

// Start creates a debug pod for a run on a node and waits until it is running.
type Start func(ctx context.Context, run ledger.Run, nodeName string, progress func(string)) (Pod, error)

// Choose returns the resource and the IDs of the devices to fail. If it returns an error, nothing is changed.
type Choose func(info api.Info, devices api.Devices) (resource string, ids []string, err error)

// Injection makes devices unhealthy. Its plan must have a TTL.
type Injection struct {
	Client kubernetes.Interface
	Start  Start
	Choose Choose
}

// claim is the content of ledger.Undo.Data. Anyone with permission to write ConfigMaps may have written it, so it only
// shows that devices may be unhealthy. The details are in the node's own record.
type claim struct {
	Resource string   `json:"resource"`
	Devices  []string `json:"devices"`
}

// Change returns the change to one node, for use in a fault.Plan.
func (in *Injection) Change(nodeName, action string) fault.Change {
	return fault.Change{
		Target: ledger.Target{Kind: "Node", Name: nodeName},
		Action: action,
		Undo:   ledger.Undo{Kind: UndoKind},
		Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			return in.apply(ctx, nodeName, r)
		},
	}
}

func (in *Injection) apply(
	ctx context.Context, nodeName string, r fault.Recorder,
) (evidence []ledger.Evidence, err error) {
	run := r.Run()
	if run.Until.IsZero() {
		return nil, errors.New("unhealthy devices require a TTL, after which the node ends the fault")
	}
	before, err := fault.Allocatable(ctx, in.Client, nodeName)
	if err != nil {
		return nil, err
	}
	r.Progress("starting the debug pod")
	pod, err := in.Start(ctx, run, nodeName, r.Progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pod.Close(ctx)) }()
	request, err := in.request(ctx, pod, run)
	if err != nil {
		return nil, err
	}
	undo, err := json.Marshal(claim{request.Resource, request.Devices})
	if err != nil {
		return nil, fmt.Errorf("encode the undo: %w", err)
	}
	if err := r.Save(ctx, func(s *ledger.Step) { s.Undo.Data = undo }); err != nil {
		return nil, err
	}
	r.Progress("reporting " + count.Of(len(request.Devices), "device") + " as unhealthy")
	failed, err := pod.FailDevices(ctx, request)
	if nothingChanged(err) {
		// Save this even if the user has interrupted the run: there is nothing to undo on the node.
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTimeout)
		defer cancel()
		return nil, errors.Join(err, r.Save(after, func(s *ledger.Step) { s.Undo.Data = nil }))
	}
	if err != nil {
		return nil, err
	}
	evidence = []ledger.Evidence{ledger.NewEvidence("kubelet's device checkpoint", "%s: %s unhealthy, %d healthy",
		failed.Resource, strings.Join(failed.Devices, ", "), failed.Healthy)}
	r.Progress("waiting for the node's status")
	shown, err := in.prove(ctx, nodeName, *failed, before[corev1.ResourceName(failed.Resource)])
	return append(evidence, shown...), err
}

// request reads the node's devices and returns the request to fail the chosen ones.
func (in *Injection) request(ctx context.Context, pod Pod, run ledger.Run) (request api.FailDevices, err error) {
	info, err := pod.Inspect(ctx, api.Inspect{})
	if err != nil {
		return request, err
	}
	devices, err := pod.ListDevices(ctx)
	if err != nil {
		return request, err
	}
	request.Resource, request.Devices, err = in.Choose(*info, *devices)
	if err != nil {
		return request, err
	}
	if request.TTL = time.Until(run.Until).Round(time.Second); request.TTL <= 0 {
		return request, fmt.Errorf("the run expired at %s, before the fault could be injected: specify a longer --ttl",
			run.Until.Format(time.RFC3339))
	}
	return request, request.Validate()
}

// forgetTimeout is the timeout for recording that nothing was changed.
const forgetTimeout = 10 * time.Second

// nothingChanged reports whether the node failed before it changed anything.
func nothingChanged(err error) bool {
	var refused *api.Error
	return errors.As(err, &refused) &&
		(refused.Code == api.CodeRefused || refused.Code == api.CodeExists || refused.Code == api.CodeNotArmed)
}
