package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fieldowner"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// Ownership is what a patch changes of who owns the object's fields (metadata.managedFields). Patches are made under
// the name of kubectl's, and somebody may have patched the object with kubectl before: that one's entry is told apart
// from ours by what is in it.
type Ownership struct {
	// Lost is what others lose by the patch.
	Lost []fieldowner.Owned `json:"lost,omitempty"`
	// Gained is what ManagerPatch has not owned before, and will own by the patch or by its undo, as FieldsV1: it keeps
	// none of it.
	Gained json.RawMessage `json:"gained,omitempty"`
	// Own is what ManagerPatch itself owned and loses, since the patch removes it, as FieldsV1: the undo makes it own
	// that again.
	Own json.RawMessage `json:"own,omitempty"`
	// Time is when ManagerPatch had written before, and Sum the hash of what it owned then. Empty when it had not.
	Time *metav1.Time `json:"time,omitempty"`
	Sum  string       `json:"sum,omitempty"`
}

// ours returns the entry of metadata.managedFields that patches of an object, and their undo, write to.
func (o Object) ours() fieldowner.Owned {
	return fieldowner.Owned{
		Manager: ManagerPatch, Operation: string(metav1.ManagedFieldsOperationUpdate), APIVersion: o.APIVersion(),
		Sub: o.Subresource,
	}
}

// foresee asks the API server who would own what after the write. The preview does not tell it: what an admission
// webhook changes on its way is nobody's there, and ours when it is written, since then it is in the patch.
func foresee(
	ctx context.Context, client dynamic.Interface, o Object, before, after *unstructured.Unstructured,
) (*Ownership, error) {
	trial, err := write(ctx, client, o, before, after, metav1.DryRunAll)
	if err != nil {
		return nil, err
	}
	w := ownership(o, before.GetManagedFields(), trial.GetManagedFields())
	if w.validate() != nil { // too large, or so odd that the undo would not believe it: the values are what counts
		return nil, nil
	}
	return w, nil
}

// ownership compares who owns what before and after a patch.
func ownership(o Object, before, after []metav1.ManagedFieldsEntry) *Ownership {
	ours := o.ours().Is
	w := &Ownership{Lost: fieldowner.Lost(before, after, ours)}
	had, has := fieldowner.Fields(before, ours), fieldowner.Fields(after, ours)
	gained := fieldowner.Set{}
	gained.Add(has)
	for _, lost := range w.Lost {
		fields := fieldowner.Parse(lost.Fields)
		gained.Add(fields) // what the patch removes is ours as soon as the undo puts it back
		gained.Add(fields.Around())
	}
	w.Gained, w.Own = fieldsV1(gained.Minus(had)), fieldsV1(had.Minus(has))
	for _, entry := range before {
		if ours(entry) {
			w.Time, w.Sum = entry.Time, had.Sum()
		}
	}
	return w
}

// fieldsV1 returns nil for no fields.
func fieldsV1(set fieldowner.Set) json.RawMessage {
	if len(set) == 0 {
		return nil
	}
	return set.Encode()
}

// validate refuses what no patch makes of an object. What is left is harmless also when it is forged: it moves only
// what ManagerPatch owns.
func (w *Ownership) validate() error {
	if w == nil {
		return nil
	}
	if size := len(encode(w)); size == 0 || size > maxOwnership {
		return fmt.Errorf("who owned its fields takes %d bytes, and at most %d have room", size, maxOwnership)
	}
	for _, lost := range w.Lost {
		if err := lost.Validate(); err != nil {
			return err
		}
	}
	for _, fields := range []json.RawMessage{w.Gained, w.Own} {
		if len(fields) == 0 {
			continue
		}
		if err := fieldowner.Validate(fields); err != nil {
			return err
		}
	}
	if w.Sum != "" && len(w.Sum) != len(fieldowner.Set{}.Sum()) {
		return errors.New("a hash of owned fields is of another length")
	}
	return nil
}

// returned returns how the fields of an object are to be owned after its values were put back. It is nil where nothing
// is to be given.
func (w *Ownership) returned(o Object, back restored, now []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	ours := o.ours().Is
	before, after := back.before.GetManagedFields(), back.now.GetManagedFields()
	// What the undo itself took: removed values that nobody owned, and what somebody took over meanwhile within a list
	// that is owned as a whole. It is known only to who put the values back; who comes later, since that one died, has
	// the record alone.
	gives := fieldowner.Fields(after, ours).Minus(fieldowner.Fields(before, ours)).Minus(fieldowner.Parse(w.Own))
	gives.Add(fieldowner.Parse(w.Gained))
	owners := fieldowner.Lost(before, after, ours)
	taken := fieldowner.Set{}
	for _, owner := range owners {
		taken.Add(fieldowner.Parse(owner.Fields))
	}
	// A value that stays is its writer's, also when that one has used kubectl's name.
	lost := fieldowner.Set{}
	for _, owner := range w.Lost {
		lost.Add(fieldowner.Parse(owner.Fields))
	}
	// An element that was put back has fields that nobody owned, such as defaults.
	for _, element := range lost.Elements() {
		gives.Add(fieldowner.Fields(now, ours).Below(element...).Minus(fieldowner.Parse(w.Own)))
	}
	for _, e := range back.theirs {
		gives = gives.Minus(gives.Below(e.Path.owned()...))
		taken.Add(lost.Below(e.Path.owned()...))
	}
	for _, owner := range w.Lost {
		owners = append(owners, owner.Without(taken))
	}
	entries, changed := fieldowner.GiveBack(now, ours, gives, owners)
	if !changed {
		return nil
	}
	// The API server writes no change of times only; along with others it does.
	for i, entry := range entries {
		if w.Time != nil && ours(entry) && fieldowner.Fields(entries, ours).Sum() == w.Sum {
			entries[i].Time = w.Time
		}
	}
	return fieldowner.ForRequest(entries)
}

// giveBack gives the fields of an object whose values were put back to their former owners. It is a write of its own,
// since who writes values owns them; one that was lost is made up for by the next undo. It returns what there is to say
// of it.
func (u undoing) giveBack(ctx context.Context, o Object, back restored) (string, error) {
	w := u.data.Ownership
	if w == nil || back.now == nil {
		return "", nil
	}
	plain := o
	plain.Subresource = "" // metadata.managedFields is taken from no subresource, but has the entries of all
	believed := false
	now := back.now
	said := ""
	err := retry(ctx, o, func() error {
		var err error
		if now == nil {
			if now, err = u.live(ctx, plain); err != nil {
				return err
			}
		}
		if now == nil || string(now.GetUID()) != o.UID {
			return nil
		}
		entries := w.returned(o, back, now.GetManagedFields())
		if entries == nil {
			return nil
		}
		if !believed {
			err := u.checkSeal(ctx, o, nil)
			if broken := (*seal.BrokenError)(nil); errors.As(err, &broken) {
				said = fmt.Sprintf(
					"; the owners of its fields were not restored, since %s does not vouch for the record",
					broken.Where,
				)
				return nil
			} else if err != nil {
				return err
			}
			believed = true
		}
		_, err = patchAsRead(ctx, u.Dynamic, plain, now,
			map[string]any{"metadata": map[string]any{"managedFields": entries}})
		now = nil // is read anew, should somebody have been faster
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	// The values are back, which is what counts: a webhook that fails, say, must not keep the run open. Whether a
	// request without an answer came through nobody knows, and the next undo finds out.
	if answered := apierrors.APIStatus(nil); errors.As(err, &answered) {
		return fmt.Sprintf("; its fields are owned by %s, since they could not be given back to who owned them: %v",
			ManagerPatch, err), nil
	}
	return said, err
}
