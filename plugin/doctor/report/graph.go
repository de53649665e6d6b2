package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Sizes of the cause graph, in pixels.
const (
	pageWidth         = 956 // width of the page on a wide screen
	leastBox, mostBox = 160, 216
	boxHeight         = 44
	columnGap, rowGap = 32, 14
	treeBox, treeStep = 228, 24 // sizes on a phone
	margin            = 14
	letter, small     = 7.3, 6.6 // letter widths in the two lines of a box
	maxBoxes          = 60
)

// htmlGraph is the cause graph, drawn twice: from left to right, and as a tree for narrow screens.
type htmlGraph struct {
	Label      string
	Wide, Tree htmlDrawing
	Left       int // findings that are not drawn
}

type htmlDrawing struct {
	Class, Label        string
	Width, Height       int
	BoxWidth, BoxHeight int
	Boxes               []htmlBox
	Edges               []string // paths
}

type htmlBox struct {
	Anchor, ID, Sub, Title   string
	Severity                 finding.Severity
	X, Y, TextX, TextY, SubY int
}

// newGraph draws the findings that explain others and the findings that are explained, with causes to the left of their
// consequences. It returns nil if there are none.
func newGraph(r doctor.Report) *htmlGraph {
	columns, left := layered(r)
	if len(columns) == 0 {
		return nil
	}
	g := &htmlGraph{Left: left, Wide: drawLayers(r, columns), Tree: drawTree(r, columns)}
	label := fmt.Sprintf("%s and the consequences, drawn with %s", count.Of(len(columns[0]), "cause"),
		count.Of(len(g.Wide.Edges), "arrow"))
	g.Wide.Label, g.Tree.Label = label, label
	return g
}

// drawLayers draws columns from left to right.
func drawLayers(r doctor.Report, columns [][]int) htmlDrawing {
	n, tallest := len(columns), 0
	for _, c := range columns {
		tallest = max(tallest, len(c))
	}
	box := min(max((pageWidth-2*margin-(n-1)*columnGap)/n, leastBox), mostBox)
	d := htmlDrawing{Class: "wide", BoxWidth: box, BoxHeight: boxHeight}
	d.Width = 2*margin + n*box + (n-1)*columnGap
	d.Height = 2*margin + tallest*boxHeight + (tallest-1)*rowGap
	at := map[int]htmlBox{}
	for x, column := range columns {
		high := len(column)*boxHeight + (len(column)-1)*rowGap
		for y, i := range column {
			b := newBox(r, i, margin+x*(box+columnGap), (d.Height-high)/2+y*(boxHeight+rowGap), box)
			at[i] = b
			d.Boxes = append(d.Boxes, b)
		}
	}
	for _, e := range r.Edges {
		from, known := at[e.From]
		to, alsoKnown := at[e.To]
		if !known || !alsoKnown || !nearest(r, e) {
			continue
		}
		x1, y1, x2, y2 := from.X+box, from.Y+boxHeight/2, to.X-2, to.Y+boxHeight/2
		bend := max(20, (x2-x1)/2)
		d.Edges = append(d.Edges, fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x1, y1, x1+bend, y1, x2-bend, y2, x2, y2))
	}
	return d
}

// drawTree draws each finding once, below its nearest cause.
func drawTree(r doctor.Report, columns [][]int) htmlDrawing {
	d := htmlDrawing{Class: "tree", BoxWidth: treeBox, BoxHeight: boxHeight}
	column := map[int]int{}
	for x, c := range columns {
		for _, i := range c {
			column[i] = x
		}
	}
	below := map[int][]int{}
	for _, c := range columns[1:] {
		for _, i := range c {
			cause := -1
			for _, e := range r.Edges {
				if x, known := column[e.From]; e.To == i && known && x < column[i] && (cause < 0 || x > column[cause]) {
					cause = e.From
				}
			}
			below[cause] = append(below[cause], i)
		}
	}
	var place func(i, depth int) htmlBox
	place = func(i, depth int) htmlBox {
		b := newBox(r, i, margin+depth*treeStep, margin+len(d.Boxes)*(boxHeight+rowGap), treeBox)
		d.Boxes = append(d.Boxes, b)
		d.Width = max(d.Width, b.X+treeBox+margin)
		for _, next := range below[i] {
			n := place(next, depth+1)
			x, y := b.X+treeStep/2, n.Y+boxHeight/2
			d.Edges = append(d.Edges, fmt.Sprintf("M%d %dV%dH%d", x, b.Y+boxHeight, y, n.X-2))
		}
		return b
	}
	for _, i := range append(slices.Clone(columns[0]), below[-1]...) {
		place(i, 0)
	}
	d.Height = 2*margin + len(d.Boxes)*(boxHeight+rowGap) - rowGap
	return d
}

// nearest reports whether an arrow is the longest path between its ends. An arrow from a to c is redundant if there are
// arrows from a to b and from b to c.
func nearest(r doctor.Report, e finding.Edge) bool {
	seen, todo := map[int]bool{}, []int{e.From}
	for len(todo) > 0 {
		from := todo[0]
		todo = todo[1:]
		for _, next := range r.Edges {
			switch {
			case next == e || next.From != from || seen[next.To]:
			case next.To == e.To:
				return false
			default:
				seen[next.To] = true
				todo = append(todo, next.To)
			}
		}
	}
	return true
}

func newBox(r doctor.Report, i, x, y, width int) htmlBox {
	f := r.Items[i]
	all := objects(f)
	sub := clean(f.Object.String())
	if len(all) > 1 {
		sub = count.Of(len(all), f.Object.Kind)
	}
	room := float64(width - 18)
	b := htmlBox{
		Anchor: anchor(i), ID: shorten(f.ID, int(room/letter)), Sub: shorten(sub, int(room/small)),
		Title: full(f.Title), X: x, Y: y, TextX: x + 10, TextY: y + 19, SubY: y + 35,
	}
	if b.Severity = f.Severity; !f.Root {
		b.Severity = "follows"
	}
	return b
}

func shorten(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// layered arranges the findings of the graph in columns. Each finding is to the right of all its causes, and close to
// them within its column.
func layered(r doctor.Report) (columns [][]int, left int) {
	linked := map[int]bool{}
	for _, e := range r.Edges {
		linked[e.From], linked[e.To] = true, true
	}
	var shown []int
	for i := range r.Items {
		if linked[i] && len(shown) < maxBoxes {
			shown = append(shown, i)
		} else if linked[i] {
			left++
		}
	}
	depth := map[int]int{}
	for range shown { // the length of the longest possible path, so that the loop terminates even if there are cycles
		moved := false
		for _, e := range r.Edges {
			if slices.Contains(shown, e.From) && slices.Contains(shown, e.To) && depth[e.To] < depth[e.From]+1 &&
				depth[e.From]+1 < len(shown) {
				depth[e.To], moved = depth[e.From]+1, true
			}
		}
		if !moved {
			break
		}
	}
	for _, i := range shown {
		for len(columns) <= depth[i] {
			columns = append(columns, nil)
		}
		columns[depth[i]] = append(columns[depth[i]], i)
	}
	columns = slices.DeleteFunc(columns, func(c []int) bool { return len(c) == 0 })
	row := map[int]float64{}
	for _, column := range columns {
		middle := map[int]float64{}
		for y, i := range column {
			sum, n := 0.0, 0.0
			for _, e := range r.Edges {
				if above, known := row[e.From]; e.To == i && known {
					sum, n = sum+above, n+1
				}
			}
			if middle[i] = float64(y); n > 0 {
				middle[i] = sum / n
			}
		}
		sorting.StableFunc(column, func(a, b int) int { return cmp.Compare(middle[a], middle[b]) })
		for y, i := range column {
			row[i] = float64(y) - float64(len(column)-1)/2
		}
	}
	return columns, left
}
