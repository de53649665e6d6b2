package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// The columns of the matrix beside before and after.
const (
	during = "DURING" // killed, or disturbed, while the node is at work
	alone  = "TTL"    // nobody reverts: the time is up
)

var columns = []string{before, after, during, alone}

// trial is one cell of the matrix. Its run returns nil when everything is as it was before.
type trial struct {
	group, row, column string
	run                func(s *site) error
}

func (t trial) String() string { return fmt.Sprintf("%s: %s [%s]", t.group, t.row, t.column) }

// again matches the number of a step that a run takes several times: "save record (Applying) 2".
var again = regexp.MustCompile(` \d+$`)

// sample returns one trial of each kind of step, in the order in which they come. Those of several groups, such as the
// creation of a record, are drawn from the groups and columns in turn. Of trials that wait until the time is up, which
// takes minutes, each group has one.
func sample(all []trial) []trial {
	var rows []string
	of := map[string][]trial{}
	for _, t := range all {
		row := again.ReplaceAllString(t.row, "")
		if of[row] == nil {
			rows = append(rows, row)
		}
		of[row] = append(of[row], t)
	}
	var drawn []trial
	waits := map[string]bool{}
	for i, row := range rows {
		t := of[row][i%len(of[row])]
		if t.column == alone {
			if waits[t.group] {
				continue
			}
			waits[t.group] = true
		}
		drawn = append(drawn, t)
	}
	return drawn
}

// result is what became of a trial.
type result struct {
	trial
	err error
}

// printMatrix prints a table of the results and returns how many are right. Several results in a cell are right when
// all are.
func printMatrix(w io.Writer, results []result) (restored int) {
	type place struct{ group, row string }
	var rows []place
	cells := map[place]map[string]string{}
	for _, r := range results {
		at := place{r.group, r.row}
		if cells[at] == nil {
			rows, cells[at] = append(rows, at), map[string]string{}
		}
		switch {
		case r.err != nil:
			cells[at][r.column] = "FAIL"
		case cells[at][r.column] == "":
			cells[at][r.column] = "ok"
		}
		if r.err == nil {
			restored++
		}
	}
	width := 0
	for _, at := range rows {
		width = max(width, len(at.row)+2)
	}
	var groups []string
	for _, at := range rows {
		if !slices.Contains(groups, at.group) {
			groups = append(groups, at.group)
		}
	}
	line := func(first string, cell func(column string) string) {
		text := fmt.Sprintf("%-*s", width, first)
		for _, column := range columns {
			text += fmt.Sprintf("  %-6s", cell(column))
		}
		fmt.Fprintln(w, strings.TrimRight(text, " "))
	}
	for _, group := range groups {
		fmt.Fprintln(w)
		line(strings.ToUpper(group), func(column string) string { return column })
		for _, at := range rows {
			if at.group == group {
				line("  "+at.row, func(column string) string { return cells[at][column] })
			}
		}
	}
	return restored
}
