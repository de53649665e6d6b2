package scenario

import (
	"errors"
	"fmt"
	"strings"
)

// Problem is an error or a warning at a position in a file.
type Problem struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1; zero if unknown
	Column  int    `json:"column,omitempty"`
	Field   string `json:"field,omitempty"` // inject[0].create.objects[1].spec
	Message string `json:"message"`
	// Warning is set for a problem that may be intentional.
	Warning bool `json:"warning,omitempty"`
}

// ParseError is one Problem in an invalid scenario file. Parse returns all of them as Problems; errors.As finds the
// first.
type ParseError = Problem

// Error returns the problem in the format of compilers: FILE:LINE:COLUMN: FIELD: MESSAGE.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	for _, part := range []string{p.Field, p.Message} {
		if part == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(part)
	}
	return b.String()
}

// Problems are all problems in a file, sorted by line.
type Problems []*Problem

// Error returns one problem per line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the problems as errors.
func (p Problems) Unwrap() []error {
	all := make([]error, len(p))
	for i, one := range p {
		all[i] = one
	}
	return all
}

// Places returns the problems in an error, with their positions if known.
func Places(err error) Problems {
	var all Problems
	var one *Problem
	switch {
	case err == nil:
		return nil
	case errors.As(err, &all):
		return all
	case errors.As(err, &one):
		return Problems{one}
	}
	return Problems{{Message: err.Error()}}
}
