package objects

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Edit is one change of a patch: the smallest part of the object that differs, with its value before and ours.
type Edit struct {
	Path Path `json:"path"`
	// Element says that Was and Ours are elements of the list at Path, which have no names: taints, subjects.
	Element bool `json:"element,omitempty"`
	// Was is the value before, and Ours that of the patch; empty where there was, or is, none.
	Was  json.RawMessage `json:"was,omitempty"`
	Ours json.RawMessage `json:"ours,omitempty"`
	// At is where in its list an element was.
	At int `json:"at,omitempty"`
	// Made is how many objects and lists around it did not exist either: they go with it when nothing else is in them.
	Made int `json:"made,omitempty"`
}

func (e Edit) validate() error {
	valid := func(text json.RawMessage) bool { return len(text) == 0 || json.Valid(text) && string(text) != "null" }
	switch {
	case len(e.Path) == 0 || e.Path[0].Name != "" || len(e.Path) < 2 && e.Path[0].Field == "metadata":
		return fmt.Errorf("%s is no place in an object", e.Path)
	case len(e.Was)+len(e.Ours) == 0 || !valid(e.Was) || !valid(e.Ours):
		return fmt.Errorf("%s: its values make no sense", e.Path)
	case e.Made < 0 || e.Made > len(e.Path) || e.At < 0:
		return fmt.Errorf("%s: its numbers make no sense", e.Path)
	}
	return nil
}

// skipped are fields that the API server writes.
var skipped = []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"}

// diff returns what a patch has changed.
func diff(before, after map[string]any) []Edit {
	var edits []Edit
	for _, name := range keys(before, after) {
		b, a := before[name], after[name]
		switch name {
		case fieldStatus:
			continue
		case "metadata":
			b, a = without(b, skipped), without(a, skipped)
		}
		edits = append(edits, diffValues(Path{{Field: name}}, b, a, 0)...)
	}
	return edits
}

func without(value any, fields []string) any {
	m, ok := value.(map[string]any)
	if !ok {
		return value
	}
	m = maps.Clone(m)
	for _, f := range fields {
		delete(m, f)
	}
	return m
}

// diffValues compares what is at a path. made is how many parents were not there before.
func diffValues(at Path, before, after any, made int) []Edit {
	if reflect.DeepEqual(before, after) {
		return nil
	}
	bMap, bIsMap := before.(map[string]any)
	aMap, aIsMap := after.(map[string]any)
	if (bIsMap || before == nil) && (aIsMap || after == nil) && len(bMap)+len(aMap) > 0 {
		if before == nil {
			made++
		}
		var edits []Edit
		for _, name := range keys(bMap, aMap) {
			if name != "" { // which no path can name
				edits = append(edits, diffValues(at.then(Step{Field: name}), bMap[name], aMap[name], made)...)
			}
		}
		return edits
	}
	bList, bIsList := before.([]any)
	aList, aIsList := after.([]any)
	if (bIsList || before == nil) && (aIsList || after == nil) && len(bList)+len(aList) > 0 {
		if edits, ok := diffLists(at, bList, aList, before == nil, made); ok {
			return edits
		}
	}
	return []Edit{{Path: at, Was: encodeValue(before), Ours: encodeValue(after), Made: made}}
}

// diffLists compares lists of objects element by element. It is not ok for lists that only make sense as a whole.
func diffLists(at Path, before, after []any, isNew bool, made int) ([]Edit, bool) {
	if !areObjects(before) || !areObjects(after) || !areDistinct(before) || !areDistinct(after) {
		return nil, false
	}
	if isNew {
		made++
	}
	if named(before) && named(after) {
		return diffNamed(at, before, after, made)
	}
	if !inOrder(before, after) {
		return nil, false
	}
	var edits []Edit
	if len(before) == len(after) { // in place
		for i := range before {
			if !reflect.DeepEqual(before[i], after[i]) {
				edits = append(edits,
					Edit{Path: at, Element: true, Was: encode(before[i]), Ours: encode(after[i]), At: i})
			}
		}
		return edits, !slices.ContainsFunc(edits,
			func(e Edit) bool { return contains(after, decode(e.Was)) || contains(before, decode(e.Ours)) })
	}
	// So that the undo, which begins with the last edit, puts back the first first
	for i, e := range slices.Backward(before) {
		if !contains(after, e) {
			edits = append(edits, Edit{Path: at, Element: true, Was: encode(e), At: i, Made: made})
		}
	}
	for i, e := range after {
		if !contains(before, e) {
			edits = append(edits, Edit{Path: at, Element: true, Ours: encode(e), At: i, Made: made})
		}
	}
	return edits, true
}

// inOrder reports whether what is in both lists has the same order in both.
func inOrder(before, after []any) bool {
	last := -1
	for _, e := range before {
		i := slices.IndexFunc(after, func(v any) bool { return reflect.DeepEqual(v, e) })
		if i >= 0 && i < last {
			return false
		}
		last = max(last, i)
	}
	return true
}

func areDistinct(list []any) bool {
	for i, e := range list {
		if contains(list[:i], e) {
			return false
		}
	}
	return true
}

func diffNamed(at Path, before, after []any, made int) ([]Edit, bool) {
	var edits []Edit
	last := -1
	// So that the undo, which begins with the last edit, puts back the first first
	for i, e := range slices.Backward(before) {
		if s := stepTo(e); place(after, s) < 0 {
			edits = append(edits, Edit{Path: at.then(s), Was: encode(e), At: i, Made: made})
		}
	}
	for _, e := range before {
		s := stepTo(e)
		i := place(after, s)
		switch {
		case i < 0:
		case i < last: // another order
			return nil, false
		default:
			last = i
			edits = append(edits, diffValues(at.then(s), e, after[i], made)...)
		}
	}
	for _, e := range after {
		if s := stepTo(e); place(before, s) < 0 {
			edits = append(edits, Edit{Path: at.then(s), Ours: encode(e), Made: made})
		}
	}
	return edits, true
}

func stepTo(element any) Step {
	m, _ := element.(map[string]any)
	name, _ := m["name"].(string)
	return Step{Name: name}
}

func areObjects(list []any) bool {
	return !slices.ContainsFunc(list, func(e any) bool { _, ok := e.(map[string]any); return !ok })
}

// named reports whether each element has a name of its own.
func named(list []any) bool {
	seen := map[string]bool{}
	for _, e := range list {
		name := stepTo(e).Name
		if name == "" || seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

func contains(list []any, value any) bool {
	return slices.ContainsFunc(list, func(v any) bool { return reflect.DeepEqual(v, value) })
}

func keys(a, b map[string]any) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func encodeValue(value any) json.RawMessage {
	if value == nil {
		return nil
	}
	return encode(value)
}

// decode reads a value as the API server's objects are read: whole numbers are int64. It is nil for none.
func decode(text json.RawMessage) any {
	if len(text) == 0 {
		return nil
	}
	var value any
	if err := utiljson.Unmarshal(text, &value); err != nil { // was validated
		return nil
	}
	return value
}
