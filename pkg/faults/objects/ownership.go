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

// Ownership contains a patch's changes to the owners of the object's fields (metadata.managedFields). Patches use the
// field manager of kubectl patch, and a user may have patched the object with kubectl before, so the user's changes and
// this patch can be distinguished only by the fields of an entry.
type Ownership struct {
	// Lost are the fields that other managers no longer own because of the patch.
	Lost []kubeedit.Owned `json:"lost,omitempty"`
	// Gained are the fields, as FieldsV1, that ManagerPatch did not own before, and owns after the patch or its undo.
	// The undo removes them from ManagerPatch.
	Gained json.RawMessage `json:"gained,omitempty"`
	// Own are the fields, as FieldsV1, that ManagerPatch owned before and no longer owns because the patch removes
	// them. The undo returns them to ManagerPatch.
	Own json.RawMessage `json:"own,omitempty"`
	// Time is the time at which ManagerPatch last wrote before the patch, and Sum is the hash of the fields that it
	// owned then. Both are empty if it never wrote.
	Time *metav1.Time `json:"time,omitempty"`
	Sum  string       `json:"sum,omitempty"`
}

// ours returns the entry in metadata.managedFields for patches of an object and their undo.
func (o Object) ours() kubeedit.Owned {
	return kubeedit.Owned{
		Manager: ManagerPatch, Operation: string(metav1.ManagedFieldsOperationUpdate), APIVersion: o.APIVersion(),
		Sub: o.Subresource,
	}
}

// foresee asks the API server for the owners after the write. The preview does not show them: fields that an admission
// webhook changes have no owner in the preview, but belong to ManagerPatch after the write, because they are part of
// the patch.
func foresee(
	ctx context.Context, client dynamic.Interface, o Object, before, after *unstructured.Unstructured,
) (*Ownership, error) {
	trial, err := write(ctx, client, o, before, after, metav1.DryRunAll)
	if err != nil {
		return nil, err
	}
	w := ownership(o, before.GetManagedFields(), trial.GetManagedFields())
	if w.validate() != nil { // too large or invalid, so the undo restores only the values
		return nil, nil
	}
	return w, nil
}

// ownership compares the field owners before and after a patch.
func ownership(o Object, before, after []metav1.ManagedFieldsEntry) *Ownership {
	ours := o.ours().Is
	w := &Ownership{Lost: kubeedit.Lost(before, after, ours)}
	had, has := kubeedit.OwnedFields(before, ours), kubeedit.OwnedFields(after, ours)
	gained := has
	for _, lost := range w.Lost {
		// ManagerPatch also owns the fields that the patch removes, once the undo has restored them.
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

// fieldsV1 encodes a set of fields. It returns nil for an empty set.
func fieldsV1(set *fieldpath.Set) json.RawMessage {
	if set.Empty() {
		return nil
	}
	return kubeedit.EncodeFields(set)
}

// validate returns an error for data that no patch produces. Valid data is harmless even if it is forged, because it
// moves only fields that ManagerPatch owns.
func (w *Ownership) validate() error {
	if w == nil {
		return nil
	}
	if size := len(kubeedit.Encode(w)); size == 0 || size > maxOwnership {
		return fmt.Errorf("the list of its field owners is %d bytes; must be 1 to %d", size, maxOwnership)
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
		return errors.New("invalid length of a hash of owned fields")
	}
	return nil
}

// returned returns the managed fields of an object after the undo has restored its values. It returns nil if they do
// not change.
func (w *Ownership) returned(o Object, back restored, now []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	ours := o.ours().Is
	before, after := back.before.GetManagedFields(), back.now.GetManagedFields()
	// The undo itself became the owner of removed values that had no owner, and of values that another client took over
	// in a list that is owned as a whole. Only the client that restored the values knows this. If that client died, its
	// successor has only the record.
	own := kubeedit.ParseFields(w.Own)
	gives := kubeedit.OwnedFields(after, ours).Difference(kubeedit.OwnedFields(before, ours)).Difference(own).
		Union(kubeedit.ParseFields(w.Gained))
	owners := kubeedit.Lost(before, after, ours)
	taken := fieldsOf(owners)
	// A value that remains in the object belongs to the client that wrote it, even if that client used kubectl's name.
	lost := fieldsOf(w.Lost)
	// A restored element contains fields that had no owner, such as defaults.
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
	// The API server ignores a change that affects only timestamps, but stores it together with other changes.
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

// giveBack returns fields, whose values have been restored, to their previous owners. This requires a separate write,
// because a client owns the values that it writes. If this write is lost, the next undo repeats it. giveBack returns a
// message for the user.
func (u undoing) giveBack(ctx context.Context, o Object, back restored) (string, error) {
	w := u.data.Ownership
	if w == nil || back.now == nil {
		return "", nil
	}
	plain := o
	// metadata.managedFields can be written only through the object itself, even though it also contains the entries of
	// subresources.
	plain.Subresource = ""
	verified := false
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
		if !verified {
			err := u.checkSeal(ctx, o, nil)
			if broken := (*seal.BrokenError)(nil); errors.As(err, &broken) {
				said = fmt.Sprintf(
					"; the owners of its fields were not restored, because %s does not have the record's seal",
					broken.Where,
				)
				return nil
			} else if err != nil {
				return err
			}
			verified = true
		}
		_, err = patchAsRead(ctx, u.Dynamic, plain, now,
			map[string]any{"metadata": map[string]any{"managedFields": entries}})
		now = nil // read the object again if another client wrote first
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	// The values are restored, which is the important part. A failing webhook, for example, must not keep the run open.
	// If a request had no response, the next undo determines whether it succeeded.
	if answered := apierrors.APIStatus(nil); errors.As(err, &answered) {
		return fmt.Sprintf("; %s still owns its fields, because the previous owners could not be restored: %v",
			ManagerPatch, err), nil
	}
	return said, err
}
