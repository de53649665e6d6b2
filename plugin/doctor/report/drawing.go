package report

import "fmt"

// section shows the cause graph; the style shows one of its two drawings, for the width that there is.
func (g *htmlGraph) section() part {
	if g == nil {
		return nil
	}
	left := ""
	if g.Left > 0 {
		left = fmt.Sprintf("%d more findings are not drawn.", g.Left)
	}
	return section("What follows from what", scroll("Cause graph", g.Wide.svg(), g.Tree.svg()), remark(left))
}

func (d htmlDrawing) svg() part {
	tip := "arrow-" + d.Class // both drawings are in one page, and ids in it are unique
	return el("svg", class("graph", d.Class), num("width", d.Width), num("height", d.Height), attr("viewBox", fmt.Sprintf("0 0 %d %d", d.Width, d.Height)),
		attr("role", "img"), attr("aria-label", d.Label),
		el("defs", el("marker", attr("id", tip), attr("viewBox", "0 0 8 8"), num("refX", 7), num("refY", 4), num("markerWidth", 8), num("markerHeight", 8),
			attr("orient", "auto"), el("path", attr("d", "M0 0 8 4 0 8z")))),
		each(d.Edges, func(edge string) part { return el("path", attr("d", edge), attr("marker-end", "url(#"+tip+")")) }),
		each(d.Boxes, d.box),
	)
}

// box leads to the finding that it stands for.
func (d htmlDrawing) box(b htmlBox) part {
	return parts{
		el("a", jump(b.Anchor),
			el("title", text(b.Title)),
			el("rect", class("box", string(b.Severity)), num("x", b.X), num("y", b.Y), num("width", d.BoxWidth), num("height", d.BoxHeight), num("rx", 7)),
			el("text", num("x", b.TextX), num("y", b.TextY), text(b.ID)),
			el("text", class("sub"), num("x", b.TextX), num("y", b.SubY), text(b.Sub)),
		),
		text("\n"),
	}
}
