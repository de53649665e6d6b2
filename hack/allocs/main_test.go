package main

import (
	"io"
	"strings"
	"testing"
)

const csvOf = `,a.txt,,b.txt
,allocs/op,CI,allocs/op,CI,vs base,P
Save-2,100,1%%,%s,1%%,%s,p=0.008 n=5
geomean,100,,100,,+0.00%%,
`

// TestBudget protects the budget: ten percent more allocations fail, what may be chance does not, and a result that
// cannot be read is an error.
func TestBudget(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		now, difference string
		fails           bool
	}{
		"same": {"100", "~", false}, "a little more": {"109", "+9.00%", false}, "too many": {"111", "+11.00%", true},
		"chance": {"150", "~", false}, "fewer": {"50", "-50.00%", false},
	} {
		table := strings.NewReplacer("%%", "%").Replace(strings.Replace(strings.Replace(csvOf, "%s", c.now, 1), "%s",
			c.difference, 1))
		changes, err := parse([]byte(table))
		if err != nil || len(changes) != 1 {
			t.Fatalf("%s: %v, %v", name, changes, err)
		}
		if err := judge(io.Discard, changes); (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{"", "Save-2,a,1%,2,1%,~,p\n"} {
		if _, err := parse([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// TestEveryBenchmarkIsCompared protects against budgets that are held in name only: benchstat leaves out a benchmark
// that only one file has.
func TestEveryBenchmarkIsCompared(t *testing.T) {
	t.Parallel()
	now := onlyAllocs([]byte(`goos: linux
pkg: example.com/a
BenchmarkSave-2   	       5	    333474 ns/op	  105953 B/op	     681 allocs/op
BenchmarkSave-2   	       5	    181987 ns/op	  102404 B/op	     677 allocs/op
PASS
`))
	want := "pkg: example.com/a\nBenchmarkSave-2\t5\t681 allocs/op\nBenchmarkSave-2\t5\t677 allocs/op\n"
	if string(now) != want {
		t.Errorf("kept %q", now)
	}
	if err := sameBenchmarks(now, now); err != nil {
		t.Error(err)
	}
	other := strings.ReplaceAll(string(now), "Save", "Get")
	if err := sameBenchmarks([]byte(other), now); err == nil ||
		!strings.Contains(err.Error(), "BenchmarkSave-2 is not in") ||
		!strings.Contains(err.Error(), "BenchmarkGet-2 did not run") {
		t.Errorf("the differences are %v", err)
	}
}
