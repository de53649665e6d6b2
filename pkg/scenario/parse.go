package scenario

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"slices"

	kjson "sigs.k8s.io/json"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// source is the file that a scenario was read from. It provides positions for problems, and the expressions in fields
// whose type is not string.
type source struct {
	file  string
	data  []byte
	lines []string
	root  *node
}

// Parse reads a scenario file strictly: it reports all unknown fields, wrong types, missing fields and mutually
// exclusive fields at once. The error is of type Problems; each Problem has its line, column and field. Lint checks
// parameters and expressions.
//
// Fields that are not strings but contain ${} in the file are zero until Resolve. Resolve uses the file, so change the
// result of Resolve, not that of Parse.
func Parse(file string, data []byte) (*Scenario, error) {
	r := &reader{file: file}
	root := r.read(data)
	if root == nil || len(r.problems) > 0 {
		return nil, r.sorted()
	}
	c := &checker{reader: r, expressions: true}
	c.check(root, reflect.TypeFor[Scenario](), "", roleText)
	if len(r.problems) > 0 {
		return nil, r.sorted()
	}
	s, err := decode(root)
	if err != nil {
		return nil, Problems{{File: file, Message: err.Error()}}
	}
	s.source = &source{file: file, data: bytes.Clone(data), lines: r.lines, root: root}
	return s, nil
}

// parsePublic parses the metadata, requirements and public part of a valid scenario file.
func parsePublic(file string, data []byte) (*Scenario, error) {
	var public []byte
	keep := false
	for line := range bytes.Lines(data) {
		if key, _, ok := bytes.Cut(line, []byte(":")); ok && len(bytes.TrimLeft(key, " #-")) == len(key) {
			keep = slices.Contains([]string{"apiVersion", "kind", "metadata", "requires", "public"}, string(key))
		}
		if keep {
			public = append(public, line...)
		}
	}
	r := &reader{file: file}
	root := r.read(public)
	if root == nil {
		return nil, r.sorted()
	}
	c := &checker{reader: r, expressions: true} // ignore its problems, which are about missing parts
	c.check(root, reflect.TypeFor[Scenario](), "", roleText)
	return decode(root)
}

// sorted returns the first hundred problems, in file order.
func (r *reader) sorted() Problems {
	sorting.StableFunc(r.problems,
		func(a, b *Problem) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
	return r.problems[:min(len(r.problems), 100)]
}

// decode converts a checked tree to a Scenario.
func decode(root *node) (*Scenario, error) {
	data, err := json.Marshal(root.plain())
	if err != nil {
		return nil, err
	}
	var s Scenario
	return &s, json.Unmarshal(data, &s)
}

// UnmarshalJSON preserves integers: encoding/json would turn 3 in a manifest or a parameter into 3.0, which CEL cannot
// add to an int.
func (s *Scenario) UnmarshalJSON(data []byte) error {
	type plain Scenario // without this method
	return kjson.UnmarshalCaseSensitivePreserveInts(data, (*plain)(s))
}

// UnmarshalJSON preserves integers.
func (p *Param) UnmarshalJSON(data []byte) error {
	type plain Param
	return kjson.UnmarshalCaseSensitivePreserveInts(data, (*plain)(p))
}

// UnmarshalJSON preserves integers. It also prevents Resolved from inheriting the method of the embedded Scenario.
func (r *Resolved) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &r.Scenario); err != nil {
		return err
	}
	var rest struct {
		Seed  int64          `json:"seed"`
		Drawn map[string]any `json:"drawn"`
		Facts Facts          `json:"facts"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &rest); err != nil {
		return err
	}
	r.Seed, r.Drawn, r.Facts = rest.Seed, rest.Drawn, rest.Facts
	return nil
}

// from returns the source that the scenario was read from, or a source built from its JSON if the scenario was created
// in Go.
func (s *Scenario) from() (*source, error) {
	if s.source != nil {
		return s.source, nil
	}
	data, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	parsed, err := Parse("", data)
	if err != nil {
		return nil, err
	}
	return parsed.source, nil
}
