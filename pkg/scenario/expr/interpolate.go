package expr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// PathError is an error at a path in a value, such as spec.containers[0].image.
type PathError struct {
	Path string
	Err  error
}

func (e *PathError) Error() string {
	if e.Path == "" {
		return e.Err.Error()
	}
	return e.Path + ": " + e.Err.Error()
}

// Unwrap returns the error without its path.
func (e *PathError) Unwrap() error { return e.Err }

// maxDepth limits the nesting of values; Kubernetes objects have about twenty levels.
const maxDepth = 100

// Interpolate copies a value that consists of maps, lists and scalars, and replaces each ${expression} in its strings.
// A string that consists of one expression becomes the result, of any type; an omitted value is removed with its key or
// list item. Keys must evaluate to strings. The error contains a *PathError for each invalid string.
func Interpolate(value any, v Vars) (any, error) {
	return InterpolateContext(context.Background(), value, v)
}

// InterpolateContext is like Interpolate, but stops when ctx is done.
func InterpolateContext(ctx context.Context, value any, v Vars) (any, error) {
	in := interpolation{ctx: ctx, vars: v, names: append(slices.Sorted(maps.Keys(v)), omitName)}
	out := in.value("", value, 0)
	return out, errors.Join(in.errs...)
}

type interpolation struct {
	ctx   context.Context
	vars  Vars
	names []string
	errs  []error
}

func (in *interpolation) fail(path string, err error) {
	in.errs = append(in.errs, &PathError{Path: path, Err: err})
}

func (in *interpolation) value(path string, value any, depth int) any {
	if depth > maxDepth {
		in.fail(path, fmt.Errorf("nested more than %d levels deep", maxDepth))
		return nil
	}
	switch value := value.(type) {
	case string:
		out, err := in.text(value)
		if err != nil {
			in.fail(path, err)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(value))
		for _, key := range slices.Sorted(maps.Keys(value)) {
			name, err := in.key(key)
			if err != nil {
				in.fail(Join(path, key), err)
			}
			if _, twice := out[name]; twice {
				in.fail(Join(path, key), fmt.Errorf("duplicate key %q", name))
			}
			if item := in.value(Join(path, key), value[key], depth+1); !isOmit(item) {
				out[name] = item
			}
		}
		return out
	case []any:
		out := make([]any, 0, len(value))
		for i, item := range value {
			if item := in.value(fmt.Sprintf("%s[%d]", path, i), item, depth+1); !isOmit(item) {
				out = append(out, item)
			}
		}
		return out
	}
	return value
}

func (in *interpolation) key(key string) (string, error) {
	value, err := in.text(key)
	if err != nil {
		return key, err
	}
	name, is := value.(string)
	if !is {
		return key, fmt.Errorf("key must be a string, not %s", show(value))
	}
	return name, nil
}

// text evaluates the expressions in a string.
func (in *interpolation) text(s string) (any, error) {
	if !strings.Contains(s, "${") {
		return s, nil
	}
	parts, err := split(s)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	for _, p := range parts {
		if !p.isExpr {
			out.WriteString(p.text)
			continue
		}
		value, err := in.eval(s, p)
		if err != nil {
			return nil, err
		}
		if len(parts) == 1 {
			return value, nil
		}
		text, err := asText(value)
		if err != nil {
			return nil, at(s, p.offset, "%v", err)
		}
		out.WriteString(text)
	}
	return out.String(), nil
}

func (in *interpolation) eval(s string, p part) (any, error) {
	program, err := Compile(p.text, in.names...)
	if err != nil {
		return nil, shift(s, p, err)
	}
	value, err := program.Eval(in.ctx, in.vars)
	if err != nil {
		return nil, at(s, p.offset, "${%s}: %v", p.text, err)
	}
	return value, nil
}

// asText converts a value for use in a longer string.
func asText(value any) (string, error) {
	switch value := value.(type) {
	case string:
		return value, nil
	case nil:
		return "", errors.New("null is not allowed within a longer string")
	case Omit:
		return "", errors.New("omit is not allowed within a longer string")
	case map[string]any, []any:
		text, err := json.Marshal(value)
		return string(text), err
	}
	return fmt.Sprint(value), nil
}

// shift converts the positions in an expression's errors to positions in the string that contains it.
func shift(s string, p part, err error) error {
	line, column := position(s, p.offset)
	var all []error
	for _, e := range Errors(err) {
		moved := *e
		if moved.Line == 1 {
			moved.Column += column - 1
		}
		moved.Line += line - 1
		all = append(all, &moved)
	}
	return errors.Join(all...)
}

// Errors returns the *Error values in an error. If there are none, it returns err itself, as an *Error at the first
// character.
func Errors(err error) []*Error {
	var e *Error
	var many interface{ Unwrap() []error }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &many):
		var all []*Error
		for _, one := range many.Unwrap() {
			all = append(all, Errors(one)...)
		}
		return all
	case errors.As(err, &e):
		return []*Error{e}
	}
	return []*Error{{Line: 1, Column: 1, Message: err.Error()}}
}

// Join returns the path of a key below a path: metadata.labels, metadata.labels["a.b/c"].
func Join(path, key string) string {
	plain := key != "" && !strings.ContainsAny(key, `.[]"/ `)
	switch {
	case !plain:
		return fmt.Sprintf("%s[%q]", path, key)
	case path == "":
		return key
	}
	return path + "." + key
}
