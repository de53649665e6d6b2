// Package printer writes results as kubectl does: as plain tables, as versioned objects in JSON or YAML, as names, or
// with a template. Only this package imports tablewriter or depends on the terminal's width.
package printer

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/pkg/twwidth"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// Table is a plain table like kubectl's, with upper-case headers and without lines.
type Table struct {
	Header []string
	Rows   [][]string
	// NoHeader omits the headers (--no-headers).
	NoHeader bool
}

// Values of empty cells.
const (
	None  = "<none>" // as in kubectl's tables
	Blank = " "      // for columns that are usually empty
)

// gap is the separator of columns, as in kubectl's tables.
const gap = "   "

// The minimum widths of wrapped columns. If the last column would be narrower, it is printed below the others.
const (
	leastLast  = 24 // the last column has the longest text
	leastOther = 12
)

// Add appends a row. Empty cells become <none>.
func (t *Table) Add(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = None
		}
	}
	t.Rows = append(t.Rows, cells)
}

// Write writes the table. It escapes all cells, because kernel log lines and node names are untrusted. If the terminal
// is too narrow, it wraps the widest column. If this is not enough, the terminal wraps the lines, as it does with
// kubectl.
func (t *Table) Write(w io.Writer) error { return t.write(w, Width(w)) }

func (t *Table) write(w io.Writer, width int) error {
	rows := t.escaped()
	last := len(t.Header) - 1
	widest, room := tooWide(rows, width)
	stacked := widest == last && last > 0 && room > 0 && room < leastLast
	wrapped := widest == last && room >= leastLast || widest < last && room >= leastOther
	var below []string
	for i, row := range rows {
		switch {
		case stacked:
			below = append(below, row[last])
			rows[i] = row[:last]
		case wrapped:
			row[widest] = Wrap(row[widest], room)
		}
	}
	lines, err := render(rows)
	if err != nil {
		return fmt.Errorf("table: %w", err)
	}
	for i, line := range lines {
		if stacked {
			line += "\n" + strings.Join(WrapHanging(indent+below[i], width, indent), "\n")
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// leastFitted is the minimum width of a column that Fit shortens.
const leastFitted = 6

// Fit shortens the cells of the named columns until the table is at most width characters wide. It shortens the widest
// column first, and removes characters from the middle of cells, because names may differ at the start or at the end.
func (t *Table) Fit(width int, columns ...string) {
	widths := make([]int, len(t.Header))
	total := len(gap) * (len(widths) - 1)
	for _, row := range t.escaped() {
		for i, cell := range row {
			widths[i] = max(widths[i], twwidth.Width(cell))
		}
	}
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		widest := -1
		for i, name := range t.Header {
			if slices.Contains(columns, name) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 || widths[widest] <= leastFitted {
			break
		}
		widths[widest]--
	}
	for _, row := range t.Rows {
		for i, cell := range row {
			row[i] = shorten(escapeCell(cell), widths[i])
		}
	}
}

// shorten replaces the middle of text with three dots so that it is at most width columns wide.
func shorten(text string, width int) string {
	const dots = "..."
	all := []rune(text)
	left, right := min(len(all)/2, width), max(len(all)/2, len(all)-width)
	for short := text; ; short = string(all[:left]) + dots + string(all[right:]) {
		switch {
		case twwidth.Width(short) <= width || left == 0:
			return short
		case len(all)-right < left:
			left--
		default:
			right++
		}
	}
}

// indent is the indentation of a last column that is printed below the others.
const indent = "    "

// escaped returns the header and the rows with escaped cells.
func (t *Table) escaped() [][]string {
	all := t.Rows
	if !t.NoHeader {
		all = slices.Concat([][]string{t.Header}, t.Rows)
	}
	rows := make([][]string, len(all))
	for i, row := range all {
		for _, cell := range row {
			rows[i] = append(rows[i], escapeCell(cell))
		}
	}
	return rows
}

func escapeCell(cell string) string { return Clean(strings.ReplaceAll(cell, "\n", `\n`)) }

// tooWide returns the index of the widest column and the width available for it, or -1, 0 if all columns fit or the
// output is not a terminal.
func tooWide(rows [][]string, width int) (widest, room int) {
	if width <= 0 || len(rows) == 0 {
		return -1, 0
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], twwidth.Width(cell))
		}
	}
	room = width - len(gap)*(len(widths)-1)
	for i, w := range widths {
		if room -= w; w >= widths[widest] {
			widest = i
		}
	}
	if room >= 0 {
		return -1, 0
	}
	return widest, room + widths[widest]
}

// render pads each column to the same width in all rows.
func render(rows [][]string) ([]string, error) {
	var out bytes.Buffer
	table := tablewriter.NewTable(&out,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders:  tw.BorderNone,
			Settings: tw.Settings{Lines: tw.LinesNone, Separators: tw.SeparatorsNone},
		})),
		tablewriter.WithRowAlignment(tw.AlignLeft),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithTrimSpace(tw.Off),
		tablewriter.WithPadding(tw.Padding{Right: gap, Overwrite: true}),
	)
	for _, row := range rows {
		if err := table.Append(row); err != nil {
			return nil, err
		}
	}
	if err := table.Render(); err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.TrimRight(line, " \n")) // tablewriter also pads the last column
	}
	return lines, nil
}
