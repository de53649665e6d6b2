package confirm

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// A script must never hang on a question, and never change anything because nobody answered.
func TestWithoutATerminalItNeedsYes(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader("y\n"), Out: &out, ErrOut: &errOut}
	err := Ask(t.Context(), streams, "Go on?", false)
	if err == nil || !strings.Contains(err.Error(), "--yes") || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("error %v: wanted one that names --yes and says that nothing was changed", err)
	}
	if err := Ask(t.Context(), streams, "Go on?", true); err != nil {
		t.Errorf("with --yes: %v", err)
	}
	if out.Len()+errOut.Len() > 0 {
		t.Errorf("it asked though nobody can answer: %q %q", out.String(), errOut.String())
	}
}
