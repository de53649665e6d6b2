package report

import (
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/markup"
)

// section returns the cause graph. It is drawn twice, and the style sheet shows the drawing that fits the width.
func (g *htmlGraph) section() markup.Part {
	if g == nil {
		return nil
	}
	left := ""
	if g.Left > 0 {
		left = count.Of(g.Left, "more finding") + " not drawn."
	}
	return section("Causes and consequences", scroll("Cause graph", g.Wide.svg(), g.Tree.svg()), remark(left))
}

func (d htmlDrawing) svg() markup.Part {
	tip := "arrow-" + d.Class // both drawings are on one page, where IDs must be unique
	return markup.El("svg", markup.Class("graph", d.Class), markup.Num("width", d.Width),
		markup.Num("height", d.Height), markup.Attr("viewBox", fmt.Sprintf("0 0 %d %d", d.Width, d.Height)),
		markup.Attr("role", "img"), markup.Attr("aria-label", d.Label),
		markup.El("defs", markup.El("marker", markup.Attr("id", tip), markup.Attr("viewBox", "0 0 8 8"),
			markup.Num("refX", 7), markup.Num("refY", 4), markup.Num("markerWidth", 8), markup.Num("markerHeight", 8),
			markup.Attr("orient", "auto"), markup.El("path", markup.Attr("d", "M0 0 8 4 0 8z")))),
		markup.Each(d.Edges, func(edge string) markup.Part {
			return markup.El("path", markup.Attr("d", edge), markup.Attr("marker-end", "url(#"+tip+")"))
		}),
		markup.Each(d.Boxes, d.box),
	)
}

// box returns a box that links to its finding.
func (d htmlDrawing) box(b htmlBox) markup.Part {
	return markup.Parts{
		markup.El("a", markup.Jump(b.Anchor),
			markup.El("title", markup.Text(b.Title)),
			markup.El("rect", markup.Class("box", string(b.Severity)), markup.Num("x", b.X), markup.Num("y", b.Y),
				markup.Num("width", d.BoxWidth), markup.Num("height", d.BoxHeight), markup.Num("rx", 7)),
			markup.El("text", markup.Num("x", b.TextX), markup.Num("y", b.TextY), markup.Text(b.ID)),
			markup.El("text", markup.Class("sub"), markup.Num("x", b.TextX), markup.Num("y", b.SubY),
				markup.Text(b.Sub)),
		),
		markup.Text("\n"),
	}
}
