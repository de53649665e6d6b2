// Package expr evaluates the expressions of scenario files: CEL, the language of Kubernetes' own validation rules, with
// its extensions for strings, lists, sets, maths, regular expressions and optionals, and with
//
//	quantity("16Gi")   a number, also of a number: quantity(a) < quantity(b); null and what is not a quantity are
//	                   errors
//	isQuantity(x)      whether it is one
//	parseJSON(text)    what the text says
//	now                in checks only: the time
//
// Expressions stand in strings as ${...}; $${ is a ${ that is meant as such. A file that comes from somebody else can
// neither hang nor blow up the program with them: their cost is bounded, and evaluating ends with the context.
package expr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
)

// Vars are the values of an expression's variables: what JSON has, with ints as int or int64, and time.Time,
// time.Duration.
type Vars map[string]any

// maxCost and maxTime bound what one evaluation may do. A check that looks at each container of a thousand pods costs
// some ten thousand; the cost of functions that make lists is not counted as high as it is, hence the time.
const (
	maxCost = 2_000_000
	maxTime = 10 * time.Second
)

// Program is a compiled expression. It may be used by many goroutines.
type Program struct {
	text string
	ast  *cel.Ast
	run  cel.Program
	vars []string
}

// Error is one thing that is wrong with an expression, with where in its text.
type Error struct {
	Line, Column int // from 1
	Message      string
}

func (e *Error) Error() string {
	if e.Line <= 1 {
		return fmt.Sprintf("%s (at character %d)", e.Message, e.Column)
	}
	return fmt.Sprintf("%s (at line %d, character %d)", e.Message, e.Line, e.Column)
}

// Compile compiles an expression that may use the variables of these names. Its error holds an *Error for each problem.
func Compile(text string, names ...string) (*Program, error) {
	if strings.TrimSpace(text) == "" {
		return nil, &Error{Line: 1, Column: 1, Message: "empty expression"}
	}
	env, err := environment(names)
	if err != nil {
		return nil, err
	}
	if p := env.load(text); p != nil {
		return p, nil
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, explain(issues, names)
	}
	run, err := env.Program(ast, cel.CostLimit(maxCost), cel.InterruptCheckFrequency(20))
	if err != nil {
		return nil, &Error{Line: 1, Column: 1, Message: oneLine(err.Error())} // a regular expression that is none, say
	}
	p := &Program{text: text, ast: ast, run: run, vars: slices.Clone(names)}
	env.store(text, p)
	return p, nil
}

// Text returns the expression as it was compiled.
func (p *Program) Text() string { return p.text }

// Eval evaluates. The result is what JSON has, with ints as int64; Omit where the expression says omit; times and
// durations as text.
func (p *Program) Eval(ctx context.Context, v Vars) (any, error) {
	in := make(map[string]any, len(p.vars))
	for _, name := range p.vars {
		in[name] = v[name] // null when it is not given
	}
	if _, given := v[omitName]; !given && slices.Contains(p.vars, omitName) {
		in[omitName] = omitVal
	}
	bounded, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	out, _, err := p.run.ContextEval(bounded, in)
	if err != nil {
		return nil, p.evalError(ctx, bounded, err)
	}
	if types.IsUnknownOrError(out) {
		return nil, fmt.Errorf("%v", out)
	}
	return native(out)
}

// Bool evaluates an expression that must say true or false.
func (p *Program) Bool(ctx context.Context, v Vars) (bool, error) {
	out, err := p.Eval(ctx, v)
	if err != nil {
		return false, err
	}
	b, is := out.(bool)
	if !is {
		return false, fmt.Errorf("%s says %s, and not true or false", p.text, show(out))
	}
	return b, nil
}

// evalError returns CEL's error in plain English.
func (p *Program) evalError(ctx, bounded context.Context, err error) error {
	text := oneLine(err.Error())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case bounded.Err() != nil, strings.Contains(text, "actual cost limit exceeded"):
		return errors.New(
			"the expression takes too long: look at fewer objects (a selector), or not at each pair of them",
		)
	case strings.HasPrefix(text, "no such overload"):
		return errors.New(
			"an operator or a function is used with values of types that it does not take, such as a string and a number",
		)
	}
	if key, found := strings.CutPrefix(text, "no such key: "); found {
		if objects := p.lookups(key); len(objects) > 0 {
			return fmt.Errorf("%s has no field %q", strings.Join(objects, " or "), key)
		}
		return fmt.Errorf("field %q does not exist", key)
	}
	if index, found := strings.CutPrefix(text, "index out of bounds: "); found {
		return fmt.Errorf("the list has no item %s (the first is 0)", index)
	}
	return errors.New(text)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
