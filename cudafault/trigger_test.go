package cudafault

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The shim computes the same; the numbers are those of splitmix64's reference for the seed 1234567.
func TestHash(t *testing.T) {
	t.Parallel()
	for i, want := range []uint64{
		6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
	} {
		if got := hash(1234567, uint64(i)); got != uint32(want>>32) {
			t.Errorf("hash(1234567, %d) = %#x, want %#x", i, got, want>>32)
		}
	}
}

func TestTrips(t *testing.T) {
	t.Parallel()
	trips := func(s State, n int) (out []int) {
		for i := range n {
			if s.Trips(uint64(i)) {
				out = append(out, i)
			}
		}
		return out
	}
	for name, test := range map[string]struct {
		state State
		want  []int
	}{
		"each":       {State{}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
		"after":      {State{AfterCalls: 8}, []int{8, 9}},
		"every":      {State{Every: 4}, []int{0, 4, 8}},
		"every 1":    {State{Every: 1, AfterCalls: 9}, []int{9}},
		"both":       {State{AfterCalls: 3, Every: 3}, []int{3, 6, 9}},
		"always":     {State{Probability: 1, AfterCalls: 9}, []int{9}},
		"by chance":  {State{Probability: 0.5, Seed: 1234567}, []int{0, 1, 3, 5, 7, 8}},
		"never soon": {State{AfterCalls: math.MaxUint64}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, trips(test.state, 10)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if n := len(trips(State{Probability: 0.1, Seed: 7}, 100_000)); n < 9_700 || n > 10_300 {
		t.Errorf("probability 0.1 trips %d of 100000", n)
	}
}

func TestImmediate(t *testing.T) {
	t.Parallel()
	for _, s := range []State{
		{}, {Probability: 1}, {Error: 1, Classes: ClassInit, Seed: 5, Rank: 2, MemLimit: 1, Devices: []int{1}},
	} {
		if !s.Immediate() {
			t.Errorf("%+v is not immediate", s)
		}
	}
	for _, s := range []State{
		{AfterCalls: 1}, {Every: 2}, {Probability: 0.5}, {Max: 1}, {After: 1e6}, {WindowFrom: 1e6}, {WindowTo: 1e6},
		{Function: "*"},
	} {
		if s.Immediate() {
			t.Errorf("%+v is immediate", s)
		}
	}
}
