package engine

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestACheckThatCrashesIsUnknown verifies that a check that panics is reported as unknown, and that its earlier
// findings are kept. It must not crash doctor.
func TestACheckThatCrashesIsUnknown(t *testing.T) {
	t.Parallel()
	r := &Result{Check: Check{ID: "x.y", Layer: finding.LayerWorkload, Run: func(_ *facts.Facts, r *Result) {
		r.Add(finding.Finding{Title: "found before"})
		var none []string
		_ = none[len(r.Findings)]
	}}}
	r.Run(facts.New(&snapshot.Snapshot{}))
	if len(r.Findings) != 1 || len(r.Unknowns) != 1 || !strings.Contains(r.Unknowns[0].Why, "this check failed: ") ||
		!strings.Contains(r.Unknowns[0].Why, "index out of range") ||
		!strings.HasSuffix(r.Unknowns[0].Why, "; please report it") {
		t.Errorf("findings %v, unknown %v", r.Findings, r.Unknowns)
	}
}
