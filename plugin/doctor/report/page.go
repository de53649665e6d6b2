package report

import (
	"slices"
	"strconv"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/markup"
)

// document returns the page as a file.
func (p htmlPage) document() string {
	return markup.Document{Title: "GPU doctor: " + p.Headline, Body: p.body()}.String()
}

func (p htmlPage) body() markup.Part {
	return markup.Parts{
		markup.El("header",
			markup.El("p", markup.Class("what"), markup.Text("kubectl gpu-fault doctor")),
			markup.El("h1", markup.Class(p.State), markup.Text(p.Headline)),
			markup.El("p", markup.Class("soft small"), markup.Text(p.LookedAt)),
		),
		markup.El("main",
			p.overview(), p.problems(), p.Graph.section(), p.warnings(), p.Matrix.section(), p.Allocation.section(),
			p.infos(), p.blinds(), p.layers(),
		),
		markup.El("footer", markup.Text(p.Foot)),
	}
}

// section returns a section of the page with its heading.
func section(heading string, all ...markup.Part) markup.Part {
	return markup.El("section", append(markup.Parts{markup.El("h2", markup.Text(heading))}, all...)...)
}

// scroll returns a box for content that may be wider than the page. It has a label for screen readers, and can be
// scrolled with the keyboard.
func scroll(label string, all ...markup.Part) markup.Part {
	return markup.El("div", append(markup.Parts{
		markup.Class("scroll"), markup.Attr("tabindex", "0"), markup.Attr("role", "group"),
		markup.Attr("aria-label", label),
	}, all...)...)
}

// column returns the heading of a table column.
func column(name string, more ...markup.Part) markup.Part {
	return markup.El("th", append(markup.Parts{markup.Attr("scope", "col"), markup.Text(name)}, more...)...)
}

// remark returns a paragraph about what is not shown, or nothing if words is empty.
func remark(words string) markup.Part {
	return markup.When(words != "", markup.El("p", markup.Class("soft small"), markup.Text(words)))
}

// overview lists several problems, one per line, with links to their descriptions.
func (p htmlPage) overview() markup.Part {
	all := slices.Concat(p.Errors, p.Warnings)
	return markup.When(len(all) > 1, section("Overview",
		markup.El("ul", markup.Class("folded"),
			markup.Each(all[:min(len(all), maxRows)], func(f htmlFinding) markup.Part {
				where := " on " + f.Objects
				if f.More > 0 {
					where += " " + f.more()
				}
				return markup.El("li", markup.El("span", markup.Class("tag", string(f.Severity)), markup.Text(f.Word)),
					markup.Text(" "), markup.El("a", markup.Class("id"), markup.Jump(f.Anchor), markup.Text(f.ID)),
					markup.Text(" "+f.Title), markup.El("span", markup.Class("soft"), markup.Text(where)))
			})), remark(left(len(all)-maxRows, "more"))))
}

// left returns a description of how many more items there are, or "" if there are none.
func left(n int, what string) string {
	if n <= 0 {
		return ""
	}
	return "and " + strconv.Itoa(n) + " " + what
}

func (p htmlPage) problems() markup.Part {
	heading := "Problems"
	if len(p.Errors) == 1 {
		heading = "The problem"
	}
	return markup.When(len(p.Errors) > 0,
		section(heading, markup.Attr("aria-label", "Problems"), markup.Each(p.Errors, htmlFinding.card)))
}

func (p htmlPage) warnings() markup.Part {
	return markup.When(len(p.Warnings) > 0,
		section("Warnings", markup.Attr("aria-label", "Warnings"), markup.Each(p.Warnings, htmlFinding.card)))
}

// card returns a root cause with all its details.
func (f htmlFinding) card() markup.Part {
	label := func(words string) markup.Part {
		return markup.El("span", markup.Class("tag layer"), markup.Text(words))
	}
	return markup.El("article", markup.Class("card", string(f.Severity)), markup.Attr("id", f.Anchor),
		markup.El("div",
			markup.El("span", markup.Class("tag", string(f.Severity)), markup.Text(f.Word)),
			markup.El("span", markup.Class("id"), markup.Text(f.ID)), markup.Text(" "), label(string(f.Layer)),
			markup.When(f.Confidence != "", label(f.Confidence)),
		),
		markup.El("h3", markup.Text(f.Title)),
		markup.When(f.Cause != "", markup.El("p", markup.Text(f.Cause))),
		markup.El("p", markup.Class("objects"), markup.Text("on "+f.Objects), markup.When(f.More > 0,
			markup.Parts{markup.Text(" "), markup.El("span", markup.Class("soft"), markup.Text(f.more()))})),
		markup.When(f.Affected != "", markup.El("p", markup.Class("objects"), markup.Text(f.Affected))),
		f.fix(),
		f.evidence(),
		f.consequences(),
		markup.When(f.Doc != "", markup.El("p", markup.Class("small"), markup.Link(f.Doc))),
	)
}

func (f htmlFinding) more() string { return "and " + strconv.Itoa(f.More) + " more" }

func (f htmlFinding) fix() markup.Part {
	// Copying requires a script, so the button is hidden until page.js shows it.
	pasted := func(look, lines string) markup.Part {
		button := markup.El("button", markup.Class("copy"), markup.Attr("type", "button"), markup.Attr("hidden", ""),
			markup.Text("Copy"))
		return markup.When(lines != "",
			markup.El("div", markup.Class(look), button, markup.El("pre", markup.Text(lines))))
	}
	return markup.When(len(f.Fix) > 0 || f.Values != "" || f.Commands != "", markup.Parts{
		markup.El("h4", markup.Text("Fix")),
		markup.Each(f.Fix, func(line string) markup.Part { return markup.El("p", markup.Text(line)) }),
		pasted("commands values", f.Values),
		pasted("commands", f.Commands),
	})
}

func (f htmlFinding) evidence() markup.Part {
	return markup.When(len(f.Evidence) > 0, markup.El("details", markup.When(f.Open, markup.Attr("open", "")),
		markup.El("summary", markup.Text("Evidence ("+strconv.Itoa(len(f.Evidence))+")")),
		markup.Each(f.Evidence, func(e htmlEvidence) markup.Part {
			return markup.El("figure", markup.El("figcaption", markup.Text(e.Place)),
				markup.El("blockquote", markup.El("pre", markup.Text(e.Text))))
		}),
	))
}

func (f htmlFinding) consequences() markup.Part {
	return markup.When(len(f.Consequences) > 0, markup.El("details",
		markup.El("summary", markup.Text("Consequences ("+strconv.Itoa(len(f.Consequences))+")")),
		markup.El("ul", markup.Class("folded"),
			markup.Each(f.Consequences, func(c htmlFinding) markup.Part { return c.line(c.Objects) })),
	))
}

// line returns a finding in one line.
func (f htmlFinding) line(objects string) markup.Part {
	return markup.El("li", markup.Attr("id", f.Anchor), markup.El("span", markup.Class("id"), markup.Text(f.ID)),
		markup.Text(" "+f.Title+" "), markup.El("span", markup.Class("soft"), markup.Text(objects)))
}

func (p htmlPage) infos() markup.Part {
	line := func(f htmlFinding) markup.Part {
		if f.More > 0 {
			return f.line(f.Objects + " " + f.more())
		}
		return f.line(f.Objects)
	}
	return markup.When(len(p.Infos) > 0, section(
		"Worth knowing",
		markup.El("div", markup.Class("card info"),
			markup.El("ul", markup.Class("folded"), markup.Each(p.Infos, line))),
	))
}

func (p htmlPage) blinds() markup.Part {
	return markup.Parts{remark(p.Unread), markup.When(len(p.Blinds) > 0, section("Could not check",
		markup.El("div", markup.Class("card"), markup.Each(p.Blinds, func(b htmlBlind) markup.Part {
			return markup.El("details",
				markup.El("summary", markup.Text(b.Why+" "),
					markup.El("span", markup.Class("soft"), markup.Text("("+b.Count+")"))),
				markup.El("p", markup.Class("small"), markup.Text(b.Checks)),
				markup.When(b.Objects != "", markup.El("p", markup.Class("small soft"), markup.Text("on "+b.Objects))),
			)
		}))))}
}

func (p htmlPage) layers() markup.Part {
	number := func(p markup.Part) markup.Part { return markup.El("td", markup.Class("number"), p) }
	found := func(n int, s finding.Severity) markup.Part {
		if n == 0 {
			return number(markup.Text("0"))
		}
		return number(markup.El("span", markup.Class("tag", string(s)), markup.Text(strconv.Itoa(n))))
	}
	row := func(l doctor.LayerResult) markup.Part {
		return markup.El("tr",
			markup.El("th", markup.Attr("scope", "row"), markup.Text(l.Layer)),
			number(markup.Text(strconv.Itoa(l.Checks))), number(markup.Text(strconv.Itoa(l.Passed))),
			found(l.Errors, finding.Error), found(l.Warnings, finding.Warning),
			number(markup.Text(strconv.Itoa(l.Infos))),
			number(markup.Text(strconv.Itoa(l.NotRead))), number(markup.Text(strconv.Itoa(l.Unknown))),
		)
	}
	head := markup.Parts{column("Layer")}
	for _, name := range []string{"Checks", "Passed", "Errors", "Warnings", "Info", "Not checked", "Unknown"} {
		head = append(head, column(name, markup.Class("number")))
	}
	return markup.When(len(p.Layers) > 0, section("Layers", scroll("Checks of each layer",
		markup.El("table", markup.El("thead", markup.El("tr", head...)),
			markup.El("tbody", markup.Each(p.Layers, row))))))
}
