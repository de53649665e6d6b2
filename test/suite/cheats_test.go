package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The table of cheats in docs/scenarios.md has the numbers of test/cheats.
func TestTableOfCheats(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../cheats/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	page, err := os.ReadFile("../../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	cheats, repairs := 0, 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		attempts, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pack, err := os.ReadFile("../../pkg/scenario/packs/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var made struct {
			Sealed struct{ Solutions, WrongFixes []any }
		}
		if err := yaml.Unmarshal([]byte(withAttempts(string(pack), string(attempts))), &made); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		n, m := len(made.Sealed.WrongFixes), len(made.Sealed.Solutions)
		cheats, repairs = cheats+n, repairs+m
		if row := fmt.Sprintf("| %s | %d | %d |", name, n, m); !strings.Contains(string(page), row) {
			t.Errorf("docs/scenarios.md lacks the row %q", row)
		}
	}
	if row := fmt.Sprintf("| all | %d | %d |", cheats, repairs); !strings.Contains(string(page), row) {
		t.Errorf("docs/scenarios.md lacks the row %q", row)
	}
}
