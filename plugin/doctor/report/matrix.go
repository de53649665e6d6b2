package report

import (
	"fmt"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/markup"
)

type htmlMatrix struct {
	Layers []finding.Layer
	Rows   []htmlRow
	Legend []htmlCell
	// Left describes the nodes without a row.
	Left string
}

type htmlRow struct {
	Node  string
	Cells []htmlCell
}

type htmlCell struct{ Class, Sign, Words string }

// allNodes is the maximum number of nodes in a cluster for which the matrix has a row for every node.
const allNodes = 40

// newMatrix returns a matrix with a row for each GPU node or, if there are many, for each unhealthy one. It returns nil
// if there are no GPU nodes.
func newMatrix(r doctor.Report) *htmlMatrix {
	if len(r.Nodes) == 0 {
		return nil
	}
	m := &htmlMatrix{}
	for _, l := range r.Layers {
		m.Layers = append(m.Layers, l.Layer)
	}
	fine, more := 0, 0
	for _, n := range r.Nodes {
		switch {
		case len(r.Nodes) > allNodes && isFine(n):
			fine++
		case len(m.Rows) >= maxRows:
			more++
		default:
			row := htmlRow{Node: clean(n.Node)}
			for _, l := range m.Layers {
				row.Cells = append(row.Cells, cellOf(n.Layers[l]))
			}
			m.Rows = append(m.Rows, row)
		}
	}
	switch {
	case fine > 0 && more > 0:
		m.Left = fmt.Sprintf("Not shown: %s without problems and %d more with problems.",
			count.Of(fine, "node"), more)
	case fine > 0:
		m.Left = fmt.Sprintf("Not shown: %s without problems.", count.Of(fine, "more node"))
	case more > 0:
		m.Left = fmt.Sprintf("Not shown: %s with problems.", count.Of(more, "more node"))
	}
	for _, s := range []doctor.State{doctor.Broken, doctor.Consequent, doctor.Warned, doctor.NotSeen, doctor.Good} {
		m.Legend = append(m.Legend, cellOf(s))
	}
	return m
}

// isFine reports whether a node has no findings. Objects that could not be checked are listed elsewhere.
func isFine(n doctor.NodeResult) bool {
	for _, s := range n.Layers {
		if slices.Contains([]doctor.State{doctor.Broken, doctor.Warned, doctor.Consequent}, s) {
			return false
		}
	}
	return true
}

// cellOf represents a state by a color, by a symbol for users who cannot distinguish the colors, and by words.
func cellOf(s doctor.State) htmlCell {
	switch s {
	case doctor.Broken:
		return htmlCell{"error", "✕", "error"}
	case doctor.Consequent:
		return htmlCell{"consequence", "↳", "consequence of another problem"}
	case doctor.Warned:
		return htmlCell{"warning", "!", "warning"}
	case doctor.NotSeen:
		return htmlCell{"unknown", "?", "could not check"}
	case doctor.Good:
		return htmlCell{"good", "✓", "good"}
	}
	return htmlCell{"none", "·", "not checked"}
}

// section returns the section with the matrix.
func (m *htmlMatrix) section() markup.Part {
	if m == nil {
		return nil
	}
	if len(m.Rows) == 0 {
		return section("GPU nodes", remark(m.Left))
	}
	head := markup.Parts{column("Node")}
	for _, l := range m.Layers {
		head = append(head, column(string(l)))
	}
	row := func(r htmlRow) markup.Part {
		return markup.El("tr",
			markup.El("th", markup.Attr("scope", "row"), markup.Attr("title", r.Node), markup.Text(r.Node)),
			markup.Each(r.Cells, htmlCell.td))
	}
	meaning := func(c htmlCell) markup.Part {
		return markup.El("li", markup.El("span", markup.Class("cell", c.Class), markup.Text(c.Sign)),
			markup.Text(c.Words))
	}
	return section("GPU nodes",
		scroll("State of each layer on each node", markup.El("table", markup.Class("matrix"),
			markup.El("thead", markup.El("tr", head...)), markup.El("tbody", markup.Each(m.Rows, row)))),
		markup.El("ul", markup.Class("legend"), markup.Each(m.Legend, meaning)),
		remark(m.Left),
	)
}

func (c htmlCell) td() markup.Part {
	return markup.El("td", markup.El("span", markup.Class("cell", c.Class), markup.Attr("role", "img"),
		markup.Attr("title", c.Words), markup.Attr("aria-label", c.Words), markup.Text(c.Sign)))
}
