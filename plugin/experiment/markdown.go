package experiment

import (
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/expect"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Markdown returns the verdicts of a result as a table, for the summary of a CI job or a comment.
func Markdown(r experiment.Result) string {
	word := "Failed"
	if r.Passed {
		word = "Passed"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "### %s: %s\n\n%s: %s\n\n", word, inMarkdown(r.Name), inMarkdown(nodes(r.Targets)),
		inMarkdown(expect.Summary(r)))
	if len(r.Verdicts) == 0 {
		return text.String()
	}
	text.WriteString("| Expected | Result | After | Limit | By | Seen |\n|---|---|---|---|---|---|\n")
	for _, v := range r.Verdicts {
		for _, cell := range cells(v) {
			text.WriteString("| " + inMarkdown(cell) + " ")
		}
		text.WriteString("|\n")
	}
	text.WriteString("\n")
	return text.String()
}

// inMarkdown returns text as one line that Markdown shows verbatim. Much of a report was written by others in the
// cluster, and must not become a link, an image, a mention or HTML in the page of a CI system.
func inMarkdown(text string) string {
	var out strings.Builder
	for _, r := range printer.Clean(strings.Join(strings.Fields(text), " ")) {
		switch {
		case strings.ContainsRune("&<>@#:|`", r): // a backslash disables neither mentions nor addresses
			fmt.Fprintf(&out, "&#%d;", r)
		case strings.ContainsRune(`\*_{}[]()~!+-.`, r):
			out.WriteRune('\\')
			out.WriteRune(r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}
