// Package expr evaluates the expressions of scenario files: CEL, the language of Kubernetes' own validation rules, with
// its extensions for strings, lists, sets, maths, regular expressions and optionals, and with
//
// quantity("16Gi")   converts a quantity or a number to a number: quantity(a) < quantity(b); null or an invalid
//
//	quantity is an error
//
// isQuantity(x)      reports whether x is a quantity
// parseJSON(string)  parses a string as JSON
// now                the current time, in checks only
//
// Expressions in strings are written ${...}; $${ is a literal ${. An untrusted file cannot block or exhaust the
// program: the cost of expressions is limited, and evaluation stops when the context is done.
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

// Vars are the values of an expression's variables: JSON values, with integers as int or int64, and also
// time.Time and time.Duration.
type Vars map[string]any

// maxCost and maxTime limit one evaluation. A check on each container in a thousand pods costs about ten thousand. The
// time limit is needed because CEL underestimates the cost of functions that create lists.
const (
	maxCost = 2_000_000
	maxTime = 10 * time.Second
)

// Program is a compiled expression. It is safe for concurrent use.
type Program struct {
	text string
	ast  *cel.Ast
	run  cel.Program
	vars []string
}

// Error is a problem in an expression, with its position.
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

// Compile compiles an expression that may use the given variables. Its error wraps an *Error for each problem.
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
		// For example, an invalid regular expression.
		return nil, &Error{Line: 1, Column: 1, Message: oneLine(err.Error())}
	}
	p := &Program{text: text, ast: ast, run: run, vars: slices.Clone(names)}
	env.store(text, p)
	return p, nil
}

// Text returns the source of the expression.
func (p *Program) Text() string { return p.text }

// Eval evaluates the expression. The result is a JSON value with integers as int64, and with times and
// durations as strings, or Omit if the expression is omit.
func (p *Program) Eval(ctx context.Context, v Vars) (any, error) {
	in := make(map[string]any, len(p.vars))
	for _, name := range p.vars {
		in[name] = v[name] // null if missing
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

// Bool evaluates an expression that must return a boolean.
func (p *Program) Bool(ctx context.Context, v Vars) (bool, error) {
	out, err := p.Eval(ctx, v)
	if err != nil {
		return false, err
	}
	b, is := out.(bool)
	if !is {
		return false, fmt.Errorf("%s must be true or false, not %s", p.text, show(out))
	}
	return b, nil
}

// evalError converts CEL's error to plain English.
func (p *Program) evalError(ctx, bounded context.Context, err error) error {
	text := oneLine(err.Error())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case bounded.Err() != nil, strings.Contains(text, "actual cost limit exceeded"):
		return errors.New(
			"the expression takes too long: use a selector to reduce the number of objects, or avoid comparing all pairs",
		)
	case strings.HasPrefix(text, "no such overload"):
		return errors.New(
			"an operator or a function does not support the types of its arguments, such as a string and a number",
		)
	}
	if key, found := strings.CutPrefix(text, "no such key: "); found {
		if objects := p.lookups(key); len(objects) > 0 {
			return fmt.Errorf("%s has no field %q", strings.Join(objects, " or "), key)
		}
		return fmt.Errorf("field %q does not exist", key)
	}
	if index, found := strings.CutPrefix(text, "index out of bounds: "); found {
		return fmt.Errorf("index %s is out of range", index)
	}
	return errors.New(text)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
