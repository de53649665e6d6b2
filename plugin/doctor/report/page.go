package report

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
)

// document is the page as a file.
func (p htmlPage) document() string {
	var b strings.Builder
	b.WriteString("<!DOCTYPE html>\n")
	el("html", attr("lang", "en"), p.headPart(), p.bodyPart()).put(&b)
	return b.String()
}

// headPart has the page's policy: no browser loads or runs anything for it but the one style and the one script.
func (p htmlPage) headPart() part {
	policy := "default-src 'none'; style-src '" + hash(pageCSS) + "'; script-src '" + hash(pageJS) + "'; base-uri 'none'; form-action 'none'"
	return el("head",
		el("meta", attr("charset", "utf-8")),
		el("meta", attr("http-equiv", "Content-Security-Policy"), attr("content", policy)),
		el("meta", attr("name", "viewport"), attr("content", "width=device-width, initial-scale=1")),
		el("meta", attr("name", "referrer"), attr("content", "no-referrer")),
		el("title", text("GPU doctor: "+p.Headline)),
		el("style", own(pageCSS)),
	)
}

func (p htmlPage) bodyPart() part {
	return el("body",
		el("header",
			el("p", class("what"), text("kubectl gpu-fault doctor")),
			el("h1", class(p.State), text(p.Headline)),
			el("p", class("soft small"), text(p.LookedAt)),
		),
		el("main",
			p.overview(), p.problems(), p.Graph.section(), p.warnings(), p.Matrix.section(), p.Allocation.section(), p.infos(), p.blinds(), p.layers(),
		),
		el("footer", text(p.Foot)),
		el("script", own(pageJS)),
	)
}

// section is a section of the page with its heading.
func section(heading string, all ...part) part {
	return el("section", append(parts{el("h2", text(heading))}, all...)...)
}

// scroll is a box for what can be wider than the page. Its label is for who cannot see it, and who has no mouse can scroll it too.
func scroll(label string, all ...part) part {
	return el("div", append(parts{class("scroll"), attr("tabindex", "0"), attr("role", "group"), attr("aria-label", label)}, all...)...)
}

// column is the heading of a table's column.
func column(name string, more ...part) part {
	return el("th", append(parts{attr("scope", "col"), text(name)}, more...)...)
}

// remark says what is left out; nothing when it is empty.
func remark(words string) part {
	return when(words != "", el("p", class("soft small"), text(words)))
}

// overview names several problems in a line each, with links to where they are told.
func (p htmlPage) overview() part {
	all := slices.Concat(p.Errors, p.Warnings)
	return when(len(all) > 1, section("Overview", el("ul", class("folded"), each(all[:min(len(all), maxRows)], func(f htmlFinding) part {
		where := " on " + f.Objects
		if f.More > 0 {
			where += " " + f.more()
		}
		return el("li", el("span", class("tag", string(f.Severity)), text(f.Word)), text(" "), el("a", class("id"), jump(f.Anchor), text(f.ID)),
			text(" "+f.Title), el("span", class("soft"), text(where)))
	})), remark(left(len(all)-maxRows, "more"))))
}

// left is how many there are besides; nothing when there are none.
func left(n int, what string) string {
	if n <= 0 {
		return ""
	}
	return "and " + strconv.Itoa(n) + " " + what
}

func (p htmlPage) problems() part {
	heading := "Problems"
	if len(p.Errors) == 1 {
		heading = "The problem"
	}
	return when(len(p.Errors) > 0, section(heading, attr("aria-label", "Problems"), each(p.Errors, htmlFinding.card)))
}

func (p htmlPage) warnings() part {
	return when(len(p.Warnings) > 0, section("Warnings", attr("aria-label", "Warnings"), each(p.Warnings, htmlFinding.card)))
}

// card shows a root with all that is known about it.
func (f htmlFinding) card() part {
	label := func(words string) part { return el("span", class("tag layer"), text(words)) }
	return el("article", class("card", string(f.Severity)), attr("id", f.Anchor),
		el("div",
			el("span", class("tag", string(f.Severity)), text(f.Word)), el("span", class("id"), text(f.ID)), text(" "), label(string(f.Layer)),
			when(f.Confidence != "", label(f.Confidence)),
		),
		el("h3", text(f.Title)),
		el("p", class("objects"), text("on "+f.Objects), when(f.More > 0, parts{text(" "), el("span", class("soft"), text(f.more()))})),
		when(f.Affected != "", el("p", class("objects"), text(f.Affected))),
		f.fix(),
		f.evidence(),
		f.consequences(),
		when(f.Doc != "", el("p", class("small"), link(f.Doc))),
	)
}

func (f htmlFinding) more() string { return "and " + strconv.Itoa(f.More) + " more" }

func (f htmlFinding) fix() part {
	// Without a script there is nothing to copy with: page.js shows the button.
	pasted := func(look, lines string) part {
		button := el("button", class("copy"), attr("type", "button"), attr("hidden", ""), text("Copy"))
		return when(lines != "", el("div", class(look), button, el("pre", text(lines))))
	}
	return when(len(f.Fix) > 0 || f.Values != "" || f.Commands != "", parts{
		el("h4", text("Fix")),
		each(f.Fix, func(line string) part { return el("p", text(line)) }),
		pasted("commands values", f.Values),
		pasted("commands", f.Commands),
	})
}

func (f htmlFinding) evidence() part {
	return when(len(f.Evidence) > 0, el("details", when(f.Open, attr("open", "")),
		el("summary", text("Evidence ("+strconv.Itoa(len(f.Evidence))+")")),
		each(f.Evidence, func(e htmlEvidence) part {
			return el("figure", el("figcaption", text(e.Place)), el("blockquote", el("pre", text(e.Text))))
		}),
	))
}

func (f htmlFinding) consequences() part {
	return when(len(f.Consequences) > 0, el("details",
		el("summary", text("Because of this ("+strconv.Itoa(len(f.Consequences))+")")),
		el("ul", class("folded"), each(f.Consequences, func(c htmlFinding) part { return c.line(c.Objects) })),
	))
}

// line shows a finding in short.
func (f htmlFinding) line(objects string) part {
	return el("li", attr("id", f.Anchor), el("span", class("id"), text(f.ID)), text(" "+f.Title+" "), el("span", class("soft"), text(objects)))
}

func (p htmlPage) infos() part {
	line := func(f htmlFinding) part {
		if f.More > 0 {
			return f.line(f.Objects + " " + f.more())
		}
		return f.line(f.Objects)
	}
	return when(len(p.Infos) > 0, section("Worth knowing", el("div", class("card info"), el("ul", class("folded"), each(p.Infos, line)))))
}

func (p htmlPage) blinds() part {
	return parts{remark(p.Unread), when(len(p.Blinds) > 0, section("What could not be seen", el("div", class("card"), each(p.Blinds, func(b htmlBlind) part {
		return el("details",
			el("summary", text(b.Why+" "), el("span", class("soft"), text("("+b.Count+")"))),
			el("p", class("small"), text(b.Checks)),
			when(b.Objects != "", el("p", class("small soft"), text("on "+b.Objects))),
		)
	}))))}
}

func (p htmlPage) layers() part {
	number := func(p part) part { return el("td", class("number"), p) }
	found := func(n int, s doctor.Severity) part {
		if n == 0 {
			return number(text("0"))
		}
		return number(el("span", class("tag", string(s)), text(strconv.Itoa(n))))
	}
	row := func(l doctor.LayerResult) part {
		return el("tr",
			el("th", attr("scope", "row"), text(l.Layer)), number(text(strconv.Itoa(l.Checks))), number(text(strconv.Itoa(l.Passed))),
			found(l.Errors, doctor.Error), found(l.Warnings, doctor.Warning), number(text(strconv.Itoa(l.Infos))),
			number(text(strconv.Itoa(l.NotRead))), number(text(strconv.Itoa(l.Unknown))),
		)
	}
	head := parts{column("Layer")}
	for _, name := range []string{"Checks", "Passed", "Errors", "Warnings", "Info", "Not looked at", "Unknown"} {
		head = append(head, column(name, class("number")))
	}
	return when(len(p.Layers) > 0, section("Layers", scroll("Checks of each layer",
		el("table", el("thead", el("tr", head...)), el("tbody", each(p.Layers, row))))))
}
