package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sandbox"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/markup"
)

// Trajectory writes the trajectory of a program as a self-contained page: the report, with the commands that were
// executed.
func Trajectory(w io.Writer, t exercise.Trajectory, version string) error {
	if t.Report == nil {
		t.Report = &exercise.Report{Title: t.Scenario, Scenario: t.Scenario, Seed: t.Seed}
	}
	return page(w, *t.Report, version, programFacts(t), commands(t), requestLog(t))
}

// programFacts returns the section with the facts about the program.
func programFacts(t exercise.Trajectory) markup.Part {
	where := "in a sandbox"
	if !t.Isolated {
		where = "not isolated"
	}
	facts := []string{
		fmt.Sprintf("%s (%s)", t.Agent, where),
		fmt.Sprintf("%s, %s after %s", t.Outcome(), exited(t.Exit), human(t.Took)),
		fmt.Sprintf("%s executed, %s to the API server", count.Of(len(t.Commands)+t.Omitted, "command"),
			count.Of(len(t.Requests), "request")),
	}
	if u := t.Usage; u != nil {
		facts = append(facts, "as reported by the agent: "+u.String())
	}
	if t.Note != "" {
		facts = append(facts, t.Note)
	}
	return section("Agent", markup.El("ul", markup.Class("folded"),
		markup.Each(facts, func(text string) markup.Part { return markup.El("li", markup.Text(text)) })))
}

func exited(code int) string {
	switch {
	case code < 0:
		return "stopped"
	case code > 128:
		return fmt.Sprintf("terminated by signal %d", code-128)
	}
	return fmt.Sprintf("exit code %d", code)
}

// maxRows limits the rows of a chart or list.
const maxRows = 200

// commands returns a chart with a row for each command. The row shows when the command started, how long it took, and
// whether it failed. A command is indented below the one that started it.
func commands(t exercise.Trajectory) markup.Part {
	if len(t.Commands) == 0 {
		return section("Executed commands",
			markup.El("p", markup.Class("soft"), markup.Text("Not recorded: "+t.Unseen+".")))
	}
	const left, wide, row, words = 60, 300, 20, 380 // pixels; words is the x position of the command lines
	span := max(t.Took, time.Second)
	place := func(at time.Duration) int { return left + int(float64(min(at, span))/float64(span)*wide) }
	depth := map[int]int{} // by process ID
	rows := markup.Parts{}
	shown := t.Commands[:min(len(t.Commands), maxRows)]
	for i, c := range shown {
		if above, is := depth[c.Parent]; is {
			depth[c.PID] = above + 1
		} else if _, is := depth[c.PID]; !is {
			depth[c.PID] = 0
		}
		took := c.Took
		if c.Exit < 0 { // ran until the try ended
			took = span - c.At
		}
		y, class := i*row, "ok"
		if c.Exit != 0 {
			class = "failed"
		}
		rows = append(rows,
			markup.El("text", markup.Class("sub"), markup.Num("x", 0), markup.Num("y", y+14),
				markup.Text("+"+clock(c.At))),
			markup.El("rect", markup.Class(class), markup.Num("x", place(c.At)), markup.Num("y", y+4),
				markup.Num("width", max(2, place(c.At+took)-place(c.At))), markup.Num("height", row-8)),
			markup.El("text", markup.Num("x", words+12*min(depth[c.PID], 10)), markup.Num("y", y+14),
				markup.Text(line(c))),
		)
	}
	height := len(shown) * row
	more := len(t.Commands) - len(shown) + t.Omitted
	return section("Executed commands",
		markup.El("div", markup.Class("scroll"), markup.Attr("tabindex", "0"), markup.Attr("role", "group"),
			markup.Attr("aria-label", "Commands"), markup.El("svg", append(markup.Parts{
				markup.Class("commands"), markup.Num("width", 1100), markup.Num("height", height),
				markup.Attr("viewBox", fmt.Sprintf("0 0 1100 %d", height)), markup.Attr("role", "img"),
				markup.Attr("aria-label", count.Of(len(shown), "command")+" in "+human(span)),
			}, rows...)...)),
		markup.When(more > 0,
			markup.El("p", markup.Class("soft small"), markup.Text(fmt.Sprintf("and %d more", more)))))
}

// line formats a command as one line.
func line(c sandbox.Ran) string {
	text := strings.Join(strings.Fields(strings.Join(c.Args, " ")), " ")
	if runes := []rune(text); len(runes) > 100 {
		text = string(runes[:97]) + "..."
	}
	if c.Exit != 0 {
		text += " (" + exited(c.Exit) + ")"
	}
	return text
}

// requestLog returns the collapsible list of the program's requests.
func requestLog(t exercise.Trajectory) markup.Part {
	if len(t.Requests) == 0 {
		return nil
	}
	var lines []string
	for _, r := range t.Requests[:min(len(t.Requests), maxRows)] {
		what := strings.Trim(strings.Join([]string{r.Namespace, r.Resource, r.Name, r.Subresource}, "/"), "/")
		if r.Path != "" {
			what = r.Path
		}
		lines = append(lines, fmt.Sprintf("+%-7s %-6s %d %s", clock(r.Time.Sub(t.Started)), r.Verb, r.Status, what))
	}
	return section("Requests to the API server", markup.El("details",
		markup.El("summary", markup.Text(count.Of(len(t.Requests), "request"))),
		markup.El("pre", markup.Text(strings.Join(lines, "\n")))))
}
