package expr

import (
	"encoding/json"
	"errors"
	"math"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/yaml"
)

// functions returns the functions for scenarios, in addition to CEL's own.
func functions() []cel.EnvOption {
	one := []*cel.Type{cel.DynType}
	return []cel.EnvOption{
		cel.Function("quantity", cel.Overload("quantity_dyn", one, cel.DoubleType, cel.UnaryBinding(quantity))),
		cel.Function("isQuantity",
			cel.Overload("is_quantity_dyn", one, cel.BoolType, cel.UnaryBinding(func(v ref.Val) ref.Val {
				return types.Bool(!types.IsError(quantity(v)))
			}))),
		cel.Function("parseJSON",
			cel.Overload("parse_json_string", []*cel.Type{cel.StringType}, cel.DynType, cel.UnaryBinding(parseJSON))),
		cel.Function("parseYAML",
			cel.Overload("parse_yaml_string", []*cel.Type{cel.StringType}, cel.DynType, cel.UnaryBinding(parseYAML))),
		cel.Function("selects", cel.Overload("selects_dyn_dyn", []*cel.Type{cel.DynType, cel.DynType}, cel.BoolType,
			cel.BinaryBinding(selects))),
		cel.Function("file", cel.Overload("file_dyn_dyn_dyn_dyn",
			[]*cel.Type{cel.DynType, cel.DynType, cel.DynType, cel.DynType}, cel.StringType,
			cel.FunctionBinding(file))),
		cel.Function("environment", cel.Overload("environment_dyn_dyn", []*cel.Type{cel.DynType, cel.DynType},
			cel.MapType(cel.StringType, cel.StringType), cel.BinaryBinding(environmentOf))),
		cel.Function("arguments", cel.Overload("arguments_dyn_dyn", []*cel.Type{cel.DynType, cel.DynType},
			cel.ListType(cel.StringType), cel.BinaryBinding(argumentsOf))),
		// For compatibility with rules written for Kubernetes' own quantities.
		member("isGreaterThan", cel.BoolType, func(a, b float64) ref.Val { return types.Bool(a > b) }),
		member("isLessThan", cel.BoolType, func(a, b float64) ref.Val { return types.Bool(a < b) }),
		member("compareTo", cel.IntType, func(a, b float64) ref.Val {
			switch {
			case a < b:
				return types.Int(-1)
			case a > b:
				return types.Int(1)
			}
			return types.Int(0)
		}),
	}
}

// member returns a method that compares two quantities.
func member(name string, result *cel.Type, f func(a, b float64) ref.Val) cel.EnvOption {
	double := cel.DoubleType
	return cel.Function(name, cel.MemberOverload("double_"+name, []*cel.Type{double, double}, result,
		cel.BinaryBinding(func(a, b ref.Val) ref.Val {
			x, isX := a.(types.Double)
			y, isY := b.(types.Double)
			if !isX || !isY {
				return types.NewErr("%s compares quantities", name)
			}
			return f(float64(x), float64(y))
		})))
}

// quantity parses a Kubernetes quantity: "2", 2, "500m", "16Gi". It is exact up to 2^53, or 9 PB.
func quantity(v ref.Val) ref.Val {
	switch v := v.(type) {
	case types.Int:
		return types.Double(v)
	case types.Uint:
		return types.Double(v)
	case types.Double:
		return v
	case types.String:
		q, err := resource.ParseQuantity(string(v))
		if err != nil {
			return types.NewErr("invalid quantity %q: must be a number such as 2, 500m or 16Gi", string(v))
		}
		if f := q.AsApproximateFloat64(); !math.IsInf(f, 0) {
			return types.Double(f)
		}
		return types.NewErr("%q is too large", string(v))
	}
	return types.NewErr("quantity() does not support %s: must be a string or a number", v.Type().TypeName())
}

// selects reports whether the scheduler may place pods with this spec on the node: nodeName, nodeSelector and the
// required node affinity allow it. It ignores taints and resources. The node has a name and labels, like the nodes in
// facts.nodes.
func selects(spec, node ref.Val) ref.Val {
	var pod corev1.Pod
	var on struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	}
	if err := errors.Join(into(spec, &pod.Spec), into(node, &on)); err != nil {
		return types.NewErr("selects: %v", err)
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != on.Name {
		return types.False
	}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(&pod).Match(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: on.Name, Labels: on.Labels}})
	if err != nil {
		return types.NewErr("selects: %v", err)
	}
	return types.Bool(matches)
}

// into decodes a CEL value.
func into(v ref.Val, out any) error {
	plain, err := native(v)
	if err != nil {
		return err
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}

func parseJSON(v ref.Val) ref.Val {
	text, is := v.(types.String)
	if !is {
		return types.MaybeNoSuchOverloadErr(v)
	}
	var out any
	if err := utiljson.Unmarshal([]byte(text), &out); err != nil {
		return types.NewErr("invalid JSON: %v", err)
	}
	return types.DefaultTypeAdapter.NativeToValue(out)
}

func parseYAML(v ref.Val) ref.Val {
	text, is := v.(types.String)
	if !is {
		return types.MaybeNoSuchOverloadErr(v)
	}
	plain, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return types.NewErr("invalid YAML: %v", err)
	}
	return parseJSON(types.String(plain))
}

// Plain converts a Go value to its JSON value: maps, lists, strings, bools, int64 and float64.
func Plain(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out any
	if err := utiljson.Unmarshal(text, &out); err != nil {
		return nil, err
	}
	return out, nil
}
