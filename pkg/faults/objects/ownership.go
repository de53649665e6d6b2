package objects

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/seal"
)

// Ownership is what a patch changes of who owns the object's fields (metadata.managedFields). Patches are made under
// the name of kubectl's, and somebody may have patched the object with kubectl before: that one's entry is told apart
// from ours by what is in it.
type Ownership struct {
	// Lost is what others lose by the patch.
	Lost []kubeedit.Owned `json:"lost,omitempty"`
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
func (o Object) ours() kubeedit.Owned {
	return kubeedit.Owned{
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
	w := &Ownership{Lost: kubeedit.Lost(before, after, ours)}
	had, has := kubeedit.OwnedFields(before, ours), kubeedit.OwnedFields(after, ours)
	gained := has
	for _, lost := range w.Lost {
		// ManagerPatch also owns the fields that the patch removes, as soon as the undo restores them
		fields := kubeedit.ParseFields(lost.Fields)
		gained = gained.Union(fields).Union(kubeedit.FieldsAround(fields))
	}
	w.Gained, w.Own = fieldsV1(gained.Difference(had)), fieldsV1(had.Difference(has))
	for _, entry := range before {
		if ours(entry) {
			w.Time, w.Sum = entry.Time, kubeedit.SumFields(had)
		}
	}
	return w
}

// fieldsV1 returns nil for no fields.
func fieldsV1(set *fieldpath.Set) json.RawMessage {
	if set.Empty() {
		return nil
	}
	return kubeedit.EncodeFields(set)
}

// validate refuses what no patch makes of an object. What is left is harmless also when it is forged: it moves only
// what ManagerPatch owns.
func (w *Ownership) validate() error {
	if w == nil {
		return nil
	}
	if size := len(kubeedit.Encode(w)); size == 0 || size > maxOwnership {
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
		if err := kubeedit.ValidateFields(fields); err != nil {
			return err
		}
	}
	if w.Sum != "" && len(w.Sum) != sha256.Size*2 {
		return errors.New("a hash of owned fields is of another length")
	}
	return nil
}

// returned returns how the fields of an object are to be owned after its values were put back. It is nil where nothing
// is to be given.
func (w *Ownership) returned(o Object, back restored, now []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	ours := o.ours().Is
	before, after := back.before.GetManagedFields(), back.now.GetManagedFields()
	// The undo itself took removed values that nobody owned, and values that another client took over in a list that is
	// owned as a whole. Only the client that restored the values knows that; if it died, its successor has the record
	// alone.
	own := kubeedit.ParseFields(w.Own)
	gives := kubeedit.OwnedFields(after, ours).Difference(kubeedit.OwnedFields(before, ours)).Difference(own).
		Union(kubeedit.ParseFields(w.Gained))
	owners := kubeedit.Lost(before, after, ours)
	taken := fieldsOf(owners)
	// A value that stays belongs to its writer, even if the writer used kubectl's name.
	lost := fieldsOf(w.Lost)
	// An element that was restored has fields that nobody owned, such as defaults.
	gives = gives.Union(kubeedit.FieldsOfElements(kubeedit.OwnedFields(now, ours), lost).Difference(own))
	for _, e := range back.theirs {
		gives = gives.Difference(kubeedit.FieldsBelow(gives, e.Path))
		taken = taken.Union(kubeedit.FieldsBelow(lost, e.Path))
	}
	for _, owner := range w.Lost {
		owners = append(owners, owner.Without(taken))
	}
	entries, changed := kubeedit.GiveBack(now, ours, gives, owners)
	if !changed {
		return nil
	}
	// The API server writes no change of times only; along with others it does.
	for i, entry := range entries {
		if w.Time != nil && ours(entry) && kubeedit.SumFields(kubeedit.OwnedFields(entries, ours)) == w.Sum {
			entries[i].Time = w.Time
		}
	}
	return kubeedit.EntriesForRequest(entries)
}

func fieldsOf(owners []kubeedit.Owned) *fieldpath.Set {
	fields := &fieldpath.Set{}
	for _, owner := range owners {
		fields = fields.Union(kubeedit.ParseFields(owner.Fields))
	}
	return fields
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
