package exercise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// Grade and End do what an exercise's Secrets specify, with the trainer's permissions: Grade runs the scenario's
// checks, including commands in pods, and End with Restore writes objects from a snapshot and deletes objects that are
// not in the snapshot. A user who is only allowed to write Secrets in the ledger's namespace must not be able to
// control these actions. Therefore, the run's record, which is not a Secret, contains hashes of the immutable parts:
// the seals.

// Names of the seals, in addition to those for the snapshots.
const (
	sealExercise = "exercise" // for the objects of the exercise
	sealScenario = "scenario"
)

// sealOf returns the seal of the contents of one or more Secrets, as stored in the run's record.
func sealOf(parts ...[]byte) string {
	whole, err := json.Marshal(parts)
	if err != nil {
		return err.Error() // impossible for bytes
	}
	return string(seal.Of("", "", whole))
}

// seal returns the hash of the fields that identify the exercise's own objects. It does not change during the
// exercise.
func (e *Exercise) seal() string {
	fixed, err := json.Marshal(struct {
		ID         string
		Namespaces []string       `json:",omitempty"` // empty lists are stored as null
		Owned      []scenario.Ref `json:",omitempty"`
		Nodes      []string       `json:",omitempty"`
		Account    [3]string
		Probe      string
	}{e.ID, e.Namespaces, e.Owned, e.Nodes, [3]string{e.Account.ID, e.Account.Namespace, e.Account.Name}, e.Probe})
	if err != nil {
		return err.Error() // impossible for strings
	}
	return sealOf(fixed)
}

// write stores seals in the run's record, in the step that created the sealed data.
func (s *start) write(ctx context.Context, r fault.Recorder, seals map[string]string) error {
	data, err := json.Marshal(seals)
	if err != nil {
		return err
	}
	return r.Save(ctx, func(step *ledger.Step) { step.Undo.Data = data })
}

// verifySeals returns an error if the named parts of an exercise do not match the seals in the run's record.
// names must include everything that was read.
func (l *Lab) verifySeals(ctx context.Context, e *Exercise, names ...string) error {
	if err := l.Session.Ledger.CheckNamespace(ctx); err != nil {
		return err
	}
	run, err := l.Session.Ledger.Get(ctx, e.ID)
	if errors.As(err, new(*ledger.NotFoundError)) {
		return fmt.Errorf("the run that authenticates the record of exercise %s is missing: %w; to end the exercise "+
			"without --restore, run: %s",
			e.ID, err, l.Session.Ledger.Command("scenario", "end", e.ID))
	}
	if err != nil {
		return fmt.Errorf("read the run that authenticates the record of exercise %s: %w", e.ID, err)
	}
	written := map[string]string{}
	for _, step := range run.Steps {
		var seals map[string]string
		if step.Undo.Kind == UndoKind && json.Unmarshal(step.Undo.Data, &seals) == nil {
			maps.Copy(written, seals)
		}
	}
	for _, name := range names {
		if written[name] == "" || written[name] != e.seals[name] {
			return fmt.Errorf("exercise %s, %s: %w", e.ID, name, &seal.BrokenError{
				Where:  fmt.Sprintf("the run's record in namespace %s", l.LedgerNamespace),
				ByHand: "check who may write Secrets there, and end the exercise without --restore",
			})
		}
	}
	return nil
}
