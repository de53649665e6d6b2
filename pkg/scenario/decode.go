package scenario

import (
	"encoding/json"
	"errors"
	"reflect"

	kjson "sigs.k8s.io/json"
)

// Document is a value read from a file, with the positions of its parts.
type Document[T any] struct {
	Value T
	file  string
	root  *node
}

// Decode reads a file in another format as strictly as Parse reads a scenario. The error is of type Problems.
func Decode[T any](file string, data []byte) (*Document[T], error) {
	r := &reader{file: file}
	root := r.read(data)
	if root == nil || len(r.problems) > 0 {
		return nil, r.sorted()
	}
	(&checker{reader: r}).check(root, reflect.TypeFor[T](), "", rolePlain)
	if len(r.problems) > 0 {
		return nil, r.sorted()
	}
	d := &Document[T]{file: file, root: root}
	raw, err := json.Marshal(root.plain())
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &d.Value)
	}
	if err != nil {
		return nil, Problems{{File: file, Message: err.Error()}}
	}
	return d, nil
}

// Problem returns the error as a problem in a part of the file. path consists of the names of fields and the indices of
// items.
func (d *Document[T]) Problem(err error, field string, path ...any) *Problem {
	at := d.root
	for _, step := range path {
		next := (*node)(nil)
		switch step := step.(type) {
		case string:
			next = at.get(step)
		case int:
			if step < len(at.items) {
				next = at.items[step]
			}
		}
		if next == nil {
			break
		}
		at = next
	}
	var one *Problem
	if errors.As(err, &one) {
		return one
	}
	return &Problem{File: d.file, Line: at.line, Column: at.column, Field: field, Message: err.Error()}
}
