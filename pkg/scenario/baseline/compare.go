package baseline

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// edit is a field that differs.
type edit struct {
	field   string
	was, is string
	now     any
	added   bool // for environment variables: the container did not have it
}

// compareObjects returns the fields that differ, sorted.
func compareObjects(kind schema.GroupKind, was, is *object) []edit {
	var edits []edit
	if uid := mapAt(was.body, "metadata")["uid"]; hasIdentity(kind) && uid != mapAt(is.body, "metadata")["uid"] {
		edits = append(edits, edit{field: "metadata.uid", was: show(uid), is: show(mapAt(is.body, "metadata")["uid"])})
	}
	if was.hashes != nil || is.hashes != nil {
		edits = append(edits, compareHashes(was.fieldHashes(), is.fieldHashes())...)
	} else {
		c := comparison{kind: kind}
		c.values("", was.body, is.body)
		edits = append(edits, c.edits...)
	}
	sorting.Func(edits, func(a, b edit) int { return strings.Compare(a.field, b.field) })
	return edits
}

func compareHashes(was, is map[string]string) []edit {
	var edits []edit
	for field := range union(was, is) {
		if was[field] != is[field] {
			edits = append(edits, edit{field: field})
		}
	}
	return edits
}

// comparison collects the fields in which two objects differ.
type comparison struct {
	kind  schema.GroupKind
	edits []edit
}

func (c *comparison) values(path string, was, is any) {
	if path == "metadata.uid" {
		return // compared separately
	}
	a, mapBefore := was.(map[string]any)
	b, mapAfter := is.(map[string]any)
	// A missing map has no fields.
	if mapBefore && mapAfter || mapBefore && is == nil || mapAfter && was == nil {
		for name := range union(a, b) {
			c.values(expr.Join(path, name), a[name], b[name])
		}
		return
	}
	x, listBefore := was.([]any)
	y, listAfter := is.([]any)
	if before, after := byName(x), byName(y); before != nil && after != nil || before != nil && is == nil ||
		after != nil && was == nil {
		c.named(path, x, y)
		return
	}
	if listBefore && listAfter && len(x) == len(y) && allMaps(x) && allMaps(y) {
		for i := range x {
			c.values(fmt.Sprintf("%s[%d]", path, i), x[i], y[i])
		}
		return
	}
	// An empty field is equivalent to a missing one.
	if reflect.DeepEqual(was, is) || empty(was) && empty(is) || was == nil && filledIn(c.kind, path) {
		return
	}
	e := edit{field: path, was: show(was), is: show(is), now: is}
	if c.kind == (schema.GroupKind{Kind: "Secret"}) && strings.Contains(path, "ata") {
		e.was, e.is = hidden(was), hidden(is)
	}
	c.edits = append(c.edits, e)
}

// named compares two lists of named items, such as containers and variables, item by item. The order of items in both
// lists is also compared, except for variables.
func (c *comparison) named(path string, was, is []any) {
	before, after := byName(was), byName(is)
	for name := range union(before, after) {
		at := path + "[" + name + "]"
		if before[name] == nil || after[name] == nil {
			c.edits = append(c.edits, edit{field: at, was: show(before[name]), is: show(after[name]), now: after[name]})
			continue
		}
		c.values(at, before[name], after[name])
	}
	if strings.HasSuffix(path, ".env") {
		return
	}
	common := func(list []any, other map[string]any) []string {
		return slices.DeleteFunc(names(list, false), func(name string) bool { return other[name] == nil })
	}
	if x, y := common(was, after), common(is, before); !slices.Equal(x, y) {
		c.edits = append(c.edits, edit{field: path, was: strings.Join(x, ", "), is: strings.Join(y, ", "), now: is})
	}
}

// byName returns the items in a list by name, or nil if the list is empty or an item has no unique name.
func byName(list []any) map[string]any {
	all := map[string]any{}
	for _, each := range list {
		item, _ := each.(map[string]any)
		name, _ := item["name"].(string)
		if name == "" || all[name] != nil {
			return nil
		}
		all[name] = item
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// filledIn reports whether a controller sets the field if the object is created without it.
func filledIn(kind schema.GroupKind, path string) bool {
	return slices.Contains([]string{
		"Pod spec.nodeName", "PersistentVolumeClaim spec.volumeName", "Node spec.providerID",
		"Service spec.loadBalancerClass",
	}, kind.String()+" "+path)
}

func hidden(value any) string {
	if value == nil {
		return ""
	}
	return "(secret)"
}

func empty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(value) == 0
	case []any:
		return len(value) == 0
	}
	return false
}

func allMaps(list []any) bool {
	return !slices.ContainsFunc(list, func(v any) bool { _, is := v.(map[string]any); return !is })
}

func union[V any](a, b map[string]V) map[string]struct{} {
	all := map[string]struct{}{}
	for name := range maps.Keys(a) {
		all[name] = struct{}{}
	}
	for name := range maps.Keys(b) {
		all[name] = struct{}{}
	}
	return all
}

// show returns a value on one line.
func show(value any) string {
	const longest = 160
	if value == nil {
		return ""
	}
	text, is := value.(string)
	if !is {
		data, err := json.Marshal(value)
		if err != nil {
			return err.Error()
		}
		text = string(data)
	}
	if len(text) <= longest {
		return text
	}
	cut := longest
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "..."
}
