// Package containerdconfig implements the fault that changes files on nodes and restarts the service that reads them. A
// dead man's switch on the node restores everything.
//
// The change is computed from the node's files after they have been read, before anything is written. The data needed
// to restore the files is written to the node's own record before the first change, and only there. The ledger's record
// identifies the run but contains no data that root would use, because anyone with permission to write ConfigMaps can
// write that record. It may contain the key of an encrypted record on the node; all that a wrong key can do is make the
// restore fail.
package containerdconfig

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Pod is a debug pod running on a node. debugpod.Session implements it.
type Pod interface {
	// InspectRuntime determines which container runtime the kubelet uses, and reads its files.
	InspectRuntime(ctx context.Context) (*api.Runtime, error)
	// Change arms the node's dead man's switch, which then makes the change. It returns the last status, which is
	// PhaseApplied if there is no error. It passes every status to the function each.
	Change(ctx context.Context, what deadman.Change, each func(deadman.Status)) (*deadman.Status, error)
	// Restore restores the files, or reports that the dead man's switch has already restored them.
	Restore(ctx context.Context, what deadman.Restore) (*deadman.Restored, error)
	// Close deletes the pod, even if ctx is canceled. The deletion triggers the dead man's switch.
	Close(ctx context.Context) error
}

// Start creates a debug pod for a run on a node and waits until it is running. lives is the lifetime of the pod; zero
// means until it is deleted. The image is chosen by the user of the command, never by a record.
type Start func(
	ctx context.Context, run ledger.Run, nodeName string, lives time.Duration, progress func(string),
) (Pod, error)

// Decision is the change to make on one node.
type Decision struct {
	// Change is the change for the dead man's switch, without its TTL.
	Change deadman.Change
	// Landed checks the CRI status after the change. The status is nil if CRI does not respond. Landed returns the
	// evidence that the fault is in place, or an error. Landed is nil if the service is not restarted; the bytes on
	// disk are then the evidence.
	Landed func(now *cri.Info) (string, error)
	// Edits describes the change to each file, one line per file, for the evidence.
	Edits []string
}

// Decide computes the change to a node. If it returns an error, the run stops for this node before anything is written.
type Decide func(nodeName string, runtime api.Runtime) (*Decision, error)

// Probe verifies the fault with a user pod. It returns an error if the fault has no effect on the pod.
type Probe func(ctx context.Context, run ledger.Run, nodeName string) (ledger.Evidence, error)

// Injection changes files on nodes.
type Injection struct {
	Start  Start
	Image  string // image of the debug pods, for the record
	Decide Decide
	Probe  Probe // may be nil
	// Encrypted means that the nodes' records are encrypted, for nodes whose users must not be able to read what was
	// changed. Restoring the files then requires the key in the ledger's record, and a node that crashes is not
	// restored at boot.
	Encrypted bool
}

// Change returns the change to one node, for use in a fault.Plan.
func (in *Injection) Change(target ledger.Target, action string) fault.Change {
	return fault.Change{
		Target: target,
		Action: action,
		Undo:   ledger.Undo{Kind: UndoKind},
		Apply: func(ctx context.Context, r fault.Recorder) ([]ledger.Evidence, error) {
			return in.apply(ctx, target.Name, r)
		},
	}
}

// podGrace is the time for which the debug pod may outlive the fault, so that the dead man's switch ends the fault
// before the pod's deadline.
const podGrace = 2 * time.Minute

func (in *Injection) apply(
	ctx context.Context, nodeName string, r fault.Recorder,
) (evidence []ledger.Evidence, err error) {
	run := r.Run()
	lives := time.Duration(0)
	if !run.Until.IsZero() {
		lives = time.Until(run.Until) + podGrace
	}
	r.Progress("starting the debug pod")
	pod, err := in.Start(ctx, run, nodeName, lives, r.Progress)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil { // on success, keep the pod: deleting it would restore the node
			err = errors.Join(err, pod.Close(ctx))
		}
	}()

	r.Progress("reading the runtime's configuration")
	runtime, err := pod.InspectRuntime(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the container runtime's configuration: %w", err)
	}
	decision, err := in.Decide(nodeName, *runtime)
	if err != nil {
		return nil, err
	}
	if !run.Until.IsZero() {
		if decision.Change.TTL = time.Until(run.Until).Round(time.Second); decision.Change.TTL <= 0 {
			return nil, fmt.Errorf("the run expired at %s, before the fault could be injected: specify a longer --ttl",
				run.Until.Format(time.RFC3339))
		}
	}
	claim := Claim{Image: in.Image, NodeLoss: decision.Change.MayFail, Loaded: loaded(*runtime)}
	if in.Encrypted {
		claim.Key = make([]byte, deadman.KeySize)
		_, _ = rand.Read(claim.Key) // never fails
		decision.Change.Key, decision.Change.BootRestore = claim.Key, false
	}
	for _, f := range decision.Change.Files {
		claim.Files = append(claim.Files, ClaimedFile{Path: f.Path, Before: f.Before, After: f.After})
	}
	data, err := json.Marshal(claim)
	if err != nil {
		return nil, fmt.Errorf("encode the undo: %w", err)
	}
	if err := r.Save(ctx, func(s *ledger.Step) { s.Undo.Data = data }); err != nil {
		return nil, err
	}
	status, err := pod.Change(ctx, decision.Change, func(s deadman.Status) {
		if text := phrase(s, decision.Change); text != "" {
			r.Progress(text)
		}
	})
	if err != nil {
		return nil, err
	}
	evidence, err = in.prove(ctx, nodeName, r, *decision, *status)
	if err == nil && !run.Until.IsZero() && time.Until(run.Until) < aLook {
		err = fmt.Errorf("the fault expired at %s, before it could be observed: specify a longer --ttl",
			run.Until.Format(time.RFC3339))
	}
	return evidence, err
}

// aLook is the minimum time that a fault must remain in place after it has been verified.
const aLook = 2 * time.Second

// phrase describes the phase of a dead man's switch to the user.
func phrase(s deadman.Status, change deadman.Change) string {
	switch s.Phase {
	case deadman.PhaseWritten: // the armed phase is too short to report separately
		if change.Service == nil || change.NoRestart {
			return "dead man's switch armed, configuration changed"
		}
		return "dead man's switch armed, configuration changed, restarting " + change.Service.Unit
	case deadman.PhaseApplied:
		if s.CRI != nil && !change.NoRestart {
			return "container runtime responds again"
		}
	}
	return ""
}

// prove converts the state of the node after the change to evidence.
func (in *Injection) prove(
	ctx context.Context, nodeName string, r fault.Recorder, decision Decision, status deadman.Status,
) ([]ledger.Evidence, error) {
	var evidence []ledger.Evidence
	at := status.Time.UTC().Truncate(time.Millisecond)
	for i, file := range decision.Change.Files {
		text := fmt.Sprintf("SHA-256 was %.12s, is %.12s", file.Before, file.After)
		if file.Before == deadman.Absent {
			text = fmt.Sprintf("new, SHA-256 is %.12s", file.After)
		}
		if i < len(decision.Edits) {
			text += ": " + decision.Edits[i]
		}
		evidence = append(evidence, ledger.Evidence{Source: file.Path, Time: at, Text: text})
	}
	if decision.Landed != nil {
		said, err := decision.Landed(status.CRI)
		if err != nil {
			return evidence, fmt.Errorf(
				"the configuration was changed and %s restarted, but the fault has no effect: %w",
				decision.Change.Service.Unit, err,
			)
		}
		evidence = append(evidence, ledger.Evidence{Source: source(status), Time: at, Text: said})
	}
	if in.Probe != nil {
		r.Progress("verifying the fault with a pod")
		proof, err := in.Probe(ctx, r.Run(), nodeName)
		if err != nil {
			return evidence, err
		}
		evidence = append(evidence, proof)
	}
	return evidence, nil
}

func source(status deadman.Status) string {
	if status.CRI == nil {
		return "the container runtime"
	}
	return fmt.Sprintf("CRI Status of %s %s", status.CRI.Name, status.CRI.Version)
}
