package experiment

import (
	_ "embed" // embeds the style sheet
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/build"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/expect"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/markup"
)

//go:embed page.css
var style string

// HTML returns a result as a self-contained page. It shows the timeline, and the verdicts as bars that extend from the
// verification of the fault to the expected reaction, next to their deadlines.
func HTML(r experiment.Result) string {
	state, word := "error", "Failed"
	if r.Passed {
		state, word = "good", "Passed"
	}
	soft := func(text string) markup.Part { return markup.El("p", markup.Class("soft small"), markup.Text(text)) }
	body := markup.Parts{
		markup.El("header",
			markup.El("p", markup.Class("what"), markup.Text("kubectl gpu-fault run")),
			markup.El("h1", markup.Class(state), markup.Text(word+": "+r.Name)),
			soft(fmt.Sprintf("%s, %s to %s", nodes(r.Targets), r.Started.UTC().Format("2006-01-02 15:04:05"),
				r.Ended.UTC().Format("15:04:05 UTC"))),
			markup.El("p", markup.Text(expect.Summary(r))),
		),
		markup.El("main",
			section("Expectations", bars(r.Verdicts), verdicts(r.Verdicts)),
			rounds(r),
			markup.When(len(r.Load) > 0, section("Load", loads(r.Load))),
			section("What happened", events(r.Timeline)),
			markup.When(len(r.Runs) > 0, section("Runs", markup.El("p", markup.Text(strings.Join(r.Runs, ", "))))),
		),
		markup.El("footer", markup.Text("kubectl gpu-fault "+build.Get().Version)),
	}
	return markup.Document{Title: "Experiment: " + r.Name, Style: markup.Own(style), Body: body}.String()
}

func section(heading string, all ...markup.Part) markup.Part {
	return markup.El("section", append(markup.Parts{markup.El("h2", markup.Text(heading))}, all...)...)
}

// bars returns a chart with a lane for each expectation that something happens. The lane ends at the deadline, and the
// bar at the time of the reaction.
func bars(all []experiment.Verdict) markup.Part {
	const left, wide, row = 190, 560, 26
	longest := 1.0
	for _, v := range all {
		longest = max(longest, v.After, v.Limit)
	}
	place := func(seconds float64) int { return int(max(seconds, 0) / longest * wide) }
	marks := markup.Parts{}
	y := 6
	for _, v := range all {
		if v.Not {
			continue
		}
		class := "took"
		if !v.OK {
			class = "took error"
		}
		said := expect.Seconds(v.After)
		if v.After == 0 {
			said = expect.Word(v)
		}
		marks = append(marks,
			markup.El("text", markup.Num("x", 0), markup.Num("y", y+13), markup.Text(v.Name)),
			markup.El("rect", markup.Class("limit"), markup.Num("x", left), markup.Num("y", y),
				markup.Num("width", max(1, place(v.Limit))), markup.Num("height", 16), markup.Num("rx", 3)),
			markup.When(v.After > 0, markup.El("rect", markup.Class(class), markup.Num("x", left), markup.Num("y", y+3),
				markup.Num("width", max(2, place(v.After))), markup.Num("height", 10), markup.Num("rx", 3))),
			markup.El("text", markup.Class("sub"), markup.Num("x", left+wide+10), markup.Num("y", y+13),
				markup.Text(said+" of "+expect.Seconds(v.Limit))),
		)
		y += row
	}
	if len(marks) == 0 {
		return nil
	}
	marks = append(marks, markup.El("line", markup.Class("proof"), markup.Num("x1", left), markup.Num("y1", 0),
		markup.Num("x2", left), markup.Num("y2", y)))
	return markup.El("div", markup.Class("scroll"), markup.El("svg", append(markup.Parts{
		markup.Class("timeline"), markup.Num("width", left+wide+160), markup.Num("height", y+4),
		markup.Attr("viewBox", fmt.Sprintf("0 0 %d %d", left+wide+160, y+4)),
		markup.Attr("role", "img"), markup.Attr("aria-label", "Time from the verification of the fault to each reaction"),
	}, marks...)...))
}

func verdicts(all []experiment.Verdict) markup.Part {
	return table([]string{"Expected", "Result", "After", "Limit", "By", "Seen"}, len(all), func(i int) []string {
		return cells(all[i])
	})
}

func loads(all []experiment.LoadResult) markup.Part {
	var rows [][]string
	for _, l := range all {
		for _, p := range l.Phases {
			rows = append(rows, append([]string{l.Name}, expect.PhaseRow(p)...))
		}
	}
	return table([]string{"Load", "Phase", "Requests", "OK", "P50", "P95", "P99"}, len(rows),
		func(i int) []string { return rows[i] })
}

// rounds returns the times of a repeated experiment, or nil if it was not repeated.
func rounds(r experiment.Result) markup.Part {
	if !slices.ContainsFunc(r.Verdicts, func(v experiment.Verdict) bool { return v.Round > 1 }) {
		return nil
	}
	names, all := r.Outcomes()
	return section("All rounds", table(
		[]string{"Expected", "Met", "Median", "Min", "Max"}, len(names), func(i int) []string {
			o := all[names[i]]
			row := []string{names[i], fmt.Sprintf("%d of %d", o.Met, o.Rounds)}
			if o.Median == nil {
				return append(row, "", "", "")
			}
			return append(row, expect.Seconds(*o.Median), expect.Seconds(*o.Min), expect.Seconds(*o.Max))
		},
	))
}

// cells returns a verdict as a row of a table.
func cells(v experiment.Verdict) []string {
	name, after := v.Name, ""
	if v.Not {
		name = "not " + name
	}
	if v.After != 0 {
		after = expect.Seconds(v.After)
	}
	return []string{name, expect.Word(v), after, expect.Seconds(v.Limit), v.By, v.Text}
}

func events(all []experiment.Entry) markup.Part {
	return table([]string{"After", "What", "Where", "By", "Seen"}, len(all), func(i int) []string {
		e := all[i]
		where := e.Node
		if e.Pod != "" {
			where = e.Pod
		}
		return []string{fmt.Sprintf("%.1fs", e.Since), e.What, where, e.Actor(), e.Text}
	})
}

func table(header []string, rows int, row func(i int) []string) markup.Part {
	body := markup.Parts{}
	for i := range rows {
		body = append(body, markup.El("tr", markup.Each(row(i), func(text string) markup.Part {
			return markup.El("td", markup.Text(text))
		})))
	}
	return markup.El("div", markup.Class("scroll"), markup.El("table",
		markup.El("thead", markup.El("tr", markup.Each(header, func(name string) markup.Part {
			return markup.El("th", markup.Attr("scope", "col"), markup.Text(name))
		}))),
		markup.El("tbody", body)))
}
