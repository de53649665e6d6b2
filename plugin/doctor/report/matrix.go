package report

import (
	"fmt"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
)

type htmlMatrix struct {
	Layers []doctor.Layer
	Rows   []htmlRow
	Legend []htmlCell
	// Left is about nodes that have no row.
	Left string
}

type htmlRow struct {
	Node  string
	Cells []htmlCell
}

type htmlCell struct{ Class, Sign, Words string }

// allNodes is how many nodes have a row each also when they are fine.
const allNodes = 40

// newMatrix has a row for each GPU node, or of many only for those that are not fine; nil without GPU nodes.
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
		m.Left = fmt.Sprintf("%s with nothing wrong, and %d more that are not fine, have no row.", count(fine, "node"), more)
	case fine > 0:
		m.Left = fmt.Sprintf("%s with nothing wrong have no row.", count(fine, "more node"))
	case more > 0:
		m.Left = fmt.Sprintf("%s have no row.", count(more, "more node"))
	}
	for _, s := range []doctor.State{doctor.Broken, doctor.Consequent, doctor.Warned, doctor.NotSeen, doctor.Good} {
		m.Legend = append(m.Legend, cellOf(s))
	}
	return m
}

// isFine is whether nothing was found on a node; what could not be seen is listed elsewhere.
func isFine(n doctor.NodeResult) bool {
	for _, s := range n.Layers {
		if slices.Contains([]doctor.State{doctor.Broken, doctor.Warned, doctor.Consequent}, s) {
			return false
		}
	}
	return true
}

// cellOf shows a state by a colour, by a sign for who does not see colours, and by words.
func cellOf(s doctor.State) htmlCell {
	switch s {
	case doctor.Broken:
		return htmlCell{"error", "✕", "error"}
	case doctor.Consequent:
		return htmlCell{"consequence", "↳", "broken because of another"}
	case doctor.Warned:
		return htmlCell{"warning", "!", "warning"}
	case doctor.NotSeen:
		return htmlCell{"unknown", "?", "not seen"}
	case doctor.Good:
		return htmlCell{"good", "✓", "good"}
	}
	return htmlCell{"none", "·", "not checked"}
}

// section shows the matrix.
func (m *htmlMatrix) section() part {
	if m == nil {
		return nil
	}
	if len(m.Rows) == 0 {
		return section("GPU nodes", remark(m.Left))
	}
	head := parts{column("Node")}
	for _, l := range m.Layers {
		head = append(head, column(string(l)))
	}
	row := func(r htmlRow) part {
		return el("tr", el("th", attr("scope", "row"), attr("title", r.Node), text(r.Node)), each(r.Cells, htmlCell.td))
	}
	meaning := func(c htmlCell) part {
		return el("li", el("span", class("cell", c.Class), text(c.Sign)), text(c.Words))
	}
	return section("GPU nodes",
		scroll("State of each layer on each node", el("table", class("matrix"), el("thead", el("tr", head...)), el("tbody", each(m.Rows, row)))),
		el("ul", class("legend"), each(m.Legend, meaning)),
		remark(m.Left),
	)
}

func (c htmlCell) td() part {
	return el("td", el("span", class("cell", c.Class), attr("role", "img"), attr("title", c.Words), attr("aria-label", c.Words), text(c.Sign)))
}
