package containerd

import (
	"maps"
	"math"
	"reflect"
	"slices"
)

// A tree is a decoded file. Its tables are map[string]any.

// dig returns the value at path, and whether it exists.
func dig(tree map[string]any, path ...string) (any, bool) {
	var v any = tree
	for _, key := range path {
		table, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		if v, ok = table[key]; !ok {
			return nil, false
		}
	}
	return v, true
}

// digTable returns the table at path, or nil.
func digTable(tree map[string]any, path ...string) map[string]any {
	v, _ := dig(tree, path...)
	table, _ := v.(map[string]any)
	return table
}

// digText returns the string at path, or "".
func digText(tree map[string]any, path ...string) string {
	v, _ := dig(tree, path...)
	text, _ := v.(string)
	return text
}

// cut removes the value at path, and then empty tables along path. containerd treats empty and missing tables alike.
func cut(tree map[string]any, path []string) {
	if len(path) == 0 {
		return
	}
	if len(path) == 1 {
		delete(tree, path[0])
		return
	}
	if below, ok := tree[path[0]].(map[string]any); ok {
		if cut(below, path[1:]); len(below) == 0 {
			delete(tree, path[0])
		}
	}
}

// clone copies the tables, so that one tree can be changed while the other stays the same.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		return cloneTable(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = clone(v[i])
		}
		return list
	}
	return v
}

func cloneTable(tree map[string]any) map[string]any {
	if tree == nil {
		return nil
	}
	all := make(map[string]any, len(tree))
	for k, v := range tree {
		all[k] = clone(v)
	}
	return all
}

// overlay merges one tree (from) into another (to), in the same way as containerd 2: it merges tables key by key and
// replaces other values.
func overlay(to, from map[string]any) {
	for k, v := range from {
		if below, ok := v.(map[string]any); ok {
			if old, ok := to[k].(map[string]any); ok {
				overlay(old, below)
				continue
			}
		}
		to[k] = clone(v)
	}
}

// same reports whether two trees are equal. Unlike reflect.DeepEqual, it considers NaN values equal.
func same(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, same)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, same)
	case float64:
		if b, ok := b.(float64); ok && math.IsNaN(a) && math.IsNaN(b) {
			return true
		}
	}
	return reflect.DeepEqual(a, b)
}
