package doctor

import (
	"slices"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// TestChecksAreWhole verifies that IDs, which are a contract, are unique, and that all findings in Explains exist.
func TestChecksAreWhole(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.ID] {
			t.Errorf("%s is there twice", c.ID)
		}
		seen[c.ID] = true
		if c.Title == "" || c.Reads == "" || c.Why == "" || c.Layer == "" || c.Run == nil || len(c.Needs) == 0 {
			t.Errorf("%s lacks a title, what it reads, why, its layer, its needs or its function: %+v", c.ID, c)
		}
		if !slices.Contains(finding.Layers(), c.Layer) {
			t.Errorf("%s is of layer %q, which is none", c.ID, c.Layer)
		}
	}
	for _, c := range Checks() {
		for _, pattern := range c.Explains {
			found := slices.ContainsFunc(Checks(),
				func(other engine.Check) bool { return finding.AnyMatches([]string{pattern}, other.ID) })
			if !found {
				t.Errorf("%s explains %q, which no check finds", c.ID, pattern)
			}
		}
	}
}
