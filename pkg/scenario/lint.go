package scenario

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// Variables returns the variables that the check's expect expression may use.
func (c Check) Variables() []string {
	v := []string{"p", "facts", "now"}
	switch {
	case c.Object != nil:
		v = append(v, "o", "was")
	case c.Objects != nil:
		v = append(v, "list", "was")
	case c.Logs != nil:
		v = append(v, "text")
	case c.Events != nil:
		v = append(v, "list")
	case c.Exec != nil:
		v = append(v, "stdout", "stderr", "code")
	case c.HTTP != nil:
		v = append(v, "status", "body")
	case c.Can != nil:
		v = append(v, "allowed", "reason")
	case c.Probe != nil:
		v = append(v, "o", "text", "list")
	case c.Handler != nil:
		v = append(v, "o")
	case c.Terraform != "":
		v = append(v, "list")
	}
	if len(c.With) > 0 {
		v = append(v, "with")
	}
	return v
}

// Lint finds problems that Parse cannot find: expressions that do not compile or use unknown names, too few variants,
// solutions or wrong fixes, points that do not add up, and answers leaked in text that the candidate reads. It also
// resolves the scenario with each choice of its parameters, for a cluster with two nodes with two GPUs each. Problems
// that are not warnings must be fixed before the scenario can be used.
func (s *Scenario) Lint() []Problem {
	src, err := s.from()
	if err != nil {
		return problemsOf(err)
	}
	l := linter{reader: &reader{file: src.file, lines: src.lines}, s: s, root: src.root}
	l.expressions(src.root, "")
	broken := len(l.problems) > 0
	l.counts()
	l.weights()
	l.choices()
	l.names()
	l.otherwise()
	l.devices()
	l.module()
	if !broken { // otherwise, each problem would be reported twice
		l.play()
	}
	return l.reader.distinct()
}

type linter struct {
	*reader
	s    *Scenario
	root *node
}

func problemsOf(err error) []Problem {
	var out []Problem
	for _, p := range Places(err) {
		out = append(out, *p)
	}
	return out
}

// distinct returns the problems in file order, without duplicates.
func (r *reader) distinct() []Problem {
	var out []Problem
	for _, p := range r.sorted() {
		if !slices.Contains(out, *p) {
			out = append(out, *p)
		}
	}
	return out
}

// wrong reports an error at a node.
func (l *linter) wrong(n *node, field, format string, args ...any) {
	l.fail(n.line, n.column, field, format, args...)
}

// warn reports a warning at a node.
func (l *linter) warn(n *node, field, format string, args ...any) {
	l.fail(n.line, n.column, field, format, args...)
	l.problems[len(l.problems)-1].Warning = true
}

// expressions compiles all expressions below a node.
func (l *linter) expressions(n *node, path string) {
	if n.owner == reflect.TypeFor[Check]() {
		l.expect(n, path)
	}
	text, is := n.value.(string)
	switch {
	case !is:
	case n.role == roleText:
		l.text(n, text, path)
	case n.role == roleWhen, n.role == roleExpr:
		l.program(n, text, path, "p", "facts")
	}
	for _, e := range n.keys {
		if n.role == roleText && n.owner == nil {
			l.text(&node{line: e.line, column: e.column}, e.name, expr.Join(path, e.name))
		}
		l.expressions(e.value, expr.Join(path, e.name))
	}
	for i, item := range n.items {
		l.expressions(item, fmt.Sprintf("%s[%d]", path, i))
	}
}

func (l *linter) text(n *node, text, path string) {
	programs, err := expr.Compiled(text, "p", "facts")
	if err != nil {
		l.exprError(n, path, err)
	}
	for _, p := range programs {
		l.uses(n, path, p)
	}
}

func (l *linter) program(n *node, text, path string, names ...string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	p, err := expr.Compile(text, names...)
	if err != nil {
		l.exprError(n, path, err)
		return
	}
	l.uses(n, path, expr.Placed{Program: p, Line: 1, Column: 1})
}

// expect compiles a check's expect expression, whose variables depend on the source of the check.
func (l *linter) expect(n *node, path string) {
	e := n.get("expect")
	if e == nil || e.value == nil {
		return
	}
	var c Check
	for _, key := range n.keys { // the keys determine the source, regardless of their values
		switch key.name {
		case "object":
			c.Object = &Ref{}
		case "objects":
			c.Objects = &Selector{}
		case "with":
			c.With = map[string]Selector{"": {}}
		case "logs":
			c.Logs = &Logs{}
		case "events":
			c.Events = &Ref{}
		case "exec":
			c.Exec = &Exec{}
		case "http":
			c.HTTP = &HTTP{}
		case "can":
			c.Can = &Can{}
		case "probe":
			c.Probe = &Probe{}
		case "handler":
			c.Handler = &Handler{}
		case "terraform":
			c.Terraform = "some"
		}
	}
	l.program(e, e.value.(string), expr.Join(path, "expect"), c.Variables()...)
}

// uses verifies that the parameters and facts in an expression exist.
func (l *linter) uses(n *node, path string, p expr.Placed) {
	line, column := l.place(n, &expr.Error{Line: p.Line, Column: p.Column})
	for _, name := range p.Fields("p") {
		if _, is := l.s.Params[name]; !is {
			l.fail(line, column, path, "p.%s: %v", name, unknownParam(name, l.s.Params))
		}
	}
	known := fields(reflect.TypeFor[Facts]())
	for _, name := range p.Fields("facts") {
		if !slices.ContainsFunc(known, func(f field) bool { return f.name == name }) {
			l.fail(line, column, path, "unknown fact %s%s", name, nearest(name, known))
		}
	}
}

// leastVariants is the minimum number of variants, and of wrong fixes, for a scenario that is worth repeating.
const leastVariants = 3

func (l *linter) counts() {
	sealed := l.root.find("sealed")
	if n := l.variants(); n < leastVariants {
		l.wrong(l.root.find("params"), "params",
			"found %d, but at least %d are required, so that the answer cannot be memorized", n, leastVariants)
	}
	if n := len(l.s.Sealed.WrongFixes); n < leastVariants {
		l.wrong(sealed.find("wrongFixes"), "sealed.wrongFixes",
			"found %d, but at least %d are required to test that grading distinguishes a fix from a workaround",
			n, leastVariants)
	}
	if len(l.s.Sealed.Solutions) == 0 {
		l.wrong(sealed.find("solutions"), "sealed.solutions",
			"is empty: at least one solution is required")
	}
	for i, a := range l.s.Sealed.Solutions {
		if len(a.Steps) == 0 && !l.nothingBroken() {
			l.wrong(item(sealed.find("solutions"), i), fmt.Sprintf("sealed.solutions[%d].steps", i),
				"is empty: doing nothing is a solution only if nothing is broken")
		}
	}
	for i, a := range l.s.Sealed.WrongFixes {
		if len(a.Steps) == 0 {
			l.warn(item(sealed.find("wrongFixes"), i), fmt.Sprintf("sealed.wrongFixes[%d].steps", i), "is empty")
		}
	}
	if g := l.s.Sealed.Grade; len(g.Fixed) == 0 && !(l.nothingBroken() && len(g.Unchanged) > 0) {
		l.wrong(sealed.find("grade"), "sealed.grade.fixed", "is empty: every attempt would pass")
	} else if len(g.Unchanged) == 0 && !l.nothingBroken() {
		l.warn(sealed.find("grade"), "sealed.grade.unchanged",
			"is empty: only sealed.grade.fixed and the collateral check detect workarounds")
	}
	if len(l.s.Sealed.Broken) == 0 {
		l.wrong(sealed.find("broken"), "sealed.broken", "is empty: at least one check must verify the symptom")
	}
	if len(l.s.Setup) > 0 && len(l.s.Healthy) == 0 {
		l.warn(l.root.find("setup"), "healthy",
			"is empty: nothing verifies that setup works before the fault is injected")
	}
}

// otherwise verifies that requires.otherwise names an existing scenario, and that the setting can take effect.
func (l *linter) otherwise() {
	name := l.s.Requires.Otherwise
	if name == "" {
		return
	}
	at, field := l.root.find("requires").find("otherwise"), "requires.otherwise"
	if !l.s.Requires.NetworkPolicy {
		l.wrong(at, field, "requires networkPolicy: true")
	}
	other, err := Find(name)
	switch {
	case err != nil:
		l.wrong(at, field, "%v", err)
	case other.Requires.NetworkPolicy:
		l.wrong(at, field, "scenario %s also requires networkPolicy", name)
	}
}

// devices verifies that a scenario with unhealthy devices specifies the necessary requirements.
func (l *linter) devices() {
	if l.s.Requires.DevicePlugin && l.s.Requires.NodeAccess {
		return
	}
	for _, part := range []string{"setup", "inject"} {
		for i, step := range l.root.find(part).list() {
			if device := step.get("device"); device != nil {
				l.wrong(device, fmt.Sprintf("%s[%d].device", part, i),
					"requires.devicePlugin and requires.nodeAccess must be set")
			}
		}
	}
}

// item returns the i-th item of a list, or the list itself if it is too short.
func item(n *node, i int) *node {
	if i < len(n.items) {
		return n.items[i]
	}
	return n
}

func (l *linter) nothingBroken() bool { return nothing(l.s.Sealed.RootCause.Component.Value) }

// variants returns the number of combinations of parameter values, up to a limit.
func (l *linter) variants() int {
	n := 1
	for _, p := range l.s.Params {
		switch {
		case len(p.OneOf) > 0:
			n *= len(p.OneOf)
		case len(p.Between) == 2:
			n *= p.Between[1] - p.Between[0] + 1
		}
		n = min(max(n, 1), 1_000_000)
	}
	return n
}
