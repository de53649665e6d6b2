package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// measures are the values in a measurement that may grow.
var measures = []struct {
	name string
	of   func(measurement) float64
}{
	{"wall time", func(m measurement) float64 { return m.Wall }},
	{"processor time", func(m measurement) float64 { return m.CPU }},
	{"memory", func(m measurement) float64 { return float64(m.Memory) }},
	{"requests", func(m measurement) float64 { return float64(m.Requests) }},
	{"bytes", func(m measurement) float64 { return float64(m.Sent + m.Received) }},
}

// growth describes how one measure of a command grows with the number of nodes.
type growth struct {
	command, measure string
	exponent         float64 // exponent over all sizes
	last             float64 // exponent over the two largest sizes
	times            float64 // ratio of the largest size to the smallest
}

// growths returns the growth of each measure in the measurements of one command.
func growths(of []measurement) (all []growth) {
	if len(of) < 2 {
		return nil
	}
	for _, what := range measures {
		var nodes, costs []float64
		for _, m := range of {
			nodes, costs = append(nodes, float64(m.Nodes)), append(costs, what.of(m))
		}
		n := len(costs)
		all = append(all, growth{
			command: of[0].Command, measure: what.name, exponent: exponent(nodes, costs),
			last: exponent(nodes[n-2:], costs[n-2:]), times: costs[n-1] / costs[0],
		})
	}
	return all
}

// exponent returns the E for which costs grow as nodes^E: the slope of the least-squares line through the logarithms.
func exponent(nodes, costs []float64) float64 {
	var sx, sy, sxx, sxy float64
	for i := range nodes {
		x, y := math.Log(nodes[i]), math.Log(costs[i])
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	n := float64(len(nodes))
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// byCommand returns the measurements of each command, in the order in which the commands first appear.
func byCommand(all []measurement) (groups [][]measurement) {
	for _, m := range all {
		i := slices.IndexFunc(groups, func(g []measurement) bool { return g[0].Command == m.Command })
		if i < 0 {
			groups = append(groups, []measurement{m})
			continue
		}
		groups[i] = append(groups[i], m)
	}
	return groups
}

const columns = "COMMAND\tNODES\tWALL\tCPU\tMEMORY\tREQUESTS\tSENT\tRECEIVED"

func row(m measurement) string {
	return fmt.Sprintf("%s\t%d\t%.2fs\t%.2fs\t%d MiB\t%d\t%.1f MiB\t%.1f MiB", m.Command, m.Nodes, m.Wall, m.CPU,
		m.Memory>>20, m.Requests, float64(m.Sent)/(1<<20), float64(m.Received)/(1<<20))
}

// report prints the measurements and the exponents, and then the largest exponent.
func report(out io.Writer, all []measurement) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, columns)
	for _, group := range byCommand(all) {
		for _, m := range group {
			fmt.Fprintln(w, row(m))
		}
	}
	fmt.Fprintln(w, "\nCOMMAND\tMEASURE\tEXPONENT\tOF THE LAST TWO\tTIMES")
	worst := growth{exponent: math.Inf(-1)}
	for _, group := range byCommand(all) {
		for _, g := range growths(group) {
			fmt.Fprintf(w, "%s\t%s\t%.2f\t%.2f\t%.1f\n", g.command, g.measure, g.exponent, g.last, g.times)
			if g.exponent > worst.exponent {
				worst = g
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if worst.command == "" {
		_, err := fmt.Fprintln(out, "\nNo command was measured with two sizes, so growth is unknown.")
		return err
	}
	_, err := fmt.Fprintf(out, "\nworst: %s of %s\ngrowth exponent %.2f\n", worst.measure, worst.command,
		worst.exponent)
	return err
}
