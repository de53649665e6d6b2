package report

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
)

// A color says nothing that the words do not say: without it the report is the same, letter by letter.
func TestColorSaysNothingByItself(t *testing.T) {
	t.Parallel()
	for _, wide := range []bool{false, true} {
		colored := written(t, Text{Width: 100, Wide: wide, Color: true}, twoContainerds())
		stripped := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(colored, "")
		if stripped == colored {
			t.Error("the report has no colors, so that this tests nothing")
		}
		if diff := cmp.Diff(written(t, Text{Width: 100, Wide: wide}, twoContainerds()), stripped); diff != "" {
			t.Errorf("wide %t (-plain +stripped of its colors):\n%s", wide, diff)
		}
	}
}

// Each state of a node has a sign of its own, for who does not see colors, and words for who sees nothing.
func TestStatesHaveSigns(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, s := range []doctor.State{doctor.Broken, doctor.Consequent, doctor.Warned, doctor.NotSeen, doctor.Good, ""} {
		c := cellOf(s)
		if other, twice := seen[c.Sign]; twice || c.Sign == "" || c.Words == "" {
			t.Errorf("the sign of %q, %q, is also that of %q, or says nothing", c.Words, c.Sign, other)
		}
		seen[c.Sign] = c.Words
	}
}
