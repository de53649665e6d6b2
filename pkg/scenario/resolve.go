package scenario

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// Resolved is a scenario that is ready to start: its strings are interpolated, and parts that do not apply are removed.
// It survives a round trip through JSON.
type Resolved struct {
	Scenario
	Seed  int64          `json:"seed"`
	Drawn map[string]any `json:"drawn"` // the parameters
	Facts Facts          `json:"facts"`
}

// Resolve resolves the scenario for a seed and a cluster. The same seed, parameters and facts always give the same
// result. Parameters in given override the seed, and must be values that could be drawn. The result is validated as
// strictly as the file, so that an expression cannot add what Parse rejects. Errors in expressions are Problems, with
// their positions.
func (s *Scenario) Resolve(seed int64, given map[string]string, facts Facts) (*Resolved, error) {
	src, err := s.from()
	if err != nil {
		return nil, err
	}
	known, err := expr.Plain(facts)
	if err != nil {
		return nil, fmt.Errorf("facts: %w", err)
	}
	if facts.Workload != nil {
		if err := s.OnWorkload(); err != nil {
			return nil, err
		}
	}
	drawn, err := s.draw(seed, given, facts.Workload, known)
	if err != nil {
		return nil, err
	}
	r := &reader{file: src.file, lines: src.lines}
	p := player{reader: r, vars: expr.Vars{"p": drawn, "facts": known}}
	root := p.play(src.root, "")
	if len(r.problems) > 0 {
		return nil, r.sorted()
	}
	c := &checker{reader: r}
	c.check(root, reflect.TypeFor[Scenario](), "", roleText)
	if len(r.problems) > 0 {
		return nil, r.sorted()
	}
	played, err := decode(root)
	if err != nil {
		return nil, err
	}
	if facts.Simulation != nil {
		played.Public.Simulated = strings.TrimSpace(played.Public.Simulated + " " + SimulatedNote)
	}
	if w := facts.Workload; w != nil {
		// The workload is running, so its requirements are met.
		played.Requires.Nodes, played.Requires.GPUs, played.Requires.Images = 0, 0, nil
		access := &played.Public.Access
		access.Namespaces = slices.DeleteFunc(access.Namespaces, func(ns string) bool { return ns == w.Namespace })
		access.Workload = &Ref{APIVersion: "apps/v1", Kind: "Deployment", Namespace: w.Namespace, Name: w.Name}
	}
	played.source = &source{file: src.file, data: src.data, lines: src.lines, root: root}
	return &Resolved{Scenario: *played, Seed: seed, Drawn: drawn, Facts: facts}, nil
}

// player copies a tree and evaluates its expressions.
type player struct {
	*reader
	vars expr.Vars
}

// play returns the resolved node, or nil if it is omitted or its when condition is false.
func (p *player) play(n *node, path string) *node {
	if n.role == rolePlain || n.role == roleExpect || n.role == roleExpr {
		return n.clone()
	}
	switch n.shape {
	case mapping:
		return p.mapping(n, path)
	case list:
		out := *n
		out.items = nil
		for i, item := range n.items {
			if item := p.play(item, fmt.Sprintf("%s[%d]", path, i)); item != nil {
				out.items = append(out.items, item)
			}
		}
		return &out
	}
	return p.text(n, path)
}

func (p *player) mapping(n *node, path string) *node {
	out := *n
	out.keys = nil
	if when := n.get("when"); when != nil && when.role == roleWhen && !p.holds(when, path) {
		return nil
	}
	for _, e := range n.keys {
		if e.value.role == roleWhen {
			continue // the condition was true
		}
		e.name = p.key(n, e, path)
		if e.value = p.play(e.value, expr.Join(path, e.name)); e.value == nil {
			continue
		}
		if out.entry(e.name) != nil {
			p.fail(e.line, e.column, expr.Join(path, e.name), "duplicate key")
		}
		out.keys = append(out.keys, e)
	}
	return &out
}

// key returns the name of an entry. In manifests, it may contain expressions.
func (p *player) key(n *node, e entry, path string) string {
	if !strings.Contains(e.name, "${") || n.owner != nil {
		return e.name
	}
	at := &node{line: e.line, column: e.column}
	value, err := expr.Interpolate(e.name, p.vars)
	if err != nil {
		p.exprError(at, expr.Join(path, e.name), withoutPath(err))
		return e.name
	}
	name, is := value.(string)
	if !is {
		p.fail(e.line, e.column, expr.Join(path, e.name), "key must be a string, not %v", value)
		return e.name
	}
	return name
}

// withoutPath removes the path from an error returned by Interpolate; the caller knows a better path.
func withoutPath(err error) error {
	var at *expr.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// holds reports whether a when condition is true. If the condition cannot be evaluated, holds records a problem and
// returns true.
func (p *player) holds(n *node, path string) bool {
	text, _ := n.value.(string)
	if strings.TrimSpace(text) == "" {
		return true
	}
	program, err := expr.Compile(text, "p", "facts")
	if err == nil {
		var is bool
		if is, err = program.Bool(context.Background(), p.vars); err == nil {
			return is
		}
	}
	p.exprError(n, expr.Join(path, "when"), err)
	return true
}

func (p *player) text(n *node, path string) *node {
	text, is := n.value.(string)
	if !is || !strings.Contains(text, "${") {
		return n.clone()
	}
	value, err := expr.Interpolate(text, p.vars)
	if err != nil {
		p.exprError(n, path, withoutPath(err))
		return n.clone()
	}
	if value == (expr.Omit{}) {
		return nil
	}
	return n.graft(value)
}
