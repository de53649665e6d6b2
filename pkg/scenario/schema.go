package scenario

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/suggest"
)

// role determines how a string is used.
type role int

const (
	roleText   role = iota // interpolated
	rolePlain              // not interpolated: metadata, params
	roleWhen               // CEL over p and facts
	roleExpect             // CEL over the variables of its check
	roleExpr               // CEL for a parameter
)

// field is a struct field with its name in files.
type field struct {
	name     string
	typ      reflect.Type
	required bool
}

// fields returns the fields of a struct. Fields without omitempty are required.
func fields(t reflect.Type) []field {
	var all []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "" || name == "-" {
			continue
		}
		all = append(all, field{name: name, typ: f.Type, required: options == ""})
	}
	return all
}

// checker validates a tree against the types of the format.
type checker struct {
	*reader
	// expressions allows ${} in place of a value of any type: true for files, false after Resolve.
	expressions bool
	attempt     bool // set inside a solution or a wrong fix
}

var durationType = reflect.TypeFor[Duration]()

// check validates a node against a type, and records the type and the role for later.
func (c *checker) check(n *node, t reflect.Type, path string, r role) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	n.role = r
	text, isText := n.value.(string)
	if isText && c.expressions && r == roleText {
		c.closed(n, text, path)
	}
	if t.Kind() == reflect.String && t != durationType {
		c.text(n, path, isText)
		return
	}
	if c.expressions && r == roleText && isText && expr.HasExpression(text) && t.Kind() != reflect.Interface {
		n.later = true
		return
	}
	switch t.Kind() {
	case reflect.Interface:
		c.open(n, path, r)
	case reflect.Struct:
		c.structure(n, t, path, r)
	case reflect.Map:
		c.mapping(n, t, path, r)
	case reflect.Slice:
		c.list(n, t, path, r)
	default:
		c.scalar(n, t, path)
	}
}

// closed verifies that each ${ in a string has a closing }.
func (c *checker) closed(n *node, text, path string) {
	if err := expr.Closed(text); err != nil {
		c.exprError(n, path, err)
	}
}

func (c *checker) closedKeys(n *node, path string, r role) {
	for _, e := range n.keys {
		if c.expressions && r == roleText {
			c.closed(&node{line: e.line, column: e.column}, e.name, expr.Join(path, e.name))
		}
	}
}

func (c *checker) text(n *node, path string, is bool) {
	switch {
	case is && n.role == roleText || n.later:
	case !is:
		c.fail(n.line, n.column, path, "must be a string, not %s%s", n.describe(), quoteIt(n))
	case n.role != rolePlain && c.expressions && expr.IsExpression(n.value.(string)):
		c.fail(n.line, n.column, path, "is always an expression: remove ${ }")
	}
}

func quoteIt(n *node) string {
	switch n.value.(type) {
	case nil, string:
		return ""
	}
	return fmt.Sprintf("; quote it: \"%v\"", n.value)
}

func (c *checker) scalar(n *node, t reflect.Type, path string) {
	switch {
	case t == durationType:
		text, is := n.value.(string)
		if !is {
			c.fail(n.line, n.column, path, "must be a duration with a unit, such as 90s or 5m, not %s", n.describe())
		} else if _, err := parseDuration(text); err != nil {
			c.fail(n.line, n.column, path, "%v", err)
		}
	case t.Kind() == reflect.Bool:
		if _, is := n.value.(bool); !is {
			c.fail(n.line, n.column, path, "must be true or false, not %s", n.describe())
		}
	default:
		if _, is := n.value.(int64); !is {
			c.fail(n.line, n.column, path, "must be an integer, not %s", n.describe())
		}
	}
}

// open checks a value that the format does not define, such as a manifest.
func (c *checker) open(n *node, path string, r role) {
	n.role = r
	c.closedKeys(n, path, r)
	for _, e := range n.keys {
		c.check(e.value, reflect.TypeFor[any](), expr.Join(path, e.name), r)
	}
	for i, item := range n.items {
		c.check(item, reflect.TypeFor[any](), fmt.Sprintf("%s[%d]", path, i), r)
	}
}

func (c *checker) mapping(n *node, t reflect.Type, path string, r role) {
	if n.shape != mapping {
		if n.shape != scalar || n.value != nil {
			c.fail(n.line, n.column, path, "must be a map, not %s", n.describe())
		}
		return
	}
	c.closedKeys(n, path, r)
	for _, e := range n.keys {
		c.check(e.value, t.Elem(), expr.Join(path, e.name), r)
	}
	if t.Elem() == reflect.TypeFor[Param]() {
		c.paramNames(n, path)
	}
}

func (c *checker) list(n *node, t reflect.Type, path string, r role) {
	if n.shape != list {
		if n.shape != scalar || n.value != nil {
			c.fail(n.line, n.column, path, "must be a list, not %s", n.describe())
		}
		return
	}
	for i, item := range n.items {
		place := fmt.Sprintf("%s[%d]", path, i)
		if item.shape == scalar && item.value == nil && t.Elem().Kind() != reflect.Interface {
			c.fail(item.line, item.column, place, "is empty")
			continue
		}
		c.check(item, t.Elem(), place, r)
	}
}

func (c *checker) structure(n *node, t reflect.Type, path string, r role) {
	if n.shape != mapping {
		c.fail(n.line, n.column, path, "must be a map, not %s", n.describe())
		return
	}
	n.owner = t
	all := fields(t)
	for _, e := range n.keys {
		i := slices.IndexFunc(all, func(f field) bool { return f.name == e.name })
		if i < 0 {
			c.fail(e.line, e.column, expr.Join(path, e.name), "unknown field%s", nearest(e.name, all))
			continue
		}
		if e.value.shape == scalar && e.value.value == nil && !all[i].required {
			continue // treat an empty field as missing
		}
		inner := *c
		inner.attempt = c.attempt || t == reflect.TypeFor[Attempt]()
		inner.check(e.value, all[i].typ, expr.Join(path, e.name), roleOf(t, e.name, r))
	}
	for _, f := range all {
		if f.required && !optional(t, f, path) {
			c.require(n, f, path)
		}
	}
	c.rules(n, t, path)
}

// optional reports whether a required field of a type is optional at this path: events without a name match all
// objects of the kind, and a check in an expectation of an experiment has the expectation's name.
func optional(t reflect.Type, f field, path string) bool {
	return f.name == "name" && (t == reflect.TypeFor[Ref]() && strings.HasSuffix(path, ".events") ||
		t == reflect.TypeFor[Check]() && strings.HasSuffix(path, ".check"))
}

// require verifies that a required field is set.
func (c *checker) require(n *node, f field, path string) {
	value := n.get(f.name)
	if value == nil {
		c.fail(n.line, n.column, expr.Join(path, f.name), "is missing")
		return
	}
	if text, is := value.value.(string); is && strings.TrimSpace(text) == "" {
		c.fail(value.line, value.column, expr.Join(path, f.name), "is empty")
	}
	if value.shape == scalar && value.value == nil && f.typ.Kind() != reflect.String && f.typ.Kind() != reflect.Struct {
		c.fail(value.line, value.column, expr.Join(path, f.name), "is empty")
	}
}

// roleOf returns the role of strings in a field.
func roleOf(t reflect.Type, name string, r role) role {
	switch {
	case t == reflect.TypeFor[Scenario]() &&
		slices.Contains([]string{"apiVersion", "kind", "metadata", "params", "workload"}, name):
		return rolePlain
	case t == reflect.TypeFor[Param]() && name == "expr":
		return roleExpr
	case t == reflect.TypeFor[Check]() && name == "expect":
		return roleExpect
	case name == "when" && t.PkgPath() == reflect.TypeFor[Scenario]().PkgPath():
		return roleWhen
	}
	return r
}

// nearest suggests the most similar field name, or lists the supported ones.
func nearest(name string, all []field) string {
	names := make([]string, len(all))
	for i, f := range all {
		names[i] = f.name
	}
	if meant := suggest.Nearest(name, names); meant != "" {
		return fmt.Sprintf("; did you mean %s?", meant)
	}
	return "; supported values: " + strings.Join(names, ", ")
}
