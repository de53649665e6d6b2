package exercise

import (
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
