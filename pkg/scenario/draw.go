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

// draw gives each parameter its value: what the user gave, or what the seed says. A parameter's draw depends on the
// seed and its name only, so that neither a further parameter nor one that is given changes the others.
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

// choose draws one of n. Seeds come in blocks of n, and each block has an order of its own, in which every one comes
// once: few seeds in a row show many variants.
func choose(seed int64, name string, n int) int {
	block, position := uint64(seed)/uint64(n), uint64(seed)%uint64(n)
	order := make([]int, n)
	for i := range order { // Fisher and Yates, from the inside out
		j := pick(fmt.Sprint(name, " ", block, " ", i), i+1)
		order[i], order[j] = order[j], i
	}
	return order[position]
}

// pick draws one of n by a hash, and not by a generator of Go's library, whose releases may change it: a seed that
// somebody has written down must mean the same for ever.
func pick(what string, n int) int {
	sum := sha256.Sum256([]byte(what))
	high, _ := bits.Mul64(binary.BigEndian.Uint64(sum[:]), uint64(n))
	return int(high)
}

// compute evaluates the parameters that are made of others, those first that the others need.
func compute(drawn map[string]any, computed map[string]*expr.Program, facts any) error {
	for len(computed) > 0 {
		ready := slices.DeleteFunc(slices.Sorted(maps.Keys(computed)), func(name string) bool {
			return slices.ContainsFunc(computed[name].Fields("p"),
				func(needs string) bool { return computed[needs] != nil })
		})
		if len(ready) == 0 {
			return fmt.Errorf("params: %s need each other", strings.Join(slices.Sorted(maps.Keys(computed)), ", "))
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

// accept returns a value that the user gave, if the parameter may have it.
func (p Param) accept(name, value string) (any, error) {
	switch {
	case len(p.OneOf) > 0:
		names := make([]string, len(p.OneOf))
		for i, choice := range p.OneOf {
			if names[i] = choiceName(choice); names[i] == value {
				return choice, nil
			}
		}
		return nil, fmt.Errorf("%s=%s: it can be %s", name, value, strings.Join(names, ", "))
	case len(p.Between) == 2:
		n, err := strconv.Atoi(value)
		if err != nil || n < p.Between[0] || n > p.Between[1] {
			return nil, fmt.Errorf("%s=%s: it can be a number from %d to %d", name, value, p.Between[0], p.Between[1])
		}
		return int64(n), nil
	}
	data, err := yaml.YAMLToJSON([]byte(value)) // a parameter that is computed may be anything
	if err != nil {
		return nil, fmt.Errorf("%s=%s: no YAML: %w", name, value, err)
	}
	var out any
	return out, kjson.UnmarshalCaseSensitivePreserveInts(data, &out)
}

// choiceName returns how a user names one of the values: by itself, or by the name within it.
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
		return fmt.Errorf("the scenario has no parameter %s: did you mean %s?", name, meant)
	}
	if len(names) == 0 {
		return fmt.Errorf("the scenario has no parameter %s, and no other", name)
	}
	return fmt.Errorf("the scenario has no parameter %s: there are %s", name, strings.Join(names, ", "))
}
