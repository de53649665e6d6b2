// Package tsv reads the tables that the program carries: cells separated by tabs, which people edit and tests check.
package tsv

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Each calls do with every row of a table: its cells by column, without those that are "-", which stands for an empty
// one. The first line names the columns (separated by blanks in columns), and lines that begin with # are comments.
// Errors begin with the file's name and line.
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
				return fmt.Errorf("%s:%d: the columns are %q, want %q", file, i+1, cells, want)
			}
			header = true
			continue
		}
		if len(cells) != len(want) {
			return fmt.Errorf("%s:%d: %s, want %d", file, i+1, count.Of(len(cells), "cell"), len(want))
		}
		row := make(map[string]string, len(cells))
		for j, c := range cells {
			if c == "" || c != strings.TrimSpace(c) {
				return fmt.Errorf("%s:%d: cell %s is empty or padded; write - for an empty one", file, i+1, want[j])
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
