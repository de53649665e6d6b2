package workload

import (
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Owned is what a field manager lost to us when we changed values of its own.
type Owned struct {
	Manager    string       `json:"manager"`
	Operation  string       `json:"operation"`
	APIVersion string       `json:"apiVersion"`
	Sub        string       `json:"subresource,omitempty"`
	Time       *metav1.Time `json:"time,omitempty"`
	// Fields are in the form of metadata.managedFields.
	Fields json.RawMessage `json:"fields"`
}

func (o Owned) is(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == o.Manager && string(entry.Operation) == o.Operation && entry.APIVersion == o.APIVersion && entry.Subresource == o.Sub
}

// isOurs is whether an entry is of our changes.
func isOurs(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == FieldManager && entry.Subresource == ""
}

// lost is what the managers of `before` do not own any more.
func lost(before, after []metav1.ManagedFieldsEntry) []Owned {
	var all []Owned
	for _, was := range before {
		o := Owned{Manager: was.Manager, Operation: string(was.Operation), APIVersion: was.APIVersion, Sub: was.Subresource, Time: was.Time}
		if isOurs(was) || was.Subresource != "" {
			continue
		}
		still := fieldSet{}
		for _, is := range after {
			if o.is(is) {
				still = fieldsOf(is)
			}
		}
		gone := fieldsOf(was)
		for member := range still {
			delete(gone, member)
		}
		if len(gone) > 0 {
			o.Fields = gone.encode()
			all = append(all, o)
		}
	}
	return all
}

// giveBack returns managed fields without us, in which the former owners have again what they lost to us. What another manager has taken
// since stays with that one. changed is whether there was anything of ours.
func giveBack(now []metav1.ManagedFieldsEntry, owned []Owned) (result []metav1.ManagedFieldsEntry, changed bool) {
	held := fieldSet{}
	for _, entry := range now {
		if isOurs(entry) {
			changed = true
			for member := range fieldsOf(entry) {
				held[member] = true
			}
			continue
		}
		result = append(result, *entry.DeepCopy())
	}
	for _, o := range owned {
		back := fieldSet{}
		for member := range parse(o.Fields) {
			if held[member] {
				back[member] = true
			}
		}
		if len(back) == 0 {
			continue
		}
		i := slices.IndexFunc(result, o.is)
		if i < 0 {
			result = append(result, metav1.ManagedFieldsEntry{
				Manager: o.Manager, Operation: metav1.ManagedFieldsOperationType(o.Operation), APIVersion: o.APIVersion, Subresource: o.Sub,
				Time: o.Time, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{},
			})
			i = len(result) - 1
		}
		for member := range fieldsOf(result[i]) {
			back[member] = true
		}
		result[i].FieldsV1 = metav1.NewFieldsV1(string(back.encode()))
	}
	return result, changed
}

// fieldSet is a set of fields: each member is the way to it, its steps joined.
type fieldSet map[string]bool

const stepEnd = "\x00"

func fieldsOf(entry metav1.ManagedFieldsEntry) fieldSet {
	if entry.FieldsV1 == nil {
		return fieldSet{}
	}
	return parse(entry.FieldsV1.GetRawBytes())
}

// parse reads FieldsV1: nested objects, in which a leaf is empty, and "." stands for a field that has owned ones below it.
func parse(raw []byte) fieldSet {
	set := fieldSet{}
	var tree map[string]any
	if json.Unmarshal(raw, &tree) != nil {
		return set
	}
	set.collect("", tree)
	return set
}

func (f fieldSet) collect(prefix string, tree map[string]any) {
	for name, below := range tree {
		children, _ := below.(map[string]any)
		switch {
		case name == ".":
			f[prefix] = true
		case len(children) == 0:
			f[prefix+name+stepEnd] = true
		default:
			f.collect(prefix+name+stepEnd, children)
		}
	}
}

func (f fieldSet) encode() json.RawMessage {
	tree := map[string]any{}
	for member := range f {
		at := tree
		for step := range strings.SplitSeq(strings.TrimSuffix(member, stepEnd), stepEnd) {
			next, ok := at[step].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[step] = next
			}
			at = next
		}
	}
	for member := range f { // a member with others below it says so
		at := tree
		for step := range strings.SplitSeq(strings.TrimSuffix(member, stepEnd), stepEnd) {
			at, _ = at[step].(map[string]any)
		}
		if len(at) > 0 {
			at["."] = map[string]any{}
		}
	}
	return encode(tree)
}
