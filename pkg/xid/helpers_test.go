package xid

import (
	"os"
	"strings"
	"testing"
)

// readLines returns the lines of a file of testdata without comments and empty ones.
func readLines(t testing.TB, file string) []string {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSuffix(line, "\n"); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

var gpu17 = PCI{Bus: 0x17}

func mustNew(t testing.TB, code int, o Options) Event {
	t.Helper()
	e, err := New(code, o)
	if err != nil {
		t.Fatalf("New(%d): %v", code, err)
	}
	return e
}

// wantError checks that err has every part of want in it.
func wantError(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}
