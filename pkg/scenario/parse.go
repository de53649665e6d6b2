package scenario

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"slices"

	kjson "sigs.k8s.io/json"
)

// source is what a scenario was read from: it tells the places of what is wrong, and has the expressions that stand
// where the types have something else than text.
type source struct {
	file  string
	data  []byte
	lines []string
	root  *node
}

// Parse reads a scenario file, strictly: it finds unknown fields, wrong types, missing fields and such as exclude each
// other, all at once. The error is Problems, each with its line, column and field. What needs parameters and
// expressions is Lint's.
//
// Fields that are not text and have a ${} in the file are zero until Resolve. Resolve plays the file: change what it
// returns, and not what Parse does.
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

// sorted returns the problems as the file has them, the first hundred of them.
func (r *reader) sorted() Problems {
	slices.SortStableFunc(r.problems,
		func(a, b *Problem) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
	return r.problems[:min(len(r.problems), 100)]
}

// decode makes the types of a tree that was checked.
func decode(root *node) (*Scenario, error) {
	data, err := json.Marshal(root.plain())
	if err != nil {
		return nil, err
	}
	var s Scenario
	return &s, json.Unmarshal(data, &s)
}

// UnmarshalJSON keeps whole numbers whole: encoding/json would make 3 in a manifest or a parameter 3.0, which CEL
// cannot add to an int.
func (s *Scenario) UnmarshalJSON(data []byte) error {
	type plain Scenario // without this method
	return kjson.UnmarshalCaseSensitivePreserveInts(data, (*plain)(s))
}

// UnmarshalJSON keeps whole numbers whole.
func (p *Param) UnmarshalJSON(data []byte) error {
	type plain Param
	return kjson.UnmarshalCaseSensitivePreserveInts(data, (*plain)(p))
}

// UnmarshalJSON keeps whole numbers whole. It is also here so that the scenario's does not stand for all of it.
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

// from returns what the scenario was read from; for one that was made in Go, what its JSON has.
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
