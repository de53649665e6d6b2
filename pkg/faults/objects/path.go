package objects

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Path is a place in an object, from its root.
type Path []Step

// Step is one step of a path: a field, or the element of a list with a name.
type Step struct {
	Field string
	Name  string
}

// String returns the path for people: spec.template.spec.containers[name=main].image.
func (p Path) String() string {
	var text strings.Builder
	for i, s := range p {
		switch {
		case s.Name != "":
			fmt.Fprintf(&text, "[name=%s]", s.Name)
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

// then returns a longer path. It never shares memory with p.
func (p Path) then(s Step) Path { return append(append(make(Path, 0, len(p)+1), p...), s) }

// within reports whether the path is that of the fields, or lies below it.
func (p Path) within(fields []string) bool {
	for i, field := range fields {
		if i >= len(p) || p[i].Field != field {
			return false
		}
	}
	return true
}

// owned returns the path as in metadata.managedFields.
func (p Path) owned() []string {
	steps := make([]string, len(p))
	for i, s := range p {
		steps[i] = "f:" + s.Field
		if s.Name != "" {
			steps[i] = "k:" + string(encode(s))
		}
	}
	return steps
}

// MarshalJSON writes a field as a string, and an element as {"name":"main"}.
func (s Step) MarshalJSON() ([]byte, error) {
	if s.Name != "" {
		return json.Marshal(map[string]string{"name": s.Name})
	}
	return json.Marshal(s.Field)
}

// UnmarshalJSON reads what MarshalJSON writes, and nothing else.
func (s *Step) UnmarshalJSON(data []byte) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return err
	}
	switch value := value.(type) {
	case string:
		if value != "" {
			*s = Step{Field: value}
			return nil
		}
	case map[string]any:
		if name, _ := value["name"].(string); name != "" && len(value) == 1 {
			*s = Step{Name: name}
			return nil
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
			if s.Name != "" || !ok {
				return nil, false
			}
			object = next
		case []any:
			i := place(value, s)
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

// place returns where in a list an element with a name is, or -1.
func place(list []any, s Step) int {
	for i, e := range list {
		if m, ok := e.(map[string]any); ok && s.Name != "" && m["name"] == s.Name {
			return i
		}
	}
	return -1
}

// set puts a value at a path, and makes the objects around it that are missing. It makes no elements of lists.
func set(object any, p Path, value any) bool {
	parent, ok := get(object, p[:len(p)-1])
	if !ok || parent == nil {
		if len(p) == 1 || p[len(p)-1].Name != "" {
			return false
		}
		return set(object, p[:len(p)-1], map[string]any{p[len(p)-1].Field: value})
	}
	last := p[len(p)-1]
	switch parent := parent.(type) {
	case map[string]any:
		if last.Name != "" {
			return false
		}
		parent[last.Field] = value
		return true
	case []any:
		if i := place(parent, last); i >= 0 {
			parent[i] = value
			return true
		}
		return false
	}
	return false
}

// remove takes out what is at a path.
func remove(object any, p Path) {
	last := p[len(p)-1]
	parent, _ := get(object, p[:len(p)-1])
	switch parent := parent.(type) {
	case map[string]any:
		delete(parent, last.Field)
	case []any:
		if i := place(parent, last); i >= 0 {
			set(object, p[:len(p)-1], append(append(make([]any, 0, len(parent)), parent[:i]...), parent[i+1:]...))
		}
	}
}
