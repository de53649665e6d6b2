package kubeedit

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
)

// skipped are fields that the API server writes.
var skipped = []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"}

// Diff compares two versions of an object, before and after, and returns the edits that convert the first to the
// second. It ignores the fields that the API server writes.
func Diff(before, after map[string]any) []Edit {
	var edits []Edit
	for _, name := range keys(before, after) {
		b, a := before[name], after[name]
		switch name {
		case "status":
			continue
		case "metadata":
			b, a = without(b, skipped), without(a, skipped)
		}
		edits = append(edits, diffValues(Fields(name), b, a, 0)...)
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

// DiffField returns the edits for one field of an object, such as its status.
func DiffField(name string, before, after map[string]any) []Edit {
	return diffValues(Fields(name), before[name], after[name], 0)
}

// diffValues compares the values at a path. made is the number of parents that did not exist before.
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
			if name != "" { // no path can contain an empty name
				edits = append(edits, diffValues(at.Then(Field(name)), bMap[name], aMap[name], made)...)
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

// diffLists compares lists of objects element by element. It returns false for lists that must be compared as a whole.
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
					Edit{Path: at, Element: true, Was: Encode(before[i]), Ours: Encode(after[i]), At: i})
			}
		}
		return edits, !slices.ContainsFunc(edits,
			func(e Edit) bool { return contains(after, Decode(e.Was)) || contains(before, Decode(e.Ours)) })
	}
	// backward, because the undo starts with the last edit and must restore the first element first
	for i, e := range slices.Backward(before) {
		if !contains(after, e) {
			edits = append(edits, Edit{Path: at, Element: true, Was: Encode(e), At: i, Made: made})
		}
	}
	for i, e := range after {
		if !contains(before, e) {
			edits = append(edits, Edit{Path: at, Element: true, Ours: Encode(e), At: i, Made: made})
		}
	}
	return edits, true
}

// inOrder reports whether the elements that occur in both lists have the same order in both.
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
	// backward, because the undo starts with the last edit and must restore the first element first
	for i, e := range slices.Backward(before) {
		if s := stepTo(e); indexOf(after, s) < 0 {
			edits = append(edits, Edit{Path: at.Then(s), Was: Encode(e), At: i, Made: made})
		}
	}
	for _, e := range before {
		s := stepTo(e)
		i := indexOf(after, s)
		switch {
		case i < 0:
		case i < last: // the order differs
			return nil, false
		default:
			last = i
			edits = append(edits, diffValues(at.Then(s), e, after[i], made)...)
		}
	}
	for _, e := range after {
		if s := stepTo(e); indexOf(before, s) < 0 {
			edits = append(edits, Edit{Path: at.Then(s), Ours: Encode(e), Made: made})
		}
	}
	return edits, true
}

func stepTo(element any) Step {
	m, _ := element.(map[string]any)
	name, _ := m["name"].(string)
	return Element("name", name)
}

func areObjects(list []any) bool {
	return !slices.ContainsFunc(list, func(e any) bool { _, ok := e.(map[string]any); return !ok })
}

// named reports whether each element has a unique name.
func named(list []any) bool {
	seen := map[string]bool{}
	for _, e := range list {
		name := stepTo(e).Field
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

// encodeValue returns nil for a missing value.
func encodeValue(value any) json.RawMessage {
	if value == nil {
		return nil
	}
	return Encode(value)
}

// MergePatch compares two objects, from and to, and returns the JSON merge patch (RFC 7386) that converts the first to
// the second. Lists are replaced as a whole.
func MergePatch(from, to map[string]any) map[string]any {
	body := map[string]any{}
	for _, name := range keys(from, to) {
		f, t := from[name], to[name]
		if reflect.DeepEqual(f, t) {
			continue
		}
		fMap, fIsMap := f.(map[string]any)
		tMap, tIsMap := t.(map[string]any)
		if fIsMap && tIsMap {
			body[name] = MergePatch(fMap, tMap)
			continue
		}
		body[name] = t // nil removes the field
	}
	return body
}
