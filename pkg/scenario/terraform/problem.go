package terraform

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Problem is an error at a position in a module.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // from 1
	Message string `json:"message"`
}

// Error returns the problem in the format of compiler errors: FILE:LINE:COLUMN: MESSAGE.
func (p Problem) Error() string {
	if p.Line == 0 {
		return p.File + ": " + p.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
}

// Problems contains all problems in a module, sorted by file and line.
type Problems []Problem

// Error returns one problem per line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// mostProblems is the maximum number of problems to report. One mistake may cause many problems.
const mostProblems = 20

// problems collects problems.
type problems struct{ all Problems }

func (p *problems) at(place hcl.Range, format string, args ...any) {
	p.all = append(p.all, Problem{
		File: place.Filename, Line: place.Start.Line, Column: place.Start.Column, Message: fmt.Sprintf(format, args...),
	})
}

// diagnosed adds the diagnostics from the HCL library.
func (p *problems) diagnosed(found hcl.Diagnostics) {
	for _, d := range found {
		if d.Severity != hcl.DiagError {
			continue
		}
		var place hcl.Range
		if d.Subject != nil {
			place = *d.Subject
		}
		message := d.Summary
		if d.Detail != "" {
			message += ": " + d.Detail
		}
		p.at(place, "%s", strings.Join(strings.Fields(message), " "))
	}
}

// err returns the problems, or nil if there are none.
func (p *problems) err() error {
	if len(p.all) == 0 {
		return nil
	}
	sorting.StableFunc(p.all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	all := slices.Compact(p.all)
	return all[:min(len(all), mostProblems)]
}

// place returns the position without the column.
func (p Problem) place() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }
