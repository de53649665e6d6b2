// Package seal distinguishes the record that a run wrote from one that others wrote.
//
// A record is a ConfigMap: whoever may write ConfigMaps in the ledger can write any record, with the right sums. So an
// undo changes API objects only as its seal allows. The seal is a hash of all that the undo would follow, and it is
// kept where other rights are needed to write it:
//
//   - on each object that the run creates, as its mark;
//   - in a ClusterRole without rules, for objects on which a mark would give the exercise away (ClusterRoles);
//   - on the run's ConfigMap beside a workload, which takes rights in the workload's namespace (pkg/faults/cudashim).
//
// On a node nothing of the record in the cluster is followed at all: there the node's own record decides
// (debugpod/deadman/guard).
package seal

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
)

// Seal is fourteen letters and digits of a hash, so that it can be a name or a label.
type Seal string

// Of returns the seal of a step's undo. What is not known before the change, such as a UID, must not be in the undo.
func Of(run, step string, undo []byte) Seal { return Seal(spell("%q %q %s", run, step, undo)) }

// Mark returns what an object of the sealed step carries. Objects of one step have different marks, so that nobody sees
// what came together.
func (s Seal) Mark(group, resource, namespace, name string) string {
	return spell("%q %q %q %q %q", string(s), group, resource, namespace, name)
}

// spell makes a word of a hash.
func spell(format string, args ...any) string {
	const letters = "23456789bcdfghjkmnpqrstvwxz" // no vowels, so that nothing comes out that could be read
	sum := sha256.Sum256(fmt.Appendf(nil, format, args...))
	var out strings.Builder
	out.WriteByte(letters[8+int(sum[31])%(len(letters)-8)]) // a letter first
	for _, b := range sum[:13] {
		out.WriteByte(letters[int(b)%len(letters)])
	}
	return out.String()
}

// Keeper keeps seals where a writer of records cannot write.
type Keeper interface {
	// Keep keeps a seal, before anything is changed. To keep it twice is no error.
	Keep(ctx context.Context, s Seal) error
	// Has reports whether the seal is kept.
	Has(ctx context.Context, s Seal) (bool, error)
	// Drop forgets a seal when its change is undone. To drop it twice is no error.
	Drop(ctx context.Context, s Seal) error
	// Where names the object that keeps the seal, for people.
	Where(s Seal) string
}

// BrokenError reports that a record's undo is not the one that its run sealed.
type BrokenError struct {
	Where string // what should have kept the seal
	// ByHand is what to do if the record is genuine.
	ByHand string
}

func (e *BrokenError) Error() string {
	text :=
		fmt.Sprintf("the record's undo is rejected: %s does not vouch for it, so another client may have written it",
			e.Where)
	if e.ByHand != "" {
		text += "; if the record is genuine, " + e.ByHand
	}
	return text
}

// Check returns a *BrokenError unless the seal is kept.
func Check(ctx context.Context, k Keeper, s Seal, byHand string) error {
	kept, err := k.Has(ctx, s)
	if err == nil && !kept {
		return &BrokenError{Where: k.Where(s), ByHand: byHand}
	}
	return err
}
