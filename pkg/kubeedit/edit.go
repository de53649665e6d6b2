// Package kubeedit changes Kubernetes objects so that each change can be reverted later, even if others have changed
// the objects in the meantime.
//
// An Edit is one change as data, for the ledger. Put and Append make edits in an object in memory, and Diff finds the
// edits that a patch makes. TakeBack reverts an edit unless it has been overwritten: a three-way merge of one value.
// The other half of an undo is the ownership of fields (owners.go): a client that writes a value, even a previous one,
// becomes its owner in metadata.managedFields.
//
// The package works on objects in memory. Its callers read and write them.
package kubeedit

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Edit is one change to an object: the smallest part that differs, with its value before and after.
type Edit struct {
	Path Path `json:"path"`
	// Element reports whether Was and Ours are elements of the list at Path. This is the case if the elements have no
	// key, as in lists of taints and subjects.
	Element bool `json:"element,omitempty"`
	// Was is the value before the edit. It is empty if the edit adds a value.
	Was json.RawMessage `json:"was,omitempty"`
	// Ours is the value after the edit, with the API server's defaults. It is empty if the edit removes a value.
	Ours json.RawMessage `json:"ours,omitempty"`
	// At is the previous index of a removed element.
	At int `json:"at,omitempty"`
	// Made is the number of objects and lists around the value that the edit created. They are removed with the value
	// if they are otherwise empty.
	Made int `json:"made,omitempty"`
}

// Validate returns an error for an edit that this package never creates, because records come from the cluster.
func (e Edit) Validate() error {
	valid := func(text json.RawMessage) bool { return len(text) == 0 || json.Valid(text) && string(text) != "null" }
	switch {
	case len(e.Path) == 0 || e.Path[0].Key != "" || e.Path[0].IsIndex() ||
		len(e.Path) < 2 && e.Path[0].Field == "metadata":
		return fmt.Errorf("invalid path in an edit: %q", e.Path)
	case len(e.Was)+len(e.Ours) == 0 || !valid(e.Was) || !valid(e.Ours):
		return fmt.Errorf("%s: invalid values in an edit", e.Path)
	case e.Made < 0 || e.Made > len(e.Path) || e.At < 0:
		return fmt.Errorf("%s: index or count out of range in an edit", e.Path)
	}
	return nil
}

// Put sets the value at a path and creates the missing objects, lists and keyed elements around it.
func Put(object map[string]any, at Path, value any) (Edit, error) {
	edit := Edit{Path: at, Ours: Encode(value)}
	value = Decode(edit.Ours) // the object must not share memory with the caller's value
	if was, ok := Get(object, at); ok && was != nil {
		edit.Was = Encode(was)
		if !Replace(object, at, value) {
			return edit, fmt.Errorf("%s cannot be replaced", at)
		}
		return edit, nil
	}
	first := missing(object, at)
	edit.Made = len(at) - first - 1
	return edit, add(object, at[:first+1], wrap(at[first:], value))
}

// Append adds an element to the list at a path and creates the missing objects, lists and keyed elements around it.
func Append(object map[string]any, at Path, value any) (Edit, error) {
	edit := Edit{Path: at, Element: true, Ours: Encode(value)}
	value = Decode(edit.Ours)
	if list, ok := Get(object, at); ok && list != nil {
		return edit, add(object, at.Then(Step{Index: len(List(object, at))}), value)
	}
	first := missing(object, at)
	edit.Made = len(at) - first
	return edit, add(object, at[:first+1], wrap(at[first:], []any{value}))
}

// missing returns the index of the first step in a path that does not exist.
func missing(object map[string]any, at Path) int {
	for i := range at {
		if value, ok := Get(object, at[:i+1]); !ok || value == nil {
			return i
		}
	}
	return len(at) - 1
}

// wrap returns a value for the first step of a path. The remaining steps lead from this value to the given value.
func wrap(steps Path, value any) any {
	for i := len(steps) - 1; i > 0; i-- {
		if steps[i].Key != "" {
			value = []any{keyed(steps[i], value)}
		} else {
			value = map[string]any{steps[i].Field: value}
		}
	}
	return keyed(steps[0], value)
}

// keyed adds to a list element the key by which steps find the element.
func keyed(s Step, value any) any {
	if m, ok := value.(map[string]any); ok && s.Key != "" {
		m[s.Key] = s.Field
	}
	return value
}

// add adds a field to an object, or an element to the end of a list.
func add(object map[string]any, at Path, value any) error {
	last := at[len(at)-1]
	parent, _ := Get(object, at[:len(at)-1])
	switch parent := parent.(type) {
	case map[string]any:
		if last.Key != "" || last.IsIndex() {
			return fmt.Errorf("%s is not a list", at[:len(at)-1])
		}
		parent[last.Field] = value
		return nil
	case []any:
		if last.Key == "" && !last.IsIndex() {
			return fmt.Errorf("%s is not an object", at[:len(at)-1])
		}
		Replace(object, at[:len(at)-1], append(slices.Clone(parent), value))
		return nil
	}
	return fmt.Errorf("%s is neither an object nor a list", at[:len(at)-1])
}

// TakeBack restores the value that an object had before an edit if the object still contains the value after the edit.
// changed reports whether the object now differs; theirs reports whether another client has changed the value, which is
// then kept.
func (e Edit) TakeBack(object map[string]any) (changed, theirs bool) {
	was, ours := Decode(e.Was), Decode(e.Ours)
	if e.Element {
		return e.takeBackElement(object, was, ours)
	}
	now, _ := Get(object, e.Path)
	switch {
	case reflect.DeepEqual(now, was):
		return false, false
	case !reflect.DeepEqual(now, ours) && !e.zeroed(now):
		return false, true
	case was != nil:
		return e.restore(object, now, was)
	}
	Remove(object, e.Path)
	e.Prune(object)
	return true, false
}

// zeroed reports whether a kubelet has set the count of one of our devices to zero. This happens when a device plugin
// was registered and removed, and on a node whose device plugin directory is empty at startup (setters.go and
// reconcileExtendedResource in kubelet_node_status.go). If the zero is intentional, the kubelet writes it again.
func (e Edit) zeroed(now any) bool { return e.Path[0].Field == "status" && now == "0" }

// restore sets the previous value. An element with a key returns to its previous index.
func (e Edit) restore(object map[string]any, now, was any) (changed, theirs bool) {
	at, value := e.Path, was
	if e.Path[len(e.Path)-1].Key != "" && now == nil {
		at = e.Path[:len(e.Path)-1]
		around, _ := Get(object, at)
		list, isList := around.([]any)
		if around != nil && !isList {
			return false, true
		}
		value = slices.Insert(slices.Clone(list), min(e.At, len(list)), was)
	}
	if !restoreAt(object, at, value) {
		return false, true
	}
	return true, false
}

// restoreAt sets a value and creates the missing objects around it, but no list elements, because another client has
// removed them.
func restoreAt(object map[string]any, at Path, value any) bool {
	for len(at) > 1 {
		if parent, ok := Get(object, at[:len(at)-1]); ok && parent != nil {
			break
		}
		last := at[len(at)-1]
		if last.Key != "" || last.IsIndex() {
			return false
		}
		at, value = at[:len(at)-1], map[string]any{last.Field: value}
	}
	return Replace(object, at, value)
}

func (e Edit) takeBackElement(object map[string]any, was, ours any) (changed, theirs bool) {
	now, _ := Get(object, e.Path)
	list, isList := now.([]any)
	if now != nil && !isList {
		return false, true
	}
	i := slices.IndexFunc(list, func(v any) bool { return ours != nil && reflect.DeepEqual(v, ours) })
	list = slices.Clone(list)
	switch {
	case i >= 0 && was != nil && !contains(list, was):
		list[i] = was
	case i >= 0: // also if the previous element is in the list in addition to ours
		list = slices.Delete(list, i, i+1)
	case was == nil || contains(list, was):
		return false, false
	case ours != nil: // neither element exists any more
		return false, true
	default:
		list = slices.Insert(list, min(e.At, len(list)), was)
	}
	if !restoreAt(object, e.Path, list) {
		return false, true
	}
	e.Prune(object)
	return true, false
}

// Prune removes the objects and lists around an edit that the edit created and that are now empty. It reports whether
// it removed any.
func (e Edit) Prune(object map[string]any) (changed bool) {
	at := e.Path
	if !e.Element {
		at = at[:len(at)-1]
	}
	for n := 0; n < e.Made && len(at) > 0; n++ {
		now, ok := Get(object, at)
		if ok && !isEmpty(now, at[len(at)-1]) {
			break
		}
		changed = Remove(object, at) || changed
		at = at[:len(at)-1]
	}
	return changed
}

// isEmpty reports whether a value contains nothing except the key by which the step finds it.
func isEmpty(value any, at Step) bool {
	switch value := value.(type) {
	case map[string]any:
		_, hasKey := value[at.Key]
		return len(value) == 0 || at.Key != "" && len(value) == 1 && hasKey
	case []any:
		return len(value) == 0
	}
	return value == nil
}

// Encode returns a value as JSON with sorted fields.
func Encode(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil { // values of the API server can always be encoded
		return nil
	}
	return text
}

// Decode returns a value with the types in the API server's objects: integers are int64. It returns nil for empty text
// and for invalid JSON.
func Decode(text json.RawMessage) any {
	if len(text) == 0 {
		return nil
	}
	var value any
	if err := utiljson.Unmarshal(text, &value); err != nil {
		return nil
	}
	return value
}

// Same reports whether a value is equal to the value in a JSON text, regardless of the types of its numbers.
func Same(value any, text json.RawMessage) bool {
	return json.Valid(text) && reflect.DeepEqual(Decode(Encode(value)), Decode(text))
}
