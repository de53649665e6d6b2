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

// What an exercise's Secrets say is done with the trainer's rights: grade runs the scenario's checks, commands in pods
// among them, and end with Restore writes what a snapshot says and deletes what it lacks. Who may write Secrets in the
// ledger's namespace, and nothing else, must not choose that for the trainer. So the run's record, which is no Secret,
// has the hashes of what never changes: these are its seals.

// The names of the seals, besides those of the snapshots.
const (
	sealExercise = "exercise" // what belongs to it
	sealScenario = "scenario"
)

// sealOf returns the seal of what one or more of an exercise's Secrets hold, as the run's record keeps it.
func sealOf(parts ...[]byte) string {
	whole, err := json.Marshal(parts)
	if err != nil {
		return err.Error() // cannot be, of bytes
	}
	return string(seal.Of("", "", whole))
}

// seal returns the hash of what says of an exercise which objects are its own. It stays the same from the start to the
// end.
func (e *Exercise) seal() string {
	fixed, err := json.Marshal(struct {
		ID         string
		Namespaces []string       `json:",omitempty"` // stored are empty lists as none
		Owned      []scenario.Ref `json:",omitempty"`
		Nodes      []string       `json:",omitempty"`
		Account    [3]string
		Probe      string
	}{e.ID, e.Namespaces, e.Owned, e.Nodes, [3]string{e.Account.ID, e.Account.Namespace, e.Account.Name}, e.Probe})
	if err != nil {
		return err.Error() // cannot be, of texts
	}
	return sealOf(fixed)
}

// write puts seals into the run's record, in the step that made what they are of.
func (s *start) write(ctx context.Context, r fault.Recorder, seals map[string]string) error {
	data, err := json.Marshal(seals)
	if err != nil {
		return err
	}
	return r.Save(ctx, func(step *ledger.Step) { step.Undo.Data = data })
}

// verifySeals refuses an exercise of which something is not as the run's record has it: what was read of it is to be
// named.
func (l *Lab) verifySeals(ctx context.Context, e *Exercise, names ...string) error {
	if err := l.Session.Ledger.CheckNamespace(ctx); err != nil {
		return err
	}
	run, err := l.Session.Ledger.Get(ctx, e.ID)
	if errors.As(err, new(*ledger.NotFoundError)) {
		return fmt.Errorf("the run of exercise %s, which tells its record from a forged one, is missing: %w; without --restore it ends all the same: %s",
			e.ID, err, l.Session.Ledger.Command("scenario", "end", e.ID))
	}
	if err != nil {
		return fmt.Errorf("the run of exercise %s, which tells its record from a forged one: %w", e.ID, err)
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
			return fmt.Errorf("exercise %s, its %s: %w", e.ID, name, &seal.BrokenError{
				Where:  fmt.Sprintf("the run's record in namespace %s", l.LedgerNamespace),
				ByHand: "check who may write Secrets there, and end the exercise without --restore",
			})
		}
	}
	return nil
}
