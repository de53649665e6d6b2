package kubeedit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Owned contains fields in an entry of metadata.managedFields that a manager owns, or owned before a change. The first
// four fields identify the entry. Ledger records contain it as JSON.
type Owned struct {
	Manager    string `json:"manager"`
	Operation  string `json:"operation"`
	APIVersion string `json:"apiVersion"`
	Sub        string `json:"subresource,omitempty"`
	// Time is the time in the entry, in case the entry must be recreated.
	Time *metav1.Time `json:"time,omitempty"`
	// Fields are in the format of metadata.managedFields.
	Fields json.RawMessage `json:"fields"`
}

// Is reports whether the fields belong to an entry.
func (o Owned) Is(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == o.Manager && string(entry.Operation) == o.Operation && entry.APIVersion == o.APIVersion &&
		entry.Subresource == o.Sub
}

// The API server's limits (ValidateManagedFields).
const (
	maxManager     = 128
	maxSubresource = 256
)

// Validate returns an error for data that no API server stores: records come from a cluster and can be forged.
func (o Owned) Validate() error {
	switch {
	case o.Operation != string(metav1.ManagedFieldsOperationApply) &&
		o.Operation != string(metav1.ManagedFieldsOperationUpdate):
		return fmt.Errorf("invalid operation in a managed fields entry: %q", o.Operation)
	case o.APIVersion == "":
		return errors.New("a managed fields entry has no apiVersion")
	case len(o.Manager) > maxManager || len(o.Sub) > maxSubresource:
		return errors.New("the name of a field manager or subresource is too long")
	}
	return ValidateFields(o.Fields)
}

// ValidateFields returns an error for JSON that is not FieldsV1, or contains no fields.
func ValidateFields(raw []byte) error {
	set := fieldpath.Set{}
	if err := set.FromJSON(bytes.NewReader(raw)); err != nil {
		return fmt.Errorf("decode owned fields: %w", err)
	}
	if set.Empty() {
		return errors.New("owned fields are empty")
	}
	return nil
}

// ParseFields returns the fields in FieldsV1. For invalid JSON, it returns no fields.
func ParseFields(raw []byte) *fieldpath.Set {
	set := fieldpath.Set{}
	if set.FromJSON(bytes.NewReader(raw)) != nil {
		return &fieldpath.Set{}
	}
	return &set
}

// EncodeFields returns fields as FieldsV1.
func EncodeFields(set *fieldpath.Set) json.RawMessage {
	text, err := set.ToJSON()
	if err != nil { // sets that were parsed can always be encoded
		return nil
	}
	return text
}

// SumFields returns the SHA-256 digest of fields in hexadecimal.
func SumFields(set *fieldpath.Set) string {
	sum := sha256.Sum256(EncodeFields(set))
	return hex.EncodeToString(sum[:])
}

// OwnedFields returns the fields of all entries that match.
func OwnedFields(
	entries []metav1.ManagedFieldsEntry, match func(metav1.ManagedFieldsEntry) bool,
) *fieldpath.Set {
	set := &fieldpath.Set{}
	for _, entry := range entries {
		if match(entry) {
			set = set.Union(fieldsOf(entry))
		}
	}
	return set
}

func fieldsOf(entry metav1.ManagedFieldsEntry) *fieldpath.Set {
	if entry.FieldsV1 == nil {
		return &fieldpath.Set{}
	}
	return ParseFields(entry.FieldsV1.GetRawBytes())
}

// FieldsBelow returns the fields at and below a path.
func FieldsBelow(set *fieldpath.Set, at Path) *fieldpath.Set { return below(set, at.managed()) }

func below(set *fieldpath.Set, prefix fieldpath.Path) *fieldpath.Set {
	found := &fieldpath.Set{}
	for p := range set.All() {
		if len(p) >= len(prefix) && p[:len(prefix)].Equals(prefix) {
			found.Insert(p)
		}
	}
	return found
}

// FieldsOfElements returns the fields of a set that are part of one of the given list elements.
func FieldsOfElements(set, elements *fieldpath.Set) *fieldpath.Set {
	found := &fieldpath.Set{}
	for p := range elements.All() {
		if p[len(p)-1].Key != nil {
			found = found.Union(below(set, p))
		}
	}
	return found
}

// FieldsAround returns the objects, lists and elements that contain the fields. A client that restores a removed value
// together with its parents also owns the parents; a client that had set the value with server-side apply did not own
// them.
func FieldsAround(set *fieldpath.Set) *fieldpath.Set {
	around := &fieldpath.Set{}
	for p := range set.All() {
		for n := 1; n < len(p); n++ {
			around.Insert(p[:n])
		}
	}
	return around
}

// Lost returns the fields that owners no longer own after a change, because the entries that match `to` own them now.
// Fields that another manager took over are not lost: if there are many entries, the API server merges the oldest.
func Lost(before, after []metav1.ManagedFieldsEntry, to func(metav1.ManagedFieldsEntry) bool) []Owned {
	elsewhere := &fieldpath.Set{}
	for _, is := range after {
		if !to(is) {
			elsewhere = elsewhere.Union(fieldsOf(is).Difference(OwnedFields(before, ownedBy(is).Is)))
		}
	}
	var all []Owned
	for _, was := range before {
		if to(was) {
			continue
		}
		o := ownedBy(was)
		lost := fieldsOf(was).Difference(OwnedFields(after, o.Is)).Difference(elsewhere)
		if !lost.Empty() {
			o.Fields = EncodeFields(lost)
			all = append(all, o)
		}
	}
	return all
}

func ownedBy(entry metav1.ManagedFieldsEntry) Owned {
	return Owned{
		Manager: entry.Manager, Operation: string(entry.Operation), APIVersion: entry.APIVersion,
		Sub: entry.Subresource, Time: entry.Time,
	}
}

// GiveBack returns entries in which the owners own their fields again, unless the entries that match `from` no longer
// own them. Fields that another manager has taken in the meantime stay with that manager. The matching entries lose the
// fields in gives; if gives is nil, they lose all fields. Entries without fields are removed. changed reports whether
// the result differs.
func GiveBack(
	now []metav1.ManagedFieldsEntry, from func(metav1.ManagedFieldsEntry) bool, gives *fieldpath.Set, owners []Owned,
) (result []metav1.ManagedFieldsEntry, changed bool) {
	held := &fieldpath.Set{}
	for _, entry := range now {
		entry = *entry.DeepCopy()
		if from(entry) {
			fields := fieldsOf(entry)
			held = held.Union(fields)
			kept := &fieldpath.Set{}
			if gives != nil {
				kept = fields.Difference(gives)
			}
			if kept.Empty() {
				changed = true
				continue
			}
			if kept.Size() < fields.Size() {
				changed = true
				entry.FieldsV1 = fieldsV1(kept)
			}
		}
		result = append(result, entry)
	}
	for _, o := range owners {
		back := o.set().Intersection(held)
		i := slices.IndexFunc(result, o.Is)
		if i >= 0 {
			back = back.Difference(fieldsOf(result[i]))
		}
		if back.Empty() {
			continue
		}
		changed = true
		if i < 0 {
			result = append(result, metav1.ManagedFieldsEntry{
				Manager: o.Manager, Operation: metav1.ManagedFieldsOperationType(o.Operation), APIVersion: o.APIVersion,
				Subresource: o.Sub, Time: o.Time, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{},
			})
			i = len(result) - 1
		}
		result[i].FieldsV1 = fieldsV1(back.Union(fieldsOf(result[i])))
	}
	return result, changed
}

func fieldsV1(set *fieldpath.Set) *metav1.FieldsV1 {
	return metav1.NewFieldsV1(string(EncodeFields(set)))
}

func (o Owned) set() *fieldpath.Set { return ParseFields(o.Fields) }

// Without returns the same owner without the given fields.
func (o Owned) Without(fields *fieldpath.Set) Owned {
	o.Fields = EncodeFields(o.set().Difference(fields))
	return o
}

// EntriesForRequest returns entries in a form that an API server accepts. The API server ignores an empty list and
// would keep the previous entries, so a list with one empty entry means that there are none.
func EntriesForRequest(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	if len(entries) == 0 {
		return []metav1.ManagedFieldsEntry{{}}
	}
	return entries
}
