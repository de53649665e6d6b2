package sorting

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSameAsSlices: both functions give the order of those of package slices; the stable one keeps equal elements.
func TestSameAsSlices(t *testing.T) {
	t.Parallel()
	type element struct{ key, place int }
	random := rand.New(rand.NewPCG(1, 2))
	byKey := func(a, b element) int { return cmp.Compare(a.key, b.key) }
	for n := range 300 {
		var all []element
		for i := range n {
			all = append(all, element{random.IntN(20), i})
		}
		want := slices.Clone(all)
		slices.SortStableFunc(want, byKey)
		stable, some := slices.Clone(all), slices.Clone(all)
		StableFunc(stable, byKey)
		Func(some, byKey)
		if !slices.Equal(stable, want) {
			t.Fatalf("%d elements: %v, want %v", n, stable, want)
		}
		if !slices.IsSortedFunc(some, byKey) {
			t.Fatalf("%d elements are not sorted: %v", n, some)
		}
	}
}
