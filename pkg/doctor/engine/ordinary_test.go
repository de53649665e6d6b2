package engine

import (
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// TestWarningThatExplainsAnError verifies that a warning becomes an error if a workload does not run because of it, so
// that --fail-on error does not miss it. Other warnings remain warnings.
func TestWarningThatExplainsAnError(t *testing.T) {
	t.Parallel()
	cause := Check{ID: "cause", Title: "cause", Layer: finding.LayerDriver, Explains: []string{"middle"}}
	middle := Check{
		ID: "middle", Title: "middle", Layer: finding.LayerRuntime, Explains: []string{"wl.pod-failing", "dp.x"},
	}
	failing := Check{ID: "wl.pod-failing", Title: "failing", Layer: finding.LayerWorkload}
	plugin := Check{ID: "dp.x", Title: "plugin", Layer: finding.LayerDevicePlugin}
	warning := func(c Check, nodes ...string) *Result {
		r := told(t, c, nodes...)
		for i := range r.Findings {
			r.Findings[i].Severity = finding.Warning
		}
		return r
	}
	for name, c := range map[string]struct {
		results []*Result
		want    string
	}{
		"a pod fails for it": {
			[]*Result{warning(cause, "n1"), warning(middle, "n1"), told(t, failing, "n1/p")}, "error",
		},
		"no pod fails": {
			[]*Result{warning(cause, "n1"), warning(middle, "n1"), told(t, plugin, "n1")}, "warning",
		},
		"a pod elsewhere": {
			[]*Result{warning(cause, "n1"), warning(middle, "n1"), told(t, failing, "n2/p")}, "warning",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, _ := Gather(c.results, nil, []Check{cause, middle, failing, plugin})
			items, _ := Fold(found)
			for _, f := range items {
				if f.ID == "cause" && (!f.Root || string(f.Severity) != c.want) {
					t.Errorf("the cause is a root %t of severity %s, want %s", f.Root, f.Severity, c.want)
				}
			}
		})
	}
}
