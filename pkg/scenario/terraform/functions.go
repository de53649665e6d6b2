package terraform

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// functions returns Terraform's functions that depend only on their arguments. Each function passes the lengths of its
// strings to the callback uses.
func functions(uses func(bytes int)) map[string]function.Function {
	all := map[string]function.Function{
		"abs": stdlib.AbsoluteFunc, "ceil": stdlib.CeilFunc, "chomp": stdlib.ChompFunc,
		"chunklist": stdlib.ChunklistFunc, "floor": stdlib.FloorFunc,
		"regex": stdlib.RegexFunc, "regexall": stdlib.RegexAllFunc,
		"coalesce": stdlib.CoalesceFunc, "coalescelist": stdlib.CoalesceListFunc, "compact": stdlib.CompactFunc,
		"concat":   stdlib.ConcatFunc,
		"contains": stdlib.ContainsFunc, "distinct": stdlib.DistinctFunc, "element": stdlib.ElementFunc,
		"flatten": stdlib.FlattenFunc,
		"format":  stdlib.FormatFunc, "formatlist": stdlib.FormatListFunc, "join": stdlib.JoinFunc,
		"jsondecode": stdlib.JSONDecodeFunc,
		"jsonencode": stdlib.JSONEncodeFunc, "keys": stdlib.KeysFunc, "lookup": stdlib.LookupFunc,
		"lower": stdlib.LowerFunc,
		"max":   stdlib.MaxFunc, "merge": stdlib.MergeFunc, "min": stdlib.MinFunc, "range": stdlib.RangeFunc,
		"replace": stdlib.ReplaceFunc,
		"reverse": stdlib.ReverseListFunc, "setintersection": stdlib.SetIntersectionFunc,
		"setsubtract": stdlib.SetSubtractFunc,
		"setunion":    stdlib.SetUnionFunc, "slice": stdlib.SliceFunc, "sort": stdlib.SortFunc,
		"split":  stdlib.SplitFunc,
		"substr": stdlib.SubstrFunc,
		"title":  stdlib.TitleFunc, "trim": stdlib.TrimFunc, "trimprefix": stdlib.TrimPrefixFunc,
		"trimspace":  stdlib.TrimSpaceFunc,
		"trimsuffix": stdlib.TrimSuffixFunc, "upper": stdlib.UpperFunc, "values": stdlib.ValuesFunc,
		"zipmap": stdlib.ZipmapFunc,
		"tobool": stdlib.MakeToFunc(cty.Bool), "tolist": stdlib.MakeToFunc(cty.List(cty.DynamicPseudoType)),
		"tomap":    stdlib.MakeToFunc(cty.Map(cty.DynamicPseudoType)),
		"tonumber": stdlib.MakeToFunc(cty.Number), "toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
		"tostring": stdlib.MakeToFunc(cty.String),
	}
	all["length"], all["one"] = length, one
	all["startswith"], all["endswith"] = compares(strings.HasPrefix), compares(strings.HasSuffix)
	for name, f := range all {
		all[name] = limited(name, f, uses)
	}
	// These functions need no limits of their own: their arguments are expressions, whose values are already limited by
	// the functions that the expressions call.
	all["try"], all["can"] = tryfunc.TryFunc, tryfunc.CanFunc
	return all
}

// length returns the number of elements in a list or map, or of characters in a string.
var length = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "value", Type: cty.DynamicPseudoType}},
	Type:   function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		switch value := args[0]; {
		case value.Type() == cty.String:
			return cty.NumberIntVal(int64(utf8.RuneCountInString(value.AsString()))), nil
		case value.CanIterateElements():
			return cty.NumberIntVal(int64(value.LengthInt())), nil
		}
		return cty.NilVal, errors.New("must be a list, a map or a string")
	},
})

// one returns the only element of a list, or null if it is empty.
var one = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "list", Type: cty.DynamicPseudoType}},
	Type:   function.StaticReturnType(cty.DynamicPseudoType),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		t := args[0].Type()
		if !t.IsTupleType() && !t.IsListType() && !t.IsSetType() || args[0].LengthInt() > 1 {
			return cty.NilVal, errors.New("must be a list or a set with at most one element")
		}
		for it := args[0].ElementIterator(); it.Next(); {
			_, value := it.Element()
			return value, nil
		}
		return cty.NullVal(cty.DynamicPseudoType), nil
	},
})

// compares returns a function that compares two strings.
func compares(holds func(text, part string) bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "text", Type: cty.String}, {Name: "part", Type: cty.String}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(holds(args[0].AsString(), args[1].AsString())), nil
		},
	})
}
