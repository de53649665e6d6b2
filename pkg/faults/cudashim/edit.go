package cudashim

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Edit is one change of ours to an object: data, enough to take it back.
type Edit struct {
	Path Path `json:"path"`
	// Element reports whether Ours was appended to the list at Path, whose elements have no key; else Ours is the value
	// at Path.
	Element bool `json:"element,omitempty"`
	// Was is the value before; empty when there was none.
	Was json.RawMessage `json:"was,omitempty"`
	// Ours is our value as the API server stores it, its defaults included.
	Ours json.RawMessage `json:"ours"`
	// Made is how many objects and lists around it did not exist either: they go with it when nothing else is in them.
	Made int `json:"made,omitempty"`
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// patcher changes an object in memory and notes the JSON patch that does the same to the API server's.
type patcher struct {
	object map[string]any // its own
	ops    []operation
}

// set puts a value at a path and returns the edit that it was. What is missing around it is made.
func (p *patcher) set(at Path, value any) (Edit, error) {
	edit := Edit{Path: at, Ours: encode(value)}
	if was, ok := get(p.object, at); ok && was != nil {
		edit.Was = encode(was)
		return edit, p.write("replace", at, value)
	}
	missing := p.missing(at)
	edit.Made = len(at) - missing - 1
	return edit, p.write("add", at[:missing+1], wrap(at[missing:], value))
}

// add appends a value to the list at a path.
func (p *patcher) add(at Path, value any) (Edit, error) {
	edit := Edit{Path: at, Element: true, Ours: encode(value)}
	if list, ok := get(p.object, at); ok && list != nil {
		return edit, p.write("add", at.then(Step{Index: len(getList(p.object, at))}), value)
	}
	missing := p.missing(at)
	edit.Made = len(at) - missing
	return edit, p.write("add", at[:missing+1], wrap(at[missing:], []any{value}))
}

// missing returns the first step of a path that does not exist.
func (p *patcher) missing(at Path) int {
	for i := range at {
		if value, ok := get(p.object, at[:i+1]); !ok || value == nil {
			return i
		}
	}
	return len(at) - 1
}

// wrap returns the value that has to be put at the first step so that all steps lead to the value.
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

// keyed gives an element of a list the key that it is found by.
func keyed(s Step, value any) any {
	if m, ok := value.(map[string]any); ok && s.Key != "" {
		m[s.Key] = s.Field
	}
	return value
}

// remove takes out the value at a path.
func (p *patcher) remove(at Path) error { return p.write("remove", at, nil) }

// isEmpty reports whether nothing is left of an object or a list but the key that it is found by.
func isEmpty(value any, at Path) bool {
	switch value := value.(type) {
	case map[string]any:
		_, keyed := value[at[len(at)-1].Key]
		return len(value) == 0 || len(value) == 1 && keyed
	case []any:
		return len(value) == 0
	}
	return false
}

// write does one operation, in memory and in the patch.
func (p *patcher) write(op string, at Path, value any) error {
	pointer, err := p.pointer(at)
	if err != nil {
		return err
	}
	o := operation{Op: op, Path: pointer}
	if op != "remove" { // copied, since the object goes on changing
		o.Value = encode(value)
		if value, err = decode(o.Value); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	last := at[len(at)-1]
	var changed any
	parent, _ := get(p.object, at[:len(at)-1])
	switch parent := parent.(type) {
	case map[string]any:
		if op == "remove" {
			delete(parent, last.Field)
		} else {
			parent[last.Field] = value
		}
	case []any:
		i, there := place(parent, last)
		switch {
		case op == "remove" && there:
			changed = append(append(make([]any, 0, len(parent)), parent[:i]...), parent[i+1:]...)
		case op == "replace" && there:
			parent[i] = value
		case op == "add":
			changed = append(append(make([]any, 0, len(parent)+1), parent...), value)
		default:
			return fmt.Errorf("%s: there is nothing", at)
		}
	}
	if changed != nil {
		if err := p.relink(at[:len(at)-1], changed); err != nil {
			return err
		}
	}
	p.ops = append(p.ops, o)
	return nil
}

// relink puts a list that has grown or shrunk in the place of the old one.
func (p *patcher) relink(at Path, list any) error {
	if len(at) == 0 {
		return fmt.Errorf("an object is no list")
	}
	parent, _ := get(p.object, at[:len(at)-1])
	switch parent := parent.(type) {
	case map[string]any:
		parent[at[len(at)-1].Field] = list
	case []any:
		i, ok := place(parent, at[len(at)-1])
		if !ok {
			return fmt.Errorf("%s: there is nothing", at)
		}
		parent[i] = list
	}
	return nil
}

// pointer returns a path as JSON patches write it (RFC 6901). All but its last step must exist.
func (p *patcher) pointer(at Path) (string, error) {
	var text strings.Builder
	for i, s := range at {
		parent, _ := get(p.object, at[:i])
		switch parent := parent.(type) {
		case map[string]any:
			if s.Key != "" || s.isIndex() {
				return "", fmt.Errorf("%s is not a list", at[:i])
			}
			text.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(s.Field))
		case []any:
			j, ok := place(parent, s)
			switch {
			case ok:
				fmt.Fprintf(&text, "/%d", j)
			case i == len(at)-1:
				text.WriteString("/-")
			default:
				return "", fmt.Errorf("%s: there is nothing", at[:i+1])
			}
		default:
			return "", fmt.Errorf("%s is neither an object nor a list", at[:i])
		}
	}
	return text.String(), nil
}

// encode writes a value as JSON, its fields sorted. What comes from the API server can always be written.
func encode(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	return text
}

// decode reads a value as the API server's objects are read: whole numbers are int64.
func decode(text json.RawMessage) (any, error) {
	var value any
	err := utiljson.Unmarshal(text, &value)
	return value, err
}

// same reports whether a value is what the JSON says.
func same(value any, text json.RawMessage) bool {
	other, err := decode(text)
	if err != nil {
		return false
	}
	again, err := decode(encode(value)) // numbers of the same kind
	return err == nil && reflect.DeepEqual(again, other)
}
