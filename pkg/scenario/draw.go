package scenario

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/suggest"
)

// draw returns a value for each parameter: the one that the user specified, or one drawn from the seed. A drawn value
// depends only on the seed and the parameter's name, so adding or setting one parameter does not change the others.
func (s *Scenario) draw(seed int64, given map[string]string, own *WorkloadFacts, facts any) (map[string]any, error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, is := s.Params[name]; !is {
			errs = append(errs, unknownParam(name, s.Params))
		}
	}
	drawn := map[string]any{}
	computed := map[string]*expr.Program{}
	for _, name := range slices.Sorted(maps.Keys(s.Params)) {
		value, is := given[name]
		var err error
		switch param := s.Params[name]; {
		case is:
			drawn[name], err = param.accept(name, value)
		case param.Expr != "":
			computed[name], err = expr.Compile(param.Expr, "p", "facts")
			if err != nil {
				err = fmt.Errorf("params.%s.expr: %w", name, err)
			}
		case len(param.OneOf) > 0:
			drawn[name] = param.OneOf[choose(seed, name, len(param.OneOf))]
		case len(param.Between) == 2:
			drawn[name] = int64(
				param.Between[0] + pick(fmt.Sprint(name, " ", seed), param.Between[1]-param.Between[0]+1),
			)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if own != nil {
		if err := s.Workload.on(own, seed, given, drawn); err != nil {
			return nil, err
		}
	}
	return drawn, compute(drawn, computed, facts)
}

// choose draws one of n values. Seeds come in blocks of n, and within a block each value occurs exactly once, so a few
// consecutive seeds show many variants.
func choose(seed int64, name string, n int) int {
	block, position := uint64(seed)/uint64(n), uint64(seed)%uint64(n)
	order := make([]int, n)
	for i := range order { // Fisher-Yates shuffle, inside-out
		j := pick(fmt.Sprint(name, " ", block, " ", i), i+1)
		order[i], order[j] = order[j], i
	}
	return order[position]
}

// pick draws one of n values by hashing. It does not use a generator from Go's standard library, because a new release
// might change the generator, and a recorded seed must always have the same meaning.
func pick(what string, n int) int {
	sum := sha256.Sum256([]byte(what))
	high, _ := bits.Mul64(binary.BigEndian.Uint64(sum[:]), uint64(n))
	return int(high)
}

// compute evaluates the computed parameters in order of their dependencies.
func compute(drawn map[string]any, computed map[string]*expr.Program, facts any) error {
	for len(computed) > 0 {
		ready := slices.DeleteFunc(slices.Sorted(maps.Keys(computed)), func(name string) bool {
			return slices.ContainsFunc(computed[name].Fields("p"),
				func(needs string) bool { return computed[needs] != nil })
		})
		if len(ready) == 0 {
			return fmt.Errorf(
				"params: circular dependency between %s", strings.Join(slices.Sorted(maps.Keys(computed)), ", "),
			)
		}
		for _, name := range ready {
			value, err := computed[name].Eval(context.Background(), expr.Vars{"p": drawn, "facts": facts})
			if err != nil {
				return fmt.Errorf("params.%s.expr: %w", name, err)
			}
			drawn[name] = value
			delete(computed, name)
		}
	}
	return nil
}

// accept parses and validates a value that the user specified.
func (p Param) accept(name, value string) (any, error) {
	switch {
	case len(p.OneOf) > 0:
		names := make([]string, len(p.OneOf))
		for i, choice := range p.OneOf {
			if names[i] = choiceName(choice); names[i] == value {
				return choice, nil
			}
		}
		return nil, fmt.Errorf(
			"invalid value %q for parameter %s: supported values: %s", value, name, strings.Join(names, ", "),
		)
	case len(p.Between) == 2:
		n, err := strconv.Atoi(value)
		if err != nil || n < p.Between[0] || n > p.Between[1] {
			return nil, fmt.Errorf("invalid value %q for parameter %s: must be a number from %d to %d",
				value, name, p.Between[0], p.Between[1])
		}
		return int64(n), nil
	}
	data, err := yaml.YAMLToJSON([]byte(value)) // a computed parameter may have any type
	if err != nil {
		return nil, fmt.Errorf("invalid value %q for parameter %s: not valid YAML: %w", value, name, err)
	}
	var out any
	return out, kjson.UnmarshalCaseSensitivePreserveInts(data, &out)
}

// choiceName returns the name that users specify for a value: the value itself, or its name field.
func choiceName(choice any) string {
	switch choice := choice.(type) {
	case string:
		return choice
	case map[string]any:
		if name, is := choice["name"].(string); is {
			return name
		}
	}
	text, err := json.Marshal(choice)
	if err != nil {
		return fmt.Sprint(choice)
	}
	return string(text)
}

func unknownParam(name string, params map[string]Param) error {
	names := slices.Sorted(maps.Keys(params))
	if meant := suggest.Nearest(name, names); meant != "" {
		return fmt.Errorf("unknown parameter %s; did you mean %s?", name, meant)
	}
	if len(names) == 0 {
		return fmt.Errorf("unknown parameter %s: the scenario has no parameters", name)
	}
	return fmt.Errorf("unknown parameter %s; supported parameters: %s", name, strings.Join(names, ", "))
}
