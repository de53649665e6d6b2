package main

import (
	"fmt"
	"math"
	"strings"
)

// Sizes of the image in pixels. It contains one chart for wall time and one for memory, side by side.
const (
	chartWidth, chartHeight  = 380, 300
	left, top, right, bottom = 52, 44, 14, 34
	legendLine               = 18
)

// axis is a logarithmic axis.
type axis struct {
	min, max float64
	from, to float64 // in pixels
}

func (a axis) at(value float64) float64 {
	return a.from + (a.to-a.from)*math.Log(value/a.min)/math.Log(a.max/a.min)
}

// around returns a logarithmic axis with some room below the smallest value and above the largest.
func around(values []float64, from, to float64) axis {
	low, high := math.Inf(1), 0.0
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return axis{min: low / 1.3, max: high * 1.3, from: from, to: to}
}

// ticks returns the values on the axis that are 1, 2 or 5 times a power of ten.
func (a axis) ticks() (values []float64) {
	for power := math.Pow(10, math.Floor(math.Log10(a.min))); power <= a.max; power *= 10 {
		for _, n := range []float64{1, 2, 5} {
			if v := n * power; v >= a.min && v <= a.max {
				values = append(values, v)
			}
		}
	}
	return values
}

// chart draws one measure for all commands.
func chart(x int, title, unit string, groups [][]measurement, of func(measurement) float64) string {
	var nodes, costs []float64
	for _, group := range groups {
		for _, m := range group {
			nodes, costs = append(nodes, float64(m.Nodes)), append(costs, of(m))
		}
	}
	h := around(nodes, left, chartWidth-right)
	v := around(costs, chartHeight-bottom, top)
	var b strings.Builder
	fmt.Fprintf(&b, "<g transform=\"translate(%d 0)\">\n<text class=\"t\" x=\"%d\" y=\"22\">%s</text>\n", x, left, title)
	for _, value := range v.ticks() {
		fmt.Fprintf(&b, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"y\" x=\"%d\" y=\"%.1f\">%g %s</text>\n",
			left, v.at(value), chartWidth-right, left-6, v.at(value)+4, value, unit)
	}
	for _, value := range h.ticks() {
		fmt.Fprintf(&b, "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text class=\"x\" x=\"%.1f\" y=\"%d\">%g</text>\n",
			h.at(value), top, chartHeight-bottom, h.at(value), chartHeight-bottom+16, value)
	}
	for i, group := range groups {
		var points []string
		for _, m := range group {
			points = append(points, fmt.Sprintf("%.1f,%.1f", h.at(float64(m.Nodes)), v.at(of(m))))
		}
		fmt.Fprintf(&b, "<polyline class=\"c%d\" points=\"%s\"/>\n", i, strings.Join(points, " "))
	}
	b.WriteString("</g>\n")
	return b.String()
}

// colors are readable on white and on GitHub's dark background.
var colors = []string{"#2f81f7", "#d4743a", "#3fa34d", "#a371f7", "#db61a2", "#8b949e", "#b59f00", "#1aa3a3"}

// draw returns an SVG image with charts of wall time and memory.
func draw(all []measurement) string {
	groups := byCommand(all)
	var styles, legend strings.Builder
	for i, group := range groups {
		color := colors[i%len(colors)]
		fmt.Fprintf(&styles, ".c%d { stroke: %s }\n", i, color)
		x, y := left+i%3*240, chartHeight+20+i/3*legendLine
		label := group[0].Command
		if g := growths(group); g != nil {
			label = fmt.Sprintf("%s: n^%.2f, n^%.2f", label, g[0].exponent, g[2].exponent)
		}
		fmt.Fprintf(&legend, "<path class=\"c%d\" d=\"M%d %dh18\"/><text x=\"%d\" y=\"%d\">%s</text>\n", i, x, y-4, x+24, y,
			label)
	}
	width, height := 2*chartWidth, chartHeight+20+(len(groups)+2)/3*legendLine
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img">
<title>Wall time and memory of commands by the number of nodes, with growth exponents</title>
<style>
svg { --back: #ffffff; --line: #d0d7de; --text: #24292f; }
@media (prefers-color-scheme: dark) { svg { --back: #0d1117; --line: #30363d; --text: #e6edf3; } }
text { font: 12px system-ui, sans-serif; fill: var(--text); }
.t { font-weight: bold; } .y { text-anchor: end; } .x { text-anchor: middle; }
path, polyline { fill: none; stroke-width: 2; } .grid { stroke: var(--line); stroke-width: 1; }
%[3]s</style>
<rect width="%[1]d" height="%[2]d" rx="8" fill="var(--back)"/>
%[4]s%[5]s%[6]s</svg>
`, width, height, styles.String(),
		chart(0, "Wall time by number of nodes", "s", groups, func(m measurement) float64 { return m.Wall }),
		chart(chartWidth, "Memory by number of nodes", "MiB", groups,
			func(m measurement) float64 { return float64(m.Memory) / (1 << 20) }),
		legend.String())
}
