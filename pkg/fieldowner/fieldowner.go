// Package fieldowner reads who owns the fields of an object (its metadata.managedFields), and gives back what a change
// has taken from its owners. Whoever writes a value becomes its owner, also who only puts a former value back: without
// this, a change that was undone would still be seen, a GitOps tool would not own its fields any more, and its next
// server-side apply could meet conflicts.
package fieldowner

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Owned are fields of an entry of metadata.managedFields: what a field manager has, or had before a change. The first
// four fields tell the entry from others; ledger records hold it as JSON.
type Owned struct {
	Manager    string `json:"manager"`
	Operation  string `json:"operation"`
	APIVersion string `json:"apiVersion"`
	Sub        string `json:"subresource,omitempty"`
	// Time is the entry's, for when it has to be made anew.
	Time *metav1.Time `json:"time,omitempty"`
	// Fields are in the form of metadata.managedFields.
	Fields json.RawMessage `json:"fields"`
}

// Is reports whether an entry is the one that the fields are, or were, in.
func (o Owned) Is(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == o.Manager && string(entry.Operation) == o.Operation && entry.APIVersion == o.APIVersion &&
		entry.Subresource == o.Sub
}

// The API server's limits (ValidateManagedFields).
const (
	maxManager     = 128
	maxSubresource = 256
)

// Validate refuses what no API server would have in an object: records come from a cluster, and may be forged.
func (o Owned) Validate() error {
	switch {
	case o.Operation != string(metav1.ManagedFieldsOperationApply) &&
		o.Operation != string(metav1.ManagedFieldsOperationUpdate):
		return fmt.Errorf("field managers do no %q", o.Operation)
	case o.APIVersion == "":
		return errors.New("a field manager's entry has no apiVersion")
	case len(o.Manager) > maxManager || len(o.Sub) > maxSubresource:
		return errors.New("the name of a field manager or of its subresource is too long")
	}
	return Validate(o.Fields)
}

// Lost returns what the owners before a change do not own any more after it, and lost to `to`, whose own entries do not
// count: what another manager has instead (the API server puts the oldest of many entries together) is no loss.
func Lost(before, after []metav1.ManagedFieldsEntry, to func(metav1.ManagedFieldsEntry) bool) []Owned {
	elsewhere := Set{}
	for _, is := range after {
		if !to(is) {
			elsewhere.Add(fieldsOf(is).Minus(Fields(before, ownedBy(is).Is)))
		}
	}
	var all []Owned
	for _, was := range before {
		if to(was) {
			continue
		}
		o := ownedBy(was)
		if gone := fieldsOf(was).Minus(Fields(after, o.Is)).Minus(elsewhere); len(gone) > 0 {
			o.Fields = gone.Encode()
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

// GiveBack returns entries in which the owners have again what they own and the entries of `from` hold now; what
// another manager has taken since stays with that one. The entries of `from` keep all but what they give; if that is
// nil, they keep nothing. An entry without fields goes. changed reports whether the result differs.
func GiveBack(
	now []metav1.ManagedFieldsEntry, from func(metav1.ManagedFieldsEntry) bool, gives Set, owners []Owned,
) (result []metav1.ManagedFieldsEntry, changed bool) {
	held := Set{}
	for _, entry := range now {
		entry = *entry.DeepCopy()
		if from(entry) {
			fields := fieldsOf(entry)
			held.Add(fields)
			kept := Set{}
			if gives != nil {
				kept = fields.Minus(gives)
			}
			if len(kept) < len(fields) || len(kept) == 0 {
				changed = true
				entry.FieldsV1 = metav1.NewFieldsV1(string(kept.Encode()))
			}
			if len(kept) == 0 {
				continue
			}
		}
		result = append(result, entry)
	}
	for _, o := range owners {
		back := o.set().and(held)
		i := slices.IndexFunc(result, o.Is)
		if i >= 0 {
			back = back.Minus(fieldsOf(result[i]))
		}
		if len(back) == 0 {
			continue
		}
		changed = true
		if i < 0 {
			result = append(result, metav1.ManagedFieldsEntry{
				Manager: o.Manager, Operation: metav1.ManagedFieldsOperationType(o.Operation), APIVersion: o.APIVersion,
				Subresource: o.Sub,
				Time:        o.Time, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{},
			})
			i = len(result) - 1
		}
		back.Add(fieldsOf(result[i]))
		result[i].FieldsV1 = metav1.NewFieldsV1(string(back.Encode()))
	}
	return result, changed
}

func (o Owned) set() Set { return Parse(o.Fields) }

// Without returns the same owner without some fields.
func (o Owned) Without(fields Set) Owned {
	o.Fields = o.set().Minus(fields).Encode()
	return o
}

// ForRequest are entries as an API server takes them: an empty list would be taken for none given, and the former ones
// would stay; one empty entry says that there are none.
func ForRequest(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	if len(entries) == 0 {
		return []metav1.ManagedFieldsEntry{{}}
	}
	return entries
}
