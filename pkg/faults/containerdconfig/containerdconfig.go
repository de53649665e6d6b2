// Package containerdconfig is the fault that changes files of nodes and restarts the service that reads them, behind a
// dead man's switch that puts everything back.
//
// What to change is decided on what the node's files hold, after they were read and before anything is written. What
// to restore is in the node's own record before the first change, and only there: the ledger's record can be written
// by anyone with rights on ConfigMaps, so it names the run and nothing that root would follow.
package containerdconfig

import (
	"context"
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

// Pod is a debug pod that runs on a node: a debugpod.Session.
type Pod interface {
	// InspectRuntime reads which container runtime the kubelet uses, and its files.
	InspectRuntime(ctx context.Context) (*api.Runtime, error)
	// Change arms the node's dead man and lets it make the change. It returns the dead man's last word, which is
	// PhaseApplied when there is no error; each hears of the phases as they come.
	Change(ctx context.Context, what deadman.Change, each func(deadman.Status)) (*deadman.Status, error)
	// Restore puts the files back, or finds that the dead man has.
	Restore(ctx context.Context, what deadman.Restore) (*deadman.Restored, error)
	// Close deletes the pod, also when ctx has ended. To the dead man that is a request to put everything back.
	Close(ctx context.Context) error
}

// Start creates a debug pod for a run on a node and waits until it runs. It lives that long; zero means until it is
// deleted. Its image is chosen by the user of this command, never by a record.
type Start func(
	ctx context.Context, run ledger.Run, nodeName string, lives time.Duration, progress func(string),
) (Pod, error)

// Decision is what is to be done to one node.
type Decision struct {
	// Change is made by the dead man; its TTL is filled in.
	Change deadman.Change
	// Landed reports whether the fault shows in what CRI says afterwards, nil when CRI does not serve, and in which
	// words; an error when it does not show. Nil when the service is not restarted: then the bytes on the disk are the
	// proof.
	Landed func(now *cri.Info) (string, error)
	// Edits says in a line per file what is changed in it, for the evidence.
	Edits []string
}

// Decide decides what to do. An error stops the run for this node before anything is written.
type Decide func(nodeName string, runtime api.Runtime) (*Decision, error)

// Probe proves the fault by a pod of a user's. Its error means that the fault did not show.
type Probe func(ctx context.Context, run ledger.Run, nodeName string) (ledger.Evidence, error)

// Injection changes files of nodes.
type Injection struct {
	Start  Start
	Image  string // of the debug pods, for the record
	Decide Decide
	Probe  Probe // nil: none
}

// Change returns the change to one node, for a fault.Plan.
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

// podGrace is how much longer than the fault its debug pod may live: the dead man, not the pod's deadline, is to end
// the fault.
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
		if err != nil { // else it stays as long as the fault: to delete it is to heal the node
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
			return nil, fmt.Errorf("the time of the fault was up at %s, before it could be made: give a longer --ttl",
				run.Until.Format(time.RFC3339))
		}
	}
	claim := Claim{Image: in.Image, NodeLoss: decision.Change.MayFail}
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
		err = fmt.Errorf("its time was up at %s, before anybody could look at it: give a longer --ttl",
			run.Until.Format(time.RFC3339))
	}
	return evidence, err
}

// aLook is how long a fault must stay after it was proven.
const aLook = 2 * time.Second

// phrase says for people how far a dead man is.
func phrase(s deadman.Status, change deadman.Change) string {
	switch s.Phase {
	case deadman.PhaseWritten: // being armed is over too soon to be told by itself
		if change.Service == nil || change.NoRestart {
			return "dead man armed, configuration changed"
		}
		return "dead man armed, configuration changed, restarting " + change.Service.Unit
	case deadman.PhaseApplied:
		if s.CRI != nil && !change.NoRestart {
			return "container runtime serves again"
		}
	}
	return ""
}

// prove turns what the node says after the change into evidence.
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
				"the configuration was changed and %s restarted, but the fault does not show: %w",
				decision.Change.Service.Unit, err,
			)
		}
		evidence = append(evidence, ledger.Evidence{Source: source(status), Time: at, Text: said})
	}
	if in.Probe != nil {
		r.Progress("trying it with a pod")
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
