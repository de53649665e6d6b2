package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLimits protects what `make bench` promises: a figure above its limit is reported, and fails the command.
func TestLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		row row
		ok  bool
	}{
		"below":            {compared("a", "s", sample{1, 2, 3}, "b", sample{20}).within(0.15), true},
		"above":            {compared("a", "s", sample{1, 4, 5}, "b", sample{20}).within(0.15), false},
		"no limit":         {compared("a", "s", sample{100}, "b", sample{1}).judged(), true},
		"little more":      {compared("a", "ms", sample{0.060}, "b", sample{0.031}).atMost(30), true},
		"too much more":    {compared("a", "ms", sample{0.062}, "b", sample{0.031}).atMost(30), false},
		"nothing to count": {row{None: true}.judged(), true},
		"one failure":      {row{None: true, Median: 1}.judged(), false},
	} {
		if c.row.OK != c.ok {
			t.Errorf("%s: ok is %t, want %t: %+v", name, c.row.OK, c.ok, c.row)
		}
		r := report{Items: []row{c.row}}
		if err := r.verdict(); (err == nil) != c.ok {
			t.Errorf("%s: the verdict is %v", name, err)
		}
		var text strings.Builder
		if err := r.print(&text, "table"); err != nil || strings.Contains(text.String(), "over") == c.ok {
			t.Errorf("%s: %v\n%s", name, err, text.String())
		}
	}
}

// TestAudited protects the number of requests: a watch counts once, and other clients do not count.
func TestAudited(t *testing.T) {
	t.Parallel()
	const before = `{"auditID":"0","userAgent":"kubectl/v1"}` + "\n"
	log := filepath.Join(t.TempDir(), "audit.json")
	err := os.WriteFile(log, []byte(before+`{"auditID":"1","userAgent":"kubectl-gpu_fault/v0"}
{"auditID":"1","userAgent":"kubectl-gpu_fault/v0"}
{"auditID":"2","userAgent":"Go-http-client/1.1"}
{"auditID":"3","userAgent":"bench/v0"}
{"auditID":"4","userAgent":"kubectl/v1.36.3"}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := audited(log, int64(len(before))); err != nil || got != 3 {
		t.Errorf("%d requests, want 3: %v", got, err)
	}
}

// TestChoose protects -what: measurements run in their own order, and an unknown name is an error before anything runs.
func TestChoose(t *testing.T) {
	t.Parallel()
	chosen, err := choose("doctor,xid")
	if err != nil || len(chosen) != 2 || chosen[0].name != "xid" || chosen[1].name != "doctor" {
		t.Errorf("chose %v, %v", chosen, err)
	}
	if _, err := choose("xid,speed"); err == nil {
		t.Error("an unknown measurement was accepted")
	}
}
