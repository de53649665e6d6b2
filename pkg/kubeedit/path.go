package kubeedit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Path is a path from the root of an object.
type Path []Step

// Step is one step in a path: a field, or a list element, identified by the value of one of its fields or by its index.
type Step struct {
	// Field is the name of a field. If Key is set, Field is instead the value that the element has in the field named
	// by Key.
	Field string
	// Key is the field that identifies the elements of a list: name, mountPath, groupName. If several elements have the
	// same value, the step refers to the last one, because the last environment variable with a name takes effect.
	Key string
	// Index is the index of an element in a list whose elements have no such field; Field and Key are then empty.
	Index int
}

// Field returns the step to a field of an object.
func Field(name string) Step { return Step{Field: name} }

// Element returns the step to the list element whose field key has the given value.
func Element(key, value string) Step { return Step{Key: key, Field: value} }

// Fields returns a path that consists of fields.
func Fields(names ...string) Path {
	steps := make(Path, len(names))
	for i, name := range names {
		steps[i] = Field(name)
	}
	return steps
}

// IsIndex reports whether the step is an index of a list.
func (s Step) IsIndex() bool { return s.Field == "" && s.Key == "" }

// Then returns the path p followed by the given steps. The result never shares memory with p.
func (p Path) Then(steps ...Step) Path { return slices.Concat(p, steps) }

// HasPrefix reports whether the path equals the prefix or is below it.
func (p Path) HasPrefix(prefix Path) bool {
	return len(p) >= len(prefix) && slices.Equal(p[:len(prefix)], prefix)
}

// String returns the path for display: spec.template.spec.containers[name=main].env[name=LD_PRELOAD].value.
func (p Path) String() string {
	var text strings.Builder
	for i, s := range p {
		switch {
		case s.Key != "":
			fmt.Fprintf(&text, "[%s=%s]", s.Key, s.Field)
		case s.IsIndex():
			fmt.Fprintf(&text, "[%d]", s.Index)
		case strings.ContainsAny(s.Field, ".[]/"):
			fmt.Fprintf(&text, "[%q]", s.Field)
		default:
			if i > 0 {
				text.WriteByte('.')
			}
			text.WriteString(s.Field)
		}
	}
	return text.String()
}

// managed returns the path in the format of metadata.managedFields.
func (p Path) managed() fieldpath.Path {
	all := make(fieldpath.Path, len(p))
	for i, s := range p {
		switch {
		case s.Key != "":
			all[i] = fieldpath.KeyElementByFields(s.Key, s.Field)
		case s.IsIndex():
			all[i] = fieldpath.IndexElement(s.Index)
		default:
			all[i] = fieldpath.FieldNameElement(s.Field)
		}
	}
	return all
}

// MarshalJSON encodes a field as a string, an element with a key as {"name":"main"}, and an element with an index as a
// number.
func (s Step) MarshalJSON() ([]byte, error) {
	switch {
	case s.Key != "":
		return json.Marshal(map[string]string{s.Key: s.Field})
	case s.IsIndex():
		return json.Marshal(s.Index)
	default:
		return json.Marshal(s.Field)
	}
}

// UnmarshalJSON decodes the output of MarshalJSON, and nothing else.
func (s *Step) UnmarshalJSON(data []byte) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return err
	}
	switch value := value.(type) {
	case string:
		if value != "" {
			*s = Field(value)
			return nil
		}
	case float64:
		if value >= 0 && value == float64(int(value)) {
			*s = Step{Index: int(value)}
			return nil
		}
	case map[string]any:
		for key, v := range value {
			if v, ok := v.(string); ok && len(value) == 1 && key != "" {
				*s = Element(key, v)
				return nil
			}
		}
	}
	return fmt.Errorf("invalid step in a path: %s", data)
}

// Get returns the value at a path, which still belongs to the object.
func Get(object any, p Path) (any, bool) {
	for _, s := range p {
		switch value := object.(type) {
		case map[string]any:
			next, ok := value[s.Field]
			if s.Key != "" || s.IsIndex() || !ok {
				return nil, false
			}
			object = next
		case []any:
			i := indexOf(value, s)
			if i < 0 {
				return nil, false
			}
			object = value[i]
		default:
			return nil, false
		}
	}
	return object, true
}

// Map returns the object at a path. If the value is missing or is not an object, it returns nil, which can be read like
// an empty map.
func Map(object any, p Path) map[string]any {
	value, _ := Get(object, p)
	m, _ := value.(map[string]any)
	return m
}

// List returns the list at a path, or nil.
func List(object any, p Path) []any {
	value, _ := Get(object, p)
	l, _ := value.([]any)
	return l
}

// Text returns the string at a path, or "".
func Text(object any, p Path) string {
	value, _ := Get(object, p)
	s, _ := value.(string)
	return s
}

// indexOf returns the index of an element in a list, or -1.
func indexOf(list []any, s Step) int {
	switch {
	case s.IsIndex():
		if s.Index < len(list) {
			return s.Index
		}
	case s.Key != "":
		for i, e := range slices.Backward(list) {
			if m, ok := e.(map[string]any); ok && m[s.Key] == s.Field {
				return i
			}
		}
	}
	return -1
}

// Replace sets the value of a field in an existing object, or of an existing element. It reports whether the value was
// set.
func Replace(object map[string]any, p Path, value any) bool {
	last := p[len(p)-1]
	parent, _ := Get(object, p[:len(p)-1])
	switch parent := parent.(type) {
	case map[string]any:
		if last.Key != "" || last.IsIndex() {
			return false
		}
		parent[last.Field] = value
		return true
	case []any:
		if i := indexOf(parent, last); i >= 0 {
			parent[i] = value
			return true
		}
	}
	return false
}

// Remove removes the value at a path. It reports whether the value existed.
func Remove(object map[string]any, p Path) bool {
	last := p[len(p)-1]
	parent, _ := Get(object, p[:len(p)-1])
	switch parent := parent.(type) {
	case map[string]any:
		_, ok := parent[last.Field]
		if ok = ok && last.Key == "" && !last.IsIndex(); ok {
			delete(parent, last.Field)
		}
		return ok
	case []any:
		if i := indexOf(parent, last); i >= 0 {
			return Replace(object, p[:len(p)-1], slices.Delete(slices.Clone(parent), i, i+1))
		}
	}
	return false
}
