package experiment

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
)

// A repeated experiment has a table with the spread of its times; another one does not.
func TestHTMLOfRounds(t *testing.T) {
	t.Parallel()
	ok := func(round int, name string, seconds float64) experiment.Verdict {
		return experiment.Verdict{Name: name, Round: round, OK: true, State: experiment.StateOK, After: seconds}
	}
	page := HTML(experiment.Result{Name: "x", Verdicts: []experiment.Verdict{
		ok(1, "cordoned", 3), ok(2, "cordoned (2)", 1), ok(3, "cordoned (3)", 12),
	}})
	const want = "<tr><td>cordoned</td><td>3 of 3</td><td>3.0s</td><td>1.0s</td><td>12.0s</td></tr>"
	if !strings.Contains(page, want) {
		t.Error(page)
	}
	page = HTML(experiment.Result{Verdicts: []experiment.Verdict{ok(0, "a", 1)}})
	if strings.Contains(page, "Median") {
		t.Error("an experiment that was not repeated has a table of rounds")
	}
}
