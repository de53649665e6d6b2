// Package tsv parses the tab-separated tables that are embedded in the program. The tables are edited manually and
// checked by tests.
package tsv

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Each calls the function do for every row of a table, as a map from column to cell. Cells that contain "-" count as
// empty and are omitted. The first line contains the column names, which must equal columns (separated by spaces).
// Lines that start with # are comments. Errors start with the file name and line number.
func Each(file, text, columns string, do func(row map[string]string) error) error {
	want := strings.Fields(columns)
	header := false
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "\t")
		if !header {
			if !slices.Equal(cells, want) {
				return fmt.Errorf("%s:%d: the columns are %q, expected %q", file, i+1, cells, want)
			}
			header = true
			continue
		}
		if len(cells) != len(want) {
			return fmt.Errorf("%s:%d: %s, expected %d", file, i+1, count.Of(len(cells), "cell"), len(want))
		}
		row := make(map[string]string, len(cells))
		for j, c := range cells {
			if c == "" || c != strings.TrimSpace(c) {
				return fmt.Errorf("%s:%d: cell %s is empty or padded; write - for an empty cell", file, i+1, want[j])
			}
			if c != "-" {
				row[want[j]] = c
			}
		}
		if err := do(row); err != nil {
			return fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
	}
	return nil
}
