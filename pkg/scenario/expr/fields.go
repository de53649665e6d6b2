package expr

import (
	"fmt"
	"slices"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
)

// Fields returns the names that the expression looks up in a variable, sorted: a and b in p.a + p["b"]. It
// cannot detect computed names.
func (p *Program) Fields(variable string) []string {
	v := visitor{variable: variable}
	v.visit(p.ast.NativeRep().Expr(), false)
	slices.Sort(v.found)
	return slices.Compact(v.found)
}

type visitor struct {
	variable string
	found    []string
}

// visit walks an expression. shadowed means that a macro's own variable has the same name as the variable, as in
// pods.all(p, p.spec...).
func (v *visitor) visit(e ast.Expr, shadowed bool) {
	switch e.Kind() {
	case ast.SelectKind:
		if v.is(e.AsSelect().Operand(), shadowed) {
			v.found = append(v.found, e.AsSelect().FieldName())
		}
		v.visit(e.AsSelect().Operand(), shadowed)
	case ast.CallKind:
		v.call(e.AsCall(), shadowed)
	case ast.ListKind:
		for _, item := range e.AsList().Elements() {
			v.visit(item, shadowed)
		}
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			v.visit(entry.AsMapEntry().Key(), shadowed)
			v.visit(entry.AsMapEntry().Value(), shadowed)
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		v.visit(c.IterRange(), shadowed)
		v.visit(c.AccuInit(), shadowed)
		inner := shadowed || c.IterVar() == v.variable || c.IterVar2() == v.variable || c.AccuVar() == v.variable
		for _, part := range []ast.Expr{c.LoopCondition(), c.LoopStep(), c.Result()} {
			v.visit(part, inner)
		}
	}
}

func (v *visitor) call(c ast.CallExpr, shadowed bool) {
	lookups := []string{operators.Index, operators.OptIndex, operators.OptSelect}
	if args := c.Args(); len(args) == 2 && slices.Contains(lookups, c.FunctionName()) && v.is(args[0], shadowed) &&
		args[1].Kind() == ast.LiteralKind {
		if name, is := args[1].AsLiteral().(types.String); is {
			v.found = append(v.found, string(name))
		}
	}
	if c.IsMemberFunction() {
		v.visit(c.Target(), shadowed)
	}
	for _, arg := range c.Args() {
		v.visit(arg, shadowed)
	}
}

func (v *visitor) is(e ast.Expr, shadowed bool) bool {
	return !shadowed && e.Kind() == ast.IdentKind && e.AsIdent() == v.variable
}

// lookups returns the operands in which the expression looks up a field or a computed name: "o.spec" for replicas in
// o.spec.replicas.
func (p *Program) lookups(field string) []string {
	var all []string
	native := p.ast.NativeRep()
	ast.PreOrderVisit(native.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		var object ast.Expr
		switch e.Kind() {
		case ast.SelectKind:
			if s := e.AsSelect(); s.FieldName() == field && !s.IsTestOnly() {
				object = s.Operand()
			}
		case ast.CallKind:
			c := e.AsCall()
			if c.FunctionName() == operators.Index &&
				(c.Args()[1].Kind() != ast.LiteralKind || fmt.Sprint(c.Args()[1].AsLiteral().Value()) == field) {
				object = c.Args()[0]
			}
		}
		if object == nil {
			return
		}
		if text, err := parser.Unparse(object, native.SourceInfo()); err == nil &&
			!slices.Contains(all, oneLine(text)) {
			all = append(all, oneLine(text))
		}
	}))
	return all
}
