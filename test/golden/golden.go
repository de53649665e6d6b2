// Package golden compares what a test got with a file in testdata, and rewrites the file with -update:
//
//	go test ./plugin/printer -update
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/aymanbagabas/go-udiff"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Compare fails the test when got is not what testdata/name holds.
func Compare(t testing.TB, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if diff := udiff.Unified("want", "got", string(want), got); diff != "" {
		t.Errorf("%s differs; if what is new is right, rewrite the file with go test -update:\n%s", file, diff)
	}
}
