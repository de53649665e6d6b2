package report

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/markup"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// someHolders is the maximum number of holders to name for each resource of a node.
const someHolders = 4

// allocation writes the table of GPU nodes: their resources, how many are in use, and by which pods.
func (p *page) allocation() error {
	if len(p.report.Allocation.Nodes) == 0 {
		return nil
	}
	table := printer.Table{Header: []string{"NODE", "RESOURCE", "CAPACITY", "HEALTHY", "USED", "FREE", "HOLDERS"}}
	for _, n := range p.report.Allocation.Nodes {
		name := n.Node
		if !n.Schedulable {
			name += " (not schedulable)"
		}
		for _, c := range n.Resources {
			table.Add(clean(name), clean(c.Resource), fmt.Sprint(c.Capacity), fmt.Sprint(c.Allocatable),
				fmt.Sprint(c.Used), fmt.Sprint(c.Free), holders(n, c.Resource))
		}
		if len(n.Resources) == 0 {
			table.Add(clean(name), printer.None, "0", "0", "0", "0", printer.None)
		}
	}
	var out bytes.Buffer
	if err := table.Write(&out); err != nil {
		return err
	}
	p.gap()
	p.b.Write(out.Bytes())
	return nil
}

// holders returns the pods that hold a resource of a node, such as "ml/train-9 (2), ml/serve-0 (1)".
func holders(n scheduler.NodeAllocation, resource string) string {
	var names []string
	for _, h := range n.Holders {
		if h.Resource == resource {
			text := fmt.Sprintf("%s/%s (%d)", h.Namespace, h.Pod, h.GPUs)
			if h.Idle != nil && *h.Idle {
				text += " idle"
			}
			names = append(names, clean(text))
		}
	}
	if rest := len(names) - someHolders; rest > 1 {
		names = append(names[:someHolders], fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(names, ", ")
}

type htmlAllocation struct {
	Rows []htmlShare
	Left string
}

type htmlShare struct {
	Node, Model, Resource, Label, Used, Free, Holders string
	// Percentages of the capacity.
	UsedWidth, LostX, LostWidth int64
}

func newHTMLAllocation(v *scheduler.AllocationView) *htmlAllocation {
	if v == nil || len(v.Nodes) == 0 {
		return nil
	}
	a, left := &htmlAllocation{}, 0
	for _, n := range v.Nodes {
		for _, c := range n.Resources {
			if len(a.Rows) >= maxRows {
				left++
				continue
			}
			a.Rows = append(a.Rows, shareOf(n, c))
		}
	}
	if left > 0 {
		a.Left = count.Of(left, "more row") + " not shown."
	}
	if len(a.Rows) == 0 {
		return nil
	}
	return a
}

func shareOf(n scheduler.NodeAllocation, c scheduler.ResourceCounts) htmlShare {
	model := n.Product
	if !n.Schedulable {
		model = strings.TrimPrefix(model+", not schedulable", ", ")
	}
	lost := max(0, c.Capacity-c.Allocatable)
	all := max(c.Capacity, c.Allocatable, c.Used, 1)
	percent := func(n int64) int64 { return min(100, max(0, n*100/all)) }
	s := htmlShare{
		Node: clean(n.Node), Model: clean(model), Resource: clean(c.Resource),
		Holders: cmp.Or(holders(n, c.Resource), "nobody"),
		Used:    fmt.Sprintf("%d of %d", c.Used, c.Capacity), Free: fmt.Sprint(c.Free),
		UsedWidth: percent(c.Used), LostWidth: percent(lost), Label: fmt.Sprintf("%d of %d in use", c.Used, c.Capacity),
	}
	s.LostX = 100 - s.LostWidth
	if lost > 0 {
		s.Label += fmt.Sprintf(", %d unhealthy", lost)
	}
	return s
}

// section returns the section that shows which pods hold the GPUs.
func (a *htmlAllocation) section() markup.Part {
	if a == nil {
		return nil
	}
	number := markup.Class("number")
	head := markup.El("tr", column("Node"), column("Resource"), column("In use"), column("Used", number),
		column("Free", number), column("Holders"))
	return section("GPU allocation",
		scroll("Allocation",
			markup.El("table", markup.El("thead", head), markup.El("tbody", markup.Each(a.Rows, htmlShare.row)))),
		remark(a.Left),
	)
}

func (s htmlShare) row() markup.Part {
	model := markup.Parts{markup.El("br"), markup.El("span", markup.Class("soft small"), markup.Text(s.Model))}
	return markup.El("tr",
		markup.El("th", markup.Attr("scope", "row"), markup.Text(s.Node), markup.When(s.Model != "", model)),
		markup.El("td", markup.Text(s.Resource)),
		markup.El("td", s.bar()),
		markup.El("td", markup.Class("number"), markup.Text(s.Used)),
		markup.El("td", markup.Class("number"), markup.Text(s.Free)),
		markup.El("td", markup.Text(s.Holders)),
	)
}

// bar returns a bar as wide as its column, with the used share on the left and the unhealthy share on the right.
func (s htmlShare) bar() markup.Part {
	return markup.El("svg", markup.Class("bar"), markup.Attr("viewBox", "0 0 100 10"),
		markup.Attr("preserveAspectRatio", "none"), markup.Attr("role", "img"), markup.Attr("aria-label", s.Label),
		markup.El("rect", markup.Class("all"), markup.Num("width", 100), markup.Num("height", 10)),
		markup.El("rect", markup.Class("used"), markup.Num("width", int(s.UsedWidth)), markup.Num("height", 10)),
		markup.El("rect", markup.Class("lost"), markup.Num("x", int(s.LostX)), markup.Num("width", int(s.LostWidth)),
			markup.Num("height", 10)),
	)
}
