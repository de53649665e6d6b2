package terraform

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// Limits of evaluation, so that a module cannot exhaust the machine that grades it. Each step can exceed them
// only by a small factor.
const (
	maxItems   = 100      // in a list or map, number of resources, and number of instances for count and for_each
	maxString  = 16 << 10 // total length of the strings in a value, in bytes
	maxValues  = 5000     // number of values in a value
	maxNesting = 40       // brackets within brackets
	maxParts   = 30       // in a string with ${}
	maxSteps   = 20_000   // total of all for expressions
	maxLooped  = 4 << 20  // total of strings that all for expressions process, in bytes
)

// bounded reports whether the nesting in a file is within the limit, and records a problem if it is not.
func (r *reader) bounded(name string, text []byte) bool {
	tokens, found := hclsyntax.LexConfig(text, name, hcl.InitialPos)
	if found.HasErrors() {
		r.diagnosed(found)
		return false
	}
	depth, signs := 0, 0
	for _, token := range tokens {
		switch token.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp,
			hclsyntax.TokenTemplateControl, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd,
			hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc:
			depth--
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenQuestion:
			signs++
		case hclsyntax.TokenNewline:
			signs = 0
		}
		if depth > maxNesting || signs > maxNesting {
			r.at(token.Range, "nested more than %d levels deep", maxNesting)
			return false
		}
	}
	return true
}

// bounds records problems for expressions whose values may be far larger than their source, and counts the others.
func (r *reader) bounds(body *hclsyntax.Body) { _ = hclsyntax.Walk(body, bounds{r}) }

type bounds struct{ *reader }

// Enter implements hclsyntax.Walker.
func (b bounds) Enter(node hclsyntax.Node) hcl.Diagnostics {
	if m, is := node.(metered); is {
		node = m.Expression
	}
	switch e := node.(type) {
	case *hclsyntax.ForExpr:
		e.ValExpr = metered{e.ValExpr, b.reader, e.ValExpr.Variables()}
	case *hclsyntax.TupleConsExpr:
		b.most(len(e.Exprs), maxItems, "elements", e.Range())
	case *hclsyntax.ObjectConsExpr:
		b.most(len(e.Items), maxItems, "elements", e.Range())
	case *hclsyntax.FunctionCallExpr:
		b.most(len(e.Args), maxItems, "arguments", e.Range())
	case *hclsyntax.TemplateExpr:
		b.most(len(e.Parts), maxParts, "parts", e.Range())
	}
	return nil
}

// Exit implements hclsyntax.Walker.
func (bounds) Exit(hclsyntax.Node) hcl.Diagnostics { return nil }

// metered is the body of a for expression. The evaluations of this body are counted and limited.
type metered struct {
	hclsyntax.Expression
	reader *reader
	refers []hcl.Traversal
}

// Value implements hcl.Expression.
func (m metered) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	if m.reader.steps++; m.reader.steps > maxSteps || m.reader.made > maxLooped {
		place := m.Range()
		return cty.DynamicVal, hcl.Diagnostics{{
			Severity: hcl.DiagError, Summary: "for expressions are too expensive", Subject: &place,
			Detail: fmt.Sprintf("All for expressions together may have at most %d iterations, and process strings of "+
				"at most %d MiB.",
				maxSteps,
				maxLooped>>20),
		}}
	}
	for _, t := range m.refers { // count the inputs, regardless of the result
		if value, found := t.TraverseAbs(ctx); !found.HasErrors() {
			m.reader.made += texted(value)
		}
	}
	value, found := m.Expression.Value(ctx)
	if found.HasErrors() { // the next iteration would have the same errors
		m.reader.steps = maxSteps
	}
	return value, found
}

// texted returns the total length of the strings in a value, in bytes.
func texted(value cty.Value) (length int) {
	_ = cty.Walk(value, func(_ cty.Path, v cty.Value) (bool, error) {
		if !v.IsNull() && v.IsKnown() && v.Type() == cty.String {
			length += len(v.AsString())
		}
		return true, nil
	})
	return length
}

func (b bounds) most(n, most int, what string, place hcl.Range) {
	if n > most {
		b.at(place, "has %d %s, but the maximum is %d", n, what, most)
	}
}

// small reports whether a value is within the limits, and records a problem if it is not.
func (r *reader) small(value cty.Value, place hcl.Range, address string) bool {
	if err := size(value); err != nil {
		r.at(place, "%s: %v", address, err)
		return false
	}
	return true
}

// size returns an error if a value is too large.
func size(value cty.Value) error {
	values, length := 0, 0
	return cty.Walk(value, func(_ cty.Path, v cty.Value) (bool, error) {
		if values++; values > maxValues {
			return false, fmt.Errorf("has more than %d values", maxValues)
		}
		if v.IsNull() || !v.IsKnown() {
			return false, nil
		}
		if v.Type() == cty.String {
			if length += len(v.AsString()); length > maxString {
				return false, fmt.Errorf("has strings of more than %d KiB", maxString>>10)
			}
		}
		if v.CanIterateElements() && v.LengthInt() > maxItems {
			return false, fmt.Errorf("has a list or map of size %d, but the maximum is %d", v.LengthInt(), maxItems)
		}
		return true, nil
	})
}

// wide matches verbs of the format function that have a large width.
var wide = regexp.MustCompile(`%[^a-zA-Z%]*[0-9]{4}`)

// swells returns an error if the result would be far larger than the arguments.
func swells(name string, args []cty.Value) error {
	var words []string
	for _, arg := range args {
		if arg.Type() == cty.String && arg.IsWhollyKnown() && !arg.IsNull() {
			words = append(words, arg.AsString())
		}
	}
	switch {
	case (name == "format" || name == "formatlist") && len(words) > 0 && wide.MatchString(words[0]):
		return function.NewArgErrorf(0, "has a width greater than 999")
	case name == "replace" && len(words) == 3 && strings.Count(words[0], words[1])*len(words[2]) > maxString:
		return function.NewArgErrorf(2, "creates a string of more than %d KiB", maxString>>10)
	}
	return nil
}

// limited returns a function with limits on its arguments and result. uses is called with the total length of the
// strings in each argument.
func limited(name string, f function.Function, uses func(bytes int)) function.Function {
	return function.New(&function.Spec{
		VarParam: f.VarParam(), Params: f.Params(),
		Type: func(args []cty.Value) (cty.Type, error) {
			for i, arg := range args {
				uses(texted(arg))
				if err := size(arg); err != nil {
					return cty.NilType, function.NewArgError(i, err)
				}
			}
			if err := swells(name, args); err != nil {
				return cty.NilType, err
			}
			return f.ReturnTypeForValues(args)
		},
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			value, err := f.Call(args)
			if err != nil {
				return cty.NilVal, err
			}
			return value, size(value)
		},
	})
}
