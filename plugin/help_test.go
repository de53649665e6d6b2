package plugin

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// TestHelpKeepsIndentedLines: what a reader copies from the help, such as YAML with its comments, is printed as it was
// written.
func TestHelpKeepsIndentedLines(t *testing.T) {
	t.Parallel()
	indented := 0
	for _, cmd := range withSubcommands(NewCommand(genericiooptions.NewTestIOStreamsDiscard())) {
		var out bytes.Buffer
		writeHelp(&out, cmd)
		for line := range strings.SplitSeq(cmd.Long, "\n") {
			if !strings.HasPrefix(line, " ") {
				continue
			}
			indented++
			if !strings.Contains(out.String(), "\n"+line+"\n") {
				t.Errorf("%s --help changes the line %q", cmd.CommandPath(), line)
			}
		}
	}
	if indented < 10 {
		t.Errorf("only %d indented lines in all help", indented)
	}
}

func TestParagraphs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 30)
	yaml := "    component: scheduler            # " + long
	text := "One\nparagraph.\n\nA head:\n\n" + yaml + "\n    object: x\n\nThe end."
	if got := paragraphs(&bytes.Buffer{}, text); got != "One paragraph.\n\nA head:\n\n"+strings.TrimRight(yaml, "\n")+
		"\n    object: x\n\nThe end." {
		t.Errorf("%q", got)
	}
}
