package tsv

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A mistake in a table is told with its place, and nothing is read past it.
func TestEach(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text, rows, err string
	}{
		"rows":            {"# why\ncode\tname\n2\toom\n# more\n3\t-\n", "map[code:2 name:oom] map[code:3]", ""},
		"no last newline": {"code\tname\n2\toom", "map[code:2 name:oom]", ""},
		"no rows":         {"code\tname\n", "", ""},
		"other columns": {
			"name\tcode\n2\toom\n", "", `t.tsv:1: the columns are ["name" "code"], expected ["code" "name"]`,
		},
		"too few cells":    {"code\tname\n2\toom\n3\n", "map[code:2 name:oom]", "t.tsv:3: 1 cell, expected 2"},
		"empty cell":       {"code\tname\n2\t\n", "", "t.tsv:2: cell name is empty or padded"},
		"padded cell":      {"code\tname\n2 \toom\n", "", "t.tsv:2: cell code is empty or padded"},
		"refused by a row": {"code\tname\n666\tevil\n3\tok\n", "map[code:666 name:evil]", "t.tsv:2: no"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var rows []string
			err := Each("t.tsv", test.text, "code name", func(row map[string]string) error {
				rows = append(rows, fmt.Sprint(row))
				if row["code"] == "666" {
					return errors.New("no")
				}
				return nil
			})
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if strings.Join(rows, " ") != test.rows {
				t.Errorf("rows %v, want %s", rows, test.rows)
			}
		})
	}
}
