package exercise

import (
	"slices"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// TestSampled protects the trust in samples: with as many seeds in a row as there are attempts, each is played.
func TestSampled(t *testing.T) {
	t.Parallel()
	attempts := []scenario.Attempt{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	seen := map[string]int{}
	for seed := int64(-3); seed < 3; seed++ {
		for _, attempt := range sampled(attempts, seed) {
			seen[attempt.Name]++
		}
	}
	if len(seen) != 3 || seen["a"] != 2 || seen["b"] != 2 || seen["c"] != 2 {
		t.Errorf("six seeds in a row drew %v, want each attempt twice", seen)
	}
	if drawn := sampled(nil, 1); len(drawn) > 0 {
		t.Errorf("of no attempts %v was drawn", drawn)
	}
}

// TestUnplanned protects cases that only some variants have: each is played once, with the first seed that has it, and
// the first of each seed looks for the answer in what the candidate can read.
func TestUnplanned(t *testing.T) {
	t.Parallel()
	of := func(names ...string) (all []*trial) {
		for i, name := range names {
			all = append(all, &trial{name: name, search: i == 0})
		}
		return all
	}
	planned := map[string]bool{}
	for _, test := range []struct{ has, want []string }{
		{[]string{"a", "b"}, []string{"a", "b"}},
		{[]string{"a", "c", "d"}, []string{"c", "d"}},
		{[]string{"b", "c"}, nil},
	} {
		var got []string
		for i, trial := range unplanned(of(test.has...), planned) {
			got = append(got, trial.name)
			if trial.search != (i == 0) {
				t.Errorf("%s: search is %t", trial.name, trial.search)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%v: %v, want %v", test.has, got, test.want)
		}
	}
}
