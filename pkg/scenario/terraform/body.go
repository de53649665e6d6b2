package terraform

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// meta are arguments and blocks that every resource may have and that have no effect here.
var meta = []string{"depends_on", "provider", "for_each", "count", "lifecycle", "timeouts"}

// instances evaluates a resource, once for each key of for_each or for each index up to count, and returns its value
// for references.
func (r *reader) instances(b *hclsyntax.Block) cty.Value {
	k, _ := kindOfType(b.Labels[0])
	if !r.lifecycle(b) {
		return cty.DynamicVal
	}
	forEach, count := b.Body.Attributes["for_each"], b.Body.Attributes["count"]
	switch {
	case forEach != nil && count != nil:
		r.at(count.SrcRange, "conflicts with for_each: only one of the two is allowed")
		return cty.DynamicVal
	case forEach != nil:
		return r.forEach(b, k, forEach)
	case count != nil:
		return r.counted(b, k, count)
	}
	return r.instance(b, k, "", nil)
}

// lifecycle reports a problem for blocks that change the meaning of a resource.
func (r *reader) lifecycle(b *hclsyntax.Block) bool {
	for _, inner := range b.Body.Blocks {
		switch {
		case inner.Type == "provisioner" || inner.Type == "connection":
			r.at(inner.DefRange(), "%s is not supported: remove it", inner.Type)
			return false
		case inner.Type == "lifecycle" && inner.Body.Attributes["ignore_changes"] != nil:
			r.at(inner.Body.Attributes["ignore_changes"].SrcRange,
				"ignore_changes is not supported: remove it")
			return false
		}
	}
	return true
}

func (r *reader) forEach(b *hclsyntax.Block, k kind, a *hclsyntax.Attribute) cty.Value {
	over := r.value(a.Expr, nil)
	if !over.IsWhollyKnown() {
		return cty.DynamicVal // already reported
	}
	t := over.Type()
	if over.IsNull() || !t.IsMapType() && !t.IsObjectType() && !(t.IsSetType() && t.ElementType() == cty.String) {
		r.at(a.Expr.Range(), "for_each must be a map or a set of strings: use toset(...) to convert a list")
		return cty.DynamicVal
	}
	seen := map[string]cty.Value{}
	for it := over.ElementIterator(); it.Next(); {
		key, value := it.Element()
		if t.IsSetType() {
			key = value
		}
		if key.IsNull() {
			r.at(a.Expr.Range(), "for_each must not contain a null key")
			return cty.DynamicVal
		}
		each := cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})
		seen[key.AsString()] = r.instance(b, k, fmt.Sprintf("[%q]", key.AsString()), map[string]cty.Value{"each": each})
	}
	return cty.ObjectVal(seen)
}

func (r *reader) counted(b *hclsyntax.Block, k kind, a *hclsyntax.Attribute) cty.Value {
	value, err := convert.Convert(r.value(a.Expr, nil), cty.Number)
	if err == nil && !value.IsKnown() {
		return cty.DynamicVal
	}
	n, whole := integer(value)
	if err != nil || !whole || n < 0 || n > maxItems {
		r.at(a.Expr.Range(), "count must be an integer from 0 to %d", maxItems)
		return cty.DynamicVal
	}
	all := make([]cty.Value, n)
	for i := range all {
		index := cty.ObjectVal(map[string]cty.Value{"index": cty.NumberIntVal(int64(i))})
		all[i] = r.instance(b, k, fmt.Sprintf("[%d]", i), map[string]cty.Value{"count": index})
	}
	return cty.TupleVal(all)
}

// instance evaluates one resource, and adds it to the module.
func (r *reader) instance(b *hclsyntax.Block, k kind, key string, more map[string]cty.Value) cty.Value {
	before := len(r.all)
	value := r.body(b.Body, k.fields, b.DefRange(), more, true)
	if len(r.all) > before || !value.IsWhollyKnown() || !r.small(value, b.DefRange(), strings.Join(b.Labels, ".")) {
		return cty.DynamicVal
	}
	if r.count++; r.count > maxItems {
		r.at(b.DefRange(), "the module has more than %d resources", maxItems)
		return cty.DynamicVal
	}
	tree, _ := plain(value).(map[string]any)
	if !isObject(b.Labels[0]) {
		r.module.Add(b.Labels[0], b.Labels[1]+key, tree)
		return value
	}
	object, err := toObject(k, tree)
	if err != nil {
		r.at(b.DefRange(), "%v", err)
		return cty.DynamicVal
	}
	r.objects = append(r.objects, placed{object, b.DefRange()})
	return value
}

// isObject reports whether resources of a type are Kubernetes objects.
func isObject(resource string) bool { return strings.HasPrefix(resource, "kubernetes_") }

// body evaluates attributes and blocks according to the schema. Blocks become lists, as in references.
func (r *reader) body(
	b *hclsyntax.Body, fields []field, place hcl.Range, more map[string]cty.Value, outermost bool,
) cty.Value {
	out := map[string]cty.Value{}
	for _, a := range b.Attributes {
		if outermost && slices.Contains(meta, a.Name) {
			continue
		}
		f, known := named(fields, a.Name)
		switch {
		case !known:
			r.at(a.SrcRange, "unsupported argument %s%s", a.Name, nearest(a.Name, names(fields)))
		case f.isBlock():
			r.at(a.SrcRange, "%s must be a block: write %s { ... } without =", a.Name, a.Name)
		default:
			if value, is := r.typed(a, f, more); is {
				out[a.Name] = value
			}
		}
	}
	lists := map[string][]cty.Value{}
	for _, one := range r.expand(b.Blocks, more) {
		if outermost && slices.Contains(meta, one.block.Type) {
			continue
		}
		f, known := named(fields, one.block.Type)
		switch {
		case !known:
			r.at(one.block.DefRange(), "unsupported block %s%s", one.block.Type, nearest(one.block.Type, names(fields)))
		case !f.isBlock():
			r.at(one.block.DefRange(), "%s must be an argument: write %s = ...", f.name, f.name)
		case f.shape == block && len(lists[f.name]) > 0:
			r.at(one.block.DefRange(), "only one %s block is allowed", f.name)
		default:
			lists[f.name] = append(lists[f.name], r.body(one.content, f.fields, one.block.DefRange(), one.more, false))
		}
	}
	for name, list := range lists {
		out[name] = cty.TupleVal(list)
	}
	for _, f := range fields {
		if _, is := out[f.name]; f.required && !is && b.Attributes[f.name] == nil {
			r.at(place, "%s is missing", f.name)
		}
	}
	return cty.ObjectVal(out)
}

// typed evaluates an argument and converts it to its type. A null argument is treated as missing.
func (r *reader) typed(a *hclsyntax.Attribute, f field, more map[string]cty.Value) (cty.Value, bool) {
	value := r.value(a.Expr, more)
	if !value.IsWhollyKnown() {
		return value, true // already reported
	}
	if value.IsNull() {
		if f.required {
			r.at(a.Expr.Range(), "%s must not be null", f.name)
		}
		return value, false
	}
	if f.shape == any_ {
		return value, true
	}
	wanted, words := wants(f)
	value, err := convert.Convert(value, wanted)
	if err != nil {
		r.at(a.Expr.Range(), "%s must be %s: %v", f.name, words, err)
		return cty.DynamicVal, true
	}
	if f.shape == number {
		if _, whole := integer(value); !whole {
			r.at(a.Expr.Range(), "%s must be %s", f.name, words)
		}
	}
	if value.CanIterateElements() {
		for it := value.ElementIterator(); it.Next(); {
			if _, one := it.Element(); one.IsNull() {
				r.at(a.Expr.Range(), "%s must not contain a null element", f.name)
				return cty.DynamicVal, true
			}
		}
	}
	return value, true
}

func wants(f field) (cty.Type, string) {
	switch f.shape {
	case number:
		return cty.Number, "an integer"
	case truth:
		return cty.Bool, "true or false"
	case texts:
		return cty.List(cty.String), "a list of strings"
	case labels:
		return cty.Map(cty.String), "a map of strings"
	}
	return cty.String, "a string"
}

func names(fields []field) []string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.name
	}
	return all
}

// expanded is a block that a dynamic block may have generated.
type expanded struct {
	block   *hclsyntax.Block // for its type and position
	content *hclsyntax.Body
	more    map[string]cty.Value
}

// expand generates the blocks of dynamic blocks.
func (r *reader) expand(list hclsyntax.Blocks, more map[string]cty.Value) []expanded {
	var all []expanded
	for _, b := range list {
		if b.Type != "dynamic" || len(b.Labels) != 1 {
			all = append(all, expanded{b, b.Body, more})
			continue
		}
		all = append(all, r.dynamic(b, more)...)
	}
	if len(all) > maxItems {
		r.at(list[0].DefRange(), "more than %d blocks", maxItems)
		return nil
	}
	return all
}

func (r *reader) dynamic(b *hclsyntax.Block, more map[string]cty.Value) []expanded {
	each := b.Body.Attributes["for_each"]
	i := slices.IndexFunc(b.Body.Blocks, func(inner *hclsyntax.Block) bool { return inner.Type == "content" })
	if each == nil || i < 0 {
		r.at(b.DefRange(), "dynamic %q requires for_each = ... and content { ... }", b.Labels[0])
		return nil
	}
	iterator := b.Labels[0]
	if a := b.Body.Attributes["iterator"]; a != nil {
		if iterator = hcl.ExprAsKeyword(a.Expr); iterator == "" {
			r.at(a.SrcRange, "iterator must be a name")
			return nil
		}
	}
	over := r.value(each.Expr, more)
	switch {
	case !over.IsWhollyKnown():
		return nil // already reported
	case over.IsNull() || !over.CanIterateElements():
		r.at(each.Expr.Range(), "for_each must be a list, a set or a map")
		return nil
	}
	shown := &hclsyntax.Block{
		Type: b.Labels[0], TypeRange: b.TypeRange, OpenBraceRange: b.OpenBraceRange, CloseBraceRange: b.CloseBraceRange,
	}
	var all []expanded
	for it := over.ElementIterator(); it.Next(); {
		key, value := it.Element()
		if over.Type().IsSetType() {
			key = value
		}
		inner := maps.Clone(more)
		if inner == nil {
			inner = map[string]cty.Value{}
		}
		inner[iterator] = cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})
		all = append(all, expanded{shown, b.Body.Blocks[i].Body, inner})
	}
	return all
}

// integer returns an integral number.
func integer(value cty.Value) (int64, bool) {
	if value.IsNull() || !value.IsKnown() || value.Type() != cty.Number {
		return 0, false
	}
	f := value.AsBigFloat()
	n, accuracy := f.Int64()
	return n, accuracy == 0
}

// plain converts a value to JSON, with integers as int64. Null values are removed from maps.
func plain(value cty.Value) any {
	t := value.Type()
	switch {
	case value.IsNull() || !value.IsKnown():
		return nil
	case t == cty.String:
		return value.AsString()
	case t == cty.Bool:
		return value.True()
	case t == cty.Number:
		if n, whole := integer(value); whole {
			return n
		}
		f, _ := value.AsBigFloat().Float64()
		return f
	case t.IsMapType() || t.IsObjectType():
		out := map[string]any{}
		for it := value.ElementIterator(); it.Next(); {
			key, inner := it.Element()
			if !inner.IsNull() {
				out[key.AsString()] = plain(inner)
			}
		}
		return out
	case t.IsListType() || t.IsTupleType() || t.IsSetType():
		out := []any{}
		for it := value.ElementIterator(); it.Next(); {
			_, inner := it.Element()
			out = append(out, plain(inner))
		}
		return out
	}
	return nil
}

// nearest suggests the most similar name, or lists the supported names.
func nearest(name string, all []string) string {
	best, least := "", len(name)/3+1
	for _, one := range all {
		if d := levenshtein.Distance(name, one, nil); d <= least {
			best, least = one, d-1
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %s?", best)
	}
	return "; supported values: " + strings.Join(all, ", ")
}
