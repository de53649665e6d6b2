package expect

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
)

// TestJUnitOfAFaultThatStays: a command with --expect reverts nothing, so its report must not say that all is as
// before.
func TestJUnitOfAFaultThatStays(t *testing.T) {
	t.Parallel()
	for inPlace, want := range map[bool]string{true: "the fault is in place", false: "everything is restored"} {
		var out strings.Builder
		if err := JUnit(&out, experiment.Result{Name: "XID 79", Passed: true, InPlace: inPlace}); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); !strings.Contains(text, `name="`+want+`"`) || strings.Count(text, "<testcase") != 1 {
			t.Errorf("in place: %t:\n%s", inPlace, text)
		}
	}
}
