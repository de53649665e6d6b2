package progress

import (
	"bytes"
	"strings"
	"sync"
	"testing"
)

// On a pipe every step is one plain line, also when many nodes report at once.
func TestOnAPipeALinePerStep(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := New(&out)
	var wg sync.WaitGroup
	for _, node := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			r.Step(node, "debug pod running")
			r.Step(node, "1 record proven")
		})
	}
	wg.Wait()
	r.Note("a note with \x1b[31mcolor")
	if n := strings.Count(out.String(), "\n"); n != 9 {
		t.Errorf("%d lines, wanted 9:\n%s", n, out.String())
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("escape sequences on a pipe: %q", out.String())
	}
}

func TestCutKeepsOneLine(t *testing.T) {
	t.Parallel()
	if got := cut("0123456789", 6); len([]rune(got)) >= 6 {
		t.Errorf("%q does not fit a terminal of 6 columns", got)
	}
	if got := cut("short", 80); got != "short" {
		t.Errorf("%q", got)
	}
}
