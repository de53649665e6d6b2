// Package printer writes results as kubectl does: plain tables, and versioned objects as JSON, YAML, names or by a
// template. It is the only package that knows tablewriter and how wide the terminal is.
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

// Table is rows below upper-case headers, without lines, like kubectl's.
type Table struct {
	Header []string
	Rows   [][]string
	// NoHeader leaves the headers out (--no-headers).
	NoHeader bool
}

// What stands for an empty cell.
const (
	None  = "<none>" // as in kubectl's tables
	Blank = " "      // where to have nothing is the rule
)

// gap is between two columns, as in kubectl's tables.
const gap = "   "

// The narrowest that a column is made, in columns of the terminal. A last one that would get narrower goes below the
// others.
const (
	leastLast  = 24 // the longest text
	leastOther = 12
)

// Add appends a row; empty cells become <none>.
func (t *Table) Add(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = None
		}
	}
	t.Rows = append(t.Rows, cells)
}

// Write renders the table. Cells are escaped, since kernel log lines and node names come from elsewhere. On a terminal
// that is too narrow the widest column is wrapped; where the others do not fit either, lines are left to the terminal,
// as kubectl does.
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

// leastFitted is the narrowest that Fit makes a column.
const leastFitted = 6

// Fit shortens the cells of the named columns until the table is at most width columns of a terminal wide. It shortens
// the widest column first, and takes characters out of the middle of its cells: the ends of names differ as often as
// their beginnings.
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

// shorten replaces the middle of a text with three dots until the text is at most width columns wide.
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

// indent is before a last column that is below the others.
const indent = "    "

// escaped returns the rows as they may be shown, the header first.
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

// tooWide returns the widest column, and how many columns of the terminal are left for it; -1, 0 where all fit, and
// where there is no terminal.
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

// render pads the columns to the same width.
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
		lines = append(lines, strings.TrimRight(line, " \n")) // tablewriter pads the last column too
	}
	return lines, nil
}
