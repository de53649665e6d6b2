package snapshot

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Sorting in place gives what sorting a copy gives, for every kind of permutation: cycles of any length, and elements
// that are where they belong.
func TestArrange(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 50 {
		all, order := random.Perm(n), random.Perm(n)
		want := make([]int, n)
		for to, from := range order {
			want[to] = all[from]
		}
		given := slices.Clone(order)
		arrange(all, order)
		if !slices.Equal(all, want) {
			t.Errorf("order %v: %v, wanted %v", given, all, want)
		}
	}
}
