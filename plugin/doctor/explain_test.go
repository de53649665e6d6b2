package doctor

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
)

// Of dozens of checks that explain one another `explain` names each, a line for a family, and not what all of them look
// for.
func TestExplainIsShort(t *testing.T) {
	t.Parallel()
	all := []engine.Check{
		{ID: "rt.root", Title: "root", Explains: []string{"*"}, Sources: []string{"seed 001", "gpu-operator#1"}},
	}
	for i := range 20 {
		all = append(all,
			engine.Check{ID: fmt.Sprintf("%s.x%d", []string{"dp", "wl"}[i%2], i), Title: "a title of a check"})
	}
	var out bytes.Buffer
	explain(genericiooptions.IOStreams{Out: &out, ErrOut: &out}, all[0], all)
	for _, want := range []string{"  dp.x0, dp.x2, ", "  wl.x1, wl.x3, ", "\nSeen in:\n  gpu-operator#1\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "a title") || strings.Contains(out.String(), "seed") {
		t.Errorf("titles of many checks, or a source that nobody can look up:\n%s", out.String())
	}
}

// Who writes the beginning of an ID, or mistypes a family, is told what there is.
func TestMistypedChecks(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"sched.bigger": "did you mean sched.bigger-than-any-node?",
		"schd.*":       "did you mean 'sched.*'?",
		"zzzzzzzz.*":   "families of checks: ",
	} {
		if err := known("--checks", []string{given}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, wanted %q", given, err, want)
		}
	}
}
