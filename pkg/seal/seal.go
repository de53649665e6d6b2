// Package seal distinguishes a record that a run wrote from a forged one.
//
// A record is a ConfigMap. Anyone with permission to write ConfigMaps in the ledger can write any record, including
// valid checksums. Therefore an undo changes API objects only if a seal confirms the undo. The seal is a hash of all
// data that the undo uses. It is kept in a place that can be written only with different permissions:
//
//   - on each object that the run creates, as its mark;
//   - in a ClusterRole without rules, for objects on which a mark would reveal the exercise (ClusterRoles);
//   - on the run's ConfigMap next to a workload, which requires permissions in the workload's namespace
//     (pkg/faults/cudashim).
//
// On a node, the record in the cluster is not used at all. The node's own record is used instead
// (debugpod/deadman/guard).
package seal

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
)

// Seal is a hash encoded as fourteen letters and digits, so that it can be part of a name or label.
type Seal string

// Of returns the seal of a step's undo data, which must not contain anything that is unknown before the change, such as
// a UID.
func Of(run, step string, undo []byte) Seal { return Seal(spell("%q %q %s", run, step, undo)) }

// Mark returns the mark for an object of the sealed step. Objects of the same step have different marks, so that the
// marks do not show which objects belong together.
func (s Seal) Mark(group, resource, namespace, name string) string {
	return spell("%q %q %q %q %q", string(s), group, resource, namespace, name)
}

// spell returns a hash as letters and digits.
func spell(format string, args ...any) string {
	const letters = "23456789bcdfghjkmnpqrstvwxz" // no vowels, so that it contains no words
	sum := sha256.Sum256(fmt.Appendf(nil, format, args...))
	var out strings.Builder
	out.WriteByte(letters[8+int(sum[31])%(len(letters)-8)]) // starts with a letter
	for _, b := range sum[:13] {
		out.WriteByte(letters[int(b)%len(letters)])
	}
	return out.String()
}

// Keeper keeps seals in objects that a client cannot write if it has access only to records.
type Keeper interface {
	// Keep stores a seal. It is called before anything is changed, and may be called twice.
	Keep(ctx context.Context, s Seal) error
	// Has reports whether the seal is kept.
	Has(ctx context.Context, s Seal) (bool, error)
	// Drop deletes a seal after the change that it confirms has been undone. It may be called twice.
	Drop(ctx context.Context, s Seal) error
	// Where returns the name of the object that keeps the seal, for messages.
	Where(s Seal) string
}

// BrokenError means that the undo data in a record does not match the seal of the run.
type BrokenError struct {
	Where string // the object that should have kept the seal
	// ByHand describes what to do if the record is genuine.
	ByHand string
}

func (e *BrokenError) Error() string {
	text :=
		fmt.Sprintf("the undo data in the record is rejected: %s does not vouch for it, so another client may have "+
			"written the record",
			e.Where)
	if e.ByHand != "" {
		text += "; if the record is genuine, " + e.ByHand
	}
	return text
}

// Check returns a *BrokenError unless the seal is intact.
func Check(ctx context.Context, k Keeper, s Seal, byHand string) error {
	kept, err := k.Has(ctx, s)
	if err == nil && !kept {
		return &BrokenError{Where: k.Where(s), ByHand: byHand}
	}
	return err
}
