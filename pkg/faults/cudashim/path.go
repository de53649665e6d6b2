package cudashim

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Path is a place in an object, from its root.
type Path []Step

// Step is one step of a path: a field, or an element of a list, by the value of one of its fields or by its place.
type Step struct {
	// Field is the name of a field; when Key is set, the value that the element's field Key has.
	Field string
	// Key is the field that tells the elements of a list from each other: name, mountPath, groupName. Of several with
	// the same value the last is meant, which is the one that counts among environment variables.
	Key string
	// Index is the place of an element in a list whose elements have no such field; Field and Key are empty then.
	Index int
}

func field(name string) Step         { return Step{Field: name} }
func element(key, value string) Step { return Step{Key: key, Field: value} }

func (s Step) isIndex() bool { return s.Field == "" && s.Key == "" }

// path returns a path of fields.
func path(names ...string) Path {
	steps := make(Path, len(names))
	for i, name := range names {
		steps[i] = field(name)
	}
	return steps
}

// then returns a longer path. It never shares memory with p.
func (p Path) then(steps ...Step) Path {
	return append(append(make(Path, 0, len(p)+len(steps)), p...), steps...)
}

// String returns the path for people: spec.template.spec.containers[name=main].env[name=LD_PRELOAD].value.
func (p Path) String() string {
	var text strings.Builder
	for i, s := range p {
		switch {
		case s.Key != "":
			fmt.Fprintf(&text, "[%s=%s]", s.Key, s.Field)
		case s.isIndex():
			fmt.Fprintf(&text, "[%d]", s.Index)
		case strings.ContainsAny(s.Field, ".[]"):
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

// MarshalJSON writes a field as a string, an element by key as {"name":"main"}, and one by place as a number.
func (s Step) MarshalJSON() ([]byte, error) {
	switch {
	case s.Key != "":
		return json.Marshal(map[string]string{s.Key: s.Field})
	case s.isIndex():
		return json.Marshal(s.Index)
	default:
		return json.Marshal(s.Field)
	}
}

// UnmarshalJSON reads what MarshalJSON writes, and nothing else.
func (s *Step) UnmarshalJSON(data []byte) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return err
	}
	switch value := value.(type) {
	case string:
		if value == "" {
			return fmt.Errorf("a step of a path is empty")
		}
		*s = Step{Field: value}
		return nil
	case float64:
		if value != float64(int(value)) || value < 0 {
			return fmt.Errorf("%v is no place in a list", value)
		}
		*s = Step{Index: int(value)}
		return nil
	case map[string]any:
		for key, v := range value {
			if v, ok := v.(string); ok && len(value) == 1 && key != "" {
				*s = Step{Key: key, Field: v}
				return nil
			}
		}
	}
	return fmt.Errorf("%s is no step of a path", data)
}

// get finds the value at a path; the value is the object's own.
func get(object any, p Path) (any, bool) {
	for _, s := range p {
		switch value := object.(type) {
		case map[string]any:
			next, ok := value[s.Field]
			if s.Key != "" || s.isIndex() || !ok {
				return nil, false
			}
			object = next
		case []any:
			i, ok := place(value, s)
			if !ok {
				return nil, false
			}
			object = value[i]
		default:
			return nil, false
		}
	}
	return object, true
}

// place returns where in a list an element is.
func place(list []any, s Step) (int, bool) {
	if s.isIndex() {
		return s.Index, s.Index < len(list)
	}
	if s.Key == "" {
		return 0, false
	}
	for i := len(list) - 1; i >= 0; i-- {
		if e, ok := list[i].(map[string]any); ok && e[s.Key] == s.Field {
			return i, true
		}
	}
	return 0, false
}

// getMap returns the object at a path, or nil, which can be read like an empty one.
func getMap(object any, p Path) map[string]any {
	value, _ := get(object, p)
	m, _ := value.(map[string]any)
	return m
}

// getList returns the list at a path.
func getList(object any, p Path) []any {
	value, _ := get(object, p)
	l, _ := value.([]any)
	return l
}

// getText returns the string at a path, or empty.
func getText(object any, p Path) string {
	value, _ := get(object, p)
	s, _ := value.(string)
	return s
}
