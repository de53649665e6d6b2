// Package printer writes results as kubectl does: plain tables, and versioned objects as JSON, YAML, names or by a template. It is
// the only package that knows tablewriter.
package printer

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
	"k8s.io/cli-runtime/pkg/printers"
)

// Table is rows below upper-case headers, without lines, like kubectl's.
type Table struct {
	Header []string
	Rows   [][]string
	// NoHeader leaves the headers out (--no-headers).
	NoHeader bool
}

// None stands for an empty cell, as in kubectl's tables.
const None = "<none>"

// Add appends a row; empty cells become <none>.
func (t *Table) Add(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = None
		}
	}
	t.Rows = append(t.Rows, cells)
}

// Write renders the table. Cells are escaped, since kernel log lines and node names come from elsewhere.
func (t *Table) Write(w io.Writer) error {
	var out bytes.Buffer
	table := tablewriter.NewTable(&out,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders:  tw.BorderNone,
			Settings: tw.Settings{Lines: tw.LinesNone, Separators: tw.SeparatorsNone},
		})),
		tablewriter.WithHeaderAlignment(tw.AlignLeft),
		tablewriter.WithRowAlignment(tw.AlignLeft),
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone),
		tablewriter.WithTrimSpace(tw.Off),
		tablewriter.WithPadding(tw.Padding{Right: "   ", Overwrite: true}),
	)
	if !t.NoHeader {
		table.Header(t.Header)
	}
	for _, row := range t.Rows {
		safe := make([]string, len(row))
		for i, cell := range row {
			safe[i] = Escape(cell)
		}
		if err := table.Append(safe); err != nil {
			return fmt.Errorf("table: %w", err)
		}
	}
	if err := table.Render(); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	for line := range strings.Lines(out.String()) {
		// tablewriter pads the last column too.
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// Escape makes text from elsewhere safe to show on a terminal.
func Escape(text string) string {
	var b strings.Builder
	_ = printers.WriteEscaped(&b, text) // a Builder does not fail
	return b.String()
}
