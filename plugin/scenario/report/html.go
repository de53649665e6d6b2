package report

import (
	_ "embed" // for the style sheet
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/markup"
)

//go:embed page.css
var style string

// HTML writes the report as a self-contained page.
func HTML(w io.Writer, r exercise.Report, version string) error { return page(w, r, version) }

// page writes a report with additional sections below the timeline.
func page(w io.Writer, r exercise.Report, version string, more ...markup.Part) error {
	state := "error"
	if r.Passed {
		state = "good"
	}
	body := markup.Parts{
		markup.El("header",
			markup.El("p", markup.Class("what"), markup.Text("kubectl gpu-fault scenario")),
			markup.El("h1", markup.Class(state), markup.Text(fmt.Sprintf("%s: %d of 100 points", Verdict(r), r.Score))),
			markup.El("p", markup.Class("soft small"),
				markup.Text(fmt.Sprintf("%s (%s, seed %d), %s of %s%s, graded %s by %s",
					r.Title, r.Scenario, r.Seed, human(r.Took), human(r.TimeBox), late(r),
					r.At.UTC().Format("2006-01-02 15:04 UTC"), r.By))),
		),
		markup.El("main", gates(r), points(r), timeline(r), transcript(r), markup.Parts(more),
			checks("Is the workload healthy?", r.Fixed), checks("Is it a real fix?", r.Unchanged), collateral(r),
			diagnosis(r), hints(r)),
		markup.El("footer", markup.Text("kubectl gpu-fault "+version)),
	}
	_, err := io.WriteString(w,
		markup.Document{Title: "Scenario: " + r.Title, Style: markup.Own(style), Body: body}.String())
	return err
}

func section(heading string, all ...markup.Part) markup.Part {
	return markup.El("section", append(markup.Parts{markup.El("h2", markup.Text(heading))}, all...)...)
}

// verdict returns a tag with the word "ok" or "failed", so that the result does not depend on color alone.
func verdict(ok bool) markup.Part {
	if ok {
		return markup.El("span", markup.Class("tag good"), markup.Text("OK"))
	}
	return markup.El("span", markup.Class("tag error"), markup.Text("FAILED"))
}

func gates(r exercise.Report) markup.Part {
	return section("Passed?",
		markup.El("ul", markup.Class("folded"), markup.Each(r.Gates, func(g exercise.Gate) markup.Part {
			return markup.El("li", verdict(g.OK), markup.Text(gateName(r, g)),
				markup.When(g.Why != "", markup.El("span", markup.Class("soft"), markup.Text(" "+g.Why))))
		})))
}

// points returns a chart with a bar for each weight. The length of the bar represents the maximum score, and its filled
// part represents the achieved score.
func points(r exercise.Report) markup.Part {
	const unit, height, gap = 4, 18, 8 // pixels per point, bar height, and gap between bars
	rows := markup.Parts{}
	for i, p := range r.Points {
		y := i * (height + gap)
		rows = append(rows,
			markup.El("text", markup.Num("x", 0), markup.Num("y", y+14), markup.Text(p.Name)),
			markup.El("rect", markup.Class("of"), markup.Num("x", 110), markup.Num("y", y),
				markup.Num("width", p.Of*unit), markup.Num("height", height), markup.Num("rx", 3)),
			markup.When(p.Got > 0, markup.El("rect", markup.Class("got"), markup.Num("x", 110), markup.Num("y", y),
				markup.Num("width", min(p.Got, p.Of)*unit), markup.Num("height", height), markup.Num("rx", 3))),
			markup.El("text", markup.Class("sub"), markup.Num("x", 118+p.Of*unit), markup.Num("y", y+14),
				markup.Text(fmt.Sprintf("%d of %d", p.Got, p.Of))),
		)
	}
	height0 := max(1, len(r.Points)) * (height + gap)
	return section("Points",
		markup.El("div", markup.Class("scroll"), markup.El("svg", append(markup.Parts{
			markup.Class("bars"), markup.Num("width", 420), markup.Num("height", height0),
			markup.Attr("viewBox", fmt.Sprintf("0 0 420 %d", height0)),
			markup.Attr("role", "img"), markup.Attr("aria-label", fmt.Sprintf("%d of 100 points", r.Score)),
		}, rows...)...)),
		markup.El("ul", markup.Class("folded"),
			markup.Each(r.Reasons, func(text string) markup.Part { return markup.El("li", markup.Text(text)) })),
	)
}

// timeline returns a chart of the events in the time box, with the number of requests per minute above the events.
func timeline(r exercise.Report) markup.Part {
	if len(r.Timeline) == 0 {
		return nil
	}
	first, last := r.Timeline[0].At, r.Timeline[len(r.Timeline)-1].At
	span := max(last.Sub(first), time.Second)
	const left, wide, row, tall = 80, 680, 24, 40
	axis := 10
	if r.Recorded != nil {
		axis += tall
	}
	place := func(at time.Time) int { return left + int(float64(at.Sub(first))/float64(span)*float64(wide)) }
	marks := markup.Parts{markup.El("line", markup.Class("axis"), markup.Num("x1", left), markup.Num("y1", axis),
		markup.Num("x2", left+wide), markup.Num("y2", axis))}
	marks = append(marks, requests(r.Recorded, place, axis, tall)...)
	for i, m := range r.Timeline {
		x, y := place(m.At), axis+24+i*row
		anchor, dx := "start", 8
		if x > left+wide*2/3 {
			anchor, dx = "end", -8
		}
		marks = append(marks,
			markup.El("line", markup.Class("drop"), markup.Num("x1", x), markup.Num("y1", axis), markup.Num("x2", x),
				markup.Num("y2", y-4)),
			markup.El("circle", markup.Num("cx", x), markup.Num("cy", y-4), markup.Num("r", 4)),
			markup.El("text", markup.Class("sub"), markup.Num("x", 0), markup.Num("y", y),
				markup.Text("+"+clock(m.At.Sub(first)))),
			markup.El("text", markup.Num("x", x+dx), markup.Num("y", y), markup.Attr("text-anchor", anchor),
				markup.Text(m.What)),
		)
	}
	height := axis + 34 + len(r.Timeline)*row
	return section("Timeline", markup.El("div", markup.Class("scroll"), markup.Attr("tabindex", "0"),
		markup.Attr("role", "group"), markup.Attr("aria-label", "Timeline"),
		markup.El("svg", append(markup.Parts{
			markup.Class("timeline"), markup.Num("width", left+wide+40), markup.Num("height", height),
			markup.Attr("viewBox", fmt.Sprintf("0 0 %d %d", left+wide+40, height)),
			markup.Attr("role", "img"),
			markup.Attr("aria-label", count.Of(len(r.Timeline), "event")+" in "+human(span)),
		}, marks...)...)))
}

// requests returns a bar for each minute with requests, with changes at the bottom and reads above them.
func requests(t *exercise.Recorded, place func(time.Time) int, axis, tall int) (bars markup.Parts) {
	if t == nil {
		return nil
	}
	most := 1
	for _, m := range t.Minutes {
		most = max(most, m.Looks+m.Changes)
	}
	bar := func(class string, x, wide, foot, n int) int {
		height := (n*tall + most - 1) / most // at least one pixel
		bars = append(bars, markup.When(n > 0, markup.El("rect", markup.Class(class), markup.Num("x", x),
			markup.Num("y", foot-height), markup.Num("width", wide), markup.Num("height", height))))
		return foot - height
	}
	for _, m := range t.Minutes {
		from := t.First.Add(time.Duration(m.Minute) * time.Minute)
		x := place(from)
		wide := max(1, place(from.Add(time.Minute))-x-1)
		bar("looks", x, wide, bar("changes", x, wide, axis, m.Changes), m.Looks)
	}
	return bars
}

// transcript returns the section with the candidate's recorded requests.
func transcript(r exercise.Report) markup.Part {
	if r.Recorded == nil {
		return nil
	}
	return section("Requests of the candidate", markup.El("p", markup.Text(recorded(*r.Recorded))),
		markup.El("ul", markup.Class("folded"), markup.Each(r.Recorded.Objects, func(c recorder.Count) markup.Part {
			return markup.El("li",
				markup.Text(
					fmt.Sprintf("%s: %s, %s", c.Object, count.Of(c.Looks, "look"), count.Of(c.Changes, "change")),
				))
		})))
}

// clock formats a time since the beginning, such as 3:07 or 1:02:30.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

func checks(heading string, results []check.Result) markup.Part {
	return markup.When(len(results) > 0,
		section(heading, markup.El("ul", markup.Class("folded"), markup.Each(results, func(c check.Result) markup.Part {
			return markup.El("li", verdict(c.OK), markup.Text(c.Name),
				markup.When(!c.OK && c.Message != "", markup.El("p", markup.Text(c.Message))),
				markup.When(c.Saw != "", markup.El("pre", markup.Text(c.Saw))))
		}))))
}

func collateral(r exercise.Report) markup.Part {
	if len(r.Collateral) == 0 && len(r.NotCompared) == 0 {
		return nil
	}
	note := func(text string) markup.Part { return markup.El("p", markup.Class("soft small"), markup.Text(text)) }
	return section("Other changes",
		markup.El("ul", markup.Class("folded"), markup.Each(r.Collateral, func(d baseline.Difference) markup.Part {
			return markup.El("li", markup.Text(d.String()), markup.When(d.Before != "" || d.After != "",
				markup.El("pre", markup.Text("before: "+d.Before+"\nafter:  "+d.After))))
		})), markup.When(r.Omitted > 0, note(fmt.Sprintf("and %d more", r.Omitted))),
		markup.When(len(r.NotCompared) > 0, note("Could not be compared: "+strings.Join(r.NotCompared, "; "))))
}

func diagnosis(r exercise.Report) markup.Part {
	if r.Diagnosis == nil {
		return section("Diagnosis", markup.El("p", markup.Class("soft"), markup.Text("None was submitted.")))
	}
	cell := func(text string) markup.Part { return markup.El("td", markup.Text(text)) }
	return section("Diagnosis", markup.El("div", markup.Class("scroll"), markup.El("table",
		markup.El("thead",
			markup.El("tr", markup.Each([]string{"Field", "", "Submitted", "Right"}, func(name string) markup.Part {
				return markup.El("th", markup.Attr("scope", "col"), markup.Text(name))
			}))),
		markup.El("tbody", markup.Each(r.Diagnosed, func(f scenario.FieldScore) markup.Part {
			return markup.El("tr", cell(f.Field), markup.El("td", verdict(f.Right)), cell(f.Got), cell(f.Want))
		})))),
		markup.When(r.Diagnosis.Explanation != "",
			markup.El("blockquote", markup.El("pre", markup.Text(r.Diagnosis.Explanation)))))
}

func hints(r exercise.Report) markup.Part {
	return markup.When(len(r.Hints) > 0, section("Hints given",
		markup.El("ul", markup.Class("folded"), markup.Each(r.Hints, func(h exercise.Taken) markup.Part {
			return markup.El("li", markup.Text(fmt.Sprintf("%s (cost: %d)", h.Text, h.Cost)))
		}))))
}
