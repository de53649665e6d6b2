package scenario

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// node is a value in a file, with its position for problems that are found later. Aliases and merge keys are resolved.
type node struct {
	line, column int
	style        style
	shape        shape
	value        any     // for a scalar: nil, string, bool, int64 or float64
	keys         []entry // for a map, in the file's order
	items        []*node // for a list

	// The following fields are set by check.
	role  role
	owner reflect.Type // for a map: the struct that it will be decoded into, if any
	later bool         // set for an expression in a field that is not a string: only Resolve knows its value
}

// style is the YAML style of a string, which determines positions within it.
type style int

const (
	plainStyle style = iota // a single line, or a multi-line style whose positions are not tracked
	quoted
	literal // after |; the node's line is the line of the |
	folded  // after >
)

type shape int

const (
	scalar shape = iota
	list
	mapping
)

type entry struct {
	name         string
	line, column int
	value        *node
}

// get returns the value of a key, or nil.
func (n *node) get(name string) *node {
	if n == nil {
		return nil
	}
	for _, e := range n.keys {
		if e.name == name {
			return e.value
		}
	}
	return nil
}

// entry returns a key and its value, or nil.
func (n *node) entry(name string) *entry {
	for i := range n.keys {
		if n.keys[i].name == name {
			return &n.keys[i]
		}
	}
	return nil
}

// find follows the keys down the tree and returns the last existing node, which is the best position for a problem.
func (n *node) find(names ...string) *node {
	for _, name := range names {
		next := n.get(name)
		if next == nil {
			return n
		}
		n = next
	}
	return n
}

// plain returns the node as a JSON value, without values that only Resolve knows.
func (n *node) plain() any {
	switch {
	case n.shape == mapping:
		out := make(map[string]any, len(n.keys))
		for _, e := range n.keys {
			if !e.value.later {
				out[e.name] = e.value.plain()
			}
		}
		return out
	case n.shape == list:
		out := make([]any, 0, len(n.items))
		for _, item := range n.items {
			if !item.later {
				out = append(out, item.plain())
			}
		}
		return out
	}
	return n.value
}

// graft builds nodes from a value. All nodes have the position of n.
func (n *node) graft(value any) *node {
	g := &node{line: n.line, column: n.column, role: n.role}
	switch value := value.(type) {
	case map[string]any:
		g.shape = mapping
		for _, name := range slices.Sorted(maps.Keys(value)) {
			g.keys = append(g.keys, entry{name: name, line: n.line, column: n.column, value: n.graft(value[name])})
		}
	case []any:
		g.shape = list
		for _, item := range value {
			g.items = append(g.items, n.graft(item))
		}
	default:
		g.value = value
	}
	return g
}

// clone returns a copy that can be marked independently.
func (n *node) clone() *node {
	c := *n
	c.keys, c.items = slices.Clone(n.keys), slices.Clone(n.items)
	for i := range c.keys {
		c.keys[i].value = c.keys[i].value.clone()
	}
	for i := range c.items {
		c.items[i] = c.items[i].clone()
	}
	return &c
}

// describe returns a description of a node for messages.
func (n *node) describe() string {
	switch n.shape {
	case mapping:
		return "a map"
	case list:
		return "a list"
	}
	switch value := n.value.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("string %q", shorten(value))
	case bool:
		return fmt.Sprintf("boolean %v", value)
	}
	return fmt.Sprintf("number %v", n.value)
}

func shorten(s string) string {
	if r := []rune(s); len(r) > 40 {
		return string(r[:37]) + "..."
	}
	return s
}
