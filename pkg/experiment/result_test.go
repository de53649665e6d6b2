package experiment

import (
	"slices"
	"testing"
)

// Reports that compare or store verdicts rely on their keys: the same expectation has the same key in each result, and
// no two verdicts of a result have the same one, whatever their names.
func TestKeys(t *testing.T) {
	t.Parallel()
	r := Result{Verdicts: []Verdict{
		{Name: "cordoned", Round: 1}, {Name: "cordoned", Round: 1, Not: true}, {Name: "cordoned (2)", Round: 1},
		{Name: "cordoned (2)", Round: 2}, {Name: "a"}, {Name: "a #2"}, {Name: "a"}, {Name: "a"},
	}}
	want := []Key{
		{"cordoned", 1}, {"not cordoned", 1}, {"cordoned (2)", 1}, {"cordoned", 2},
		{"a", 0}, {"a #2", 0}, {"a #3", 0}, {"a #4", 0},
	}
	if got := r.Keys(); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// A trace has spans of what this tool did, and of the time from the proof to the reaction.
func TestResultsHaveTheTimesOfSpans(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.Play(t.Context(), parse(t, "repeat: 2\nsteps:\n- inject: {xid: 79}\n"+
		"- expect-not: [{name: cordoned, for: 1ms}]\n"), []string{"a"})
	did := 0
	for _, e := range r.Timeline {
		if e.What != WhatProven && e.What != WhatRevert {
			continue
		}
		if did++; e.Began.IsZero() || e.Began.After(e.Time) {
			t.Errorf("%+v", e)
		}
	}
	if did != 4 {
		t.Errorf("%d entries of this tool: %+v", did, r.Timeline)
	}
	for i, v := range r.Verdicts {
		if v.Round != i+1 || v.Proof.Before(r.Started) || v.Proof.After(r.Ended) {
			t.Errorf("%+v", v)
		}
	}
}
