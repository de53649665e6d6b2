package main

import (
	"encoding/xml"
	"fmt"
	"strings"
	"time"
)

// screen is the terminal to draw.
type screen struct {
	rows, columns int
	title         string
}

// Sizes in pixels, and how long to show the last screen before the animation restarts.
const (
	fontSize, charWidth, lineHeight = 13, 7.83, 18
	margin, titleBar                = 16, 30
	rest                            = 8 * time.Second
)

// row is a row of the terminal, with the time at which it appears.
type row struct {
	at   time.Duration
	text string
	bold bool
}

// draw returns the SVG. Viewers without animation show the last screen.
func (s screen) draw(moments []moment) string {
	all := s.layout(moments)
	total := all[len(all)-1].at + rest
	width, height := int(float64(s.columns)*charWidth)+2*margin, s.rows*lineHeight+2*margin+titleBar
	var b, keys strings.Builder
	frame, shown := 0, time.Duration(-1)
	for i, r := range all {
		if r.at != shown { // a new moment: the following rows appear, and the screen scrolls
			if i > 0 {
				b.WriteString("</g>\n")
			}
			frame, shown = frame+1, r.at
			fmt.Fprintf(&keys, "@keyframes f%d { 0%% { visibility: hidden } %.2f%% { visibility: visible } }\n", frame,
				percent(r.at, total))
			fmt.Fprintf(&b, "<g style=\"animation-name: f%d\">", frame)
		}
		class := ""
		switch {
		case r.bold:
			class = ` class="b"`
		case strings.HasPrefix(r.text, "$ "):
			class = ` class="c"`
		}
		if r.text != "" {
			fmt.Fprintf(&b, "<text%s y=\"%d\">%s</text>", class, (i+1)*lineHeight-4, escaped(r.text))
		}
	}
	b.WriteString("</g>\n")
	keys.WriteString("@keyframes scroll {\n")
	for i, r := range all {
		if last := i+1 == len(all) || all[i+1].at != r.at; last {
			fmt.Fprintf(&keys, "  %.2f%% { transform: translateY(%dpx) }\n", percent(r.at, total),
				-lineHeight*max(0, i+1-s.rows))
		}
	}
	keys.WriteString("}\n")

	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-label="%[3]s">
<title>%[3]s</title>
<style>
svg { --back: #ffffff; --bar: #eaeef2; --line: #d0d7de; --text: #24292f; --command: #0550ae; }
@media (prefers-color-scheme: dark) { svg { --back: #0d1117; --bar: #161b22; --line: #30363d; --text: #e6edf3; --command: #79c0ff; } }
text { font: %[4]dpx ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace; fill: var(--text); white-space: pre; }
.b { font-weight: bold; } .c { fill: var(--command); font-weight: bold; }
g { animation: %.1[5]fs step-end infinite; }
#all { transform: translateY(%[6]dpx); animation-name: scroll; }
@media (prefers-reduced-motion: reduce) { g, #all { animation: none; } }
%[7]s</style>
<rect x=".5" y=".5" width="%[8]d" height="%[9]d" rx="8" fill="var(--back)" stroke="var(--line)"/>
<path d="M.5 %[10]d v-22 a8 8 0 0 1 8 -8 h%[11]d a8 8 0 0 1 8 8 v22 z" fill="var(--bar)" stroke="var(--line)"/>
<text x="%[12]d" y="20">%[3]s</text>
<svg x="%[12]d" y="%[13]d" width="%[14]d" height="%[15]d">
<g id="all">
%[16]s</g>
</svg>
</svg>
`, width, height, escaped(s.title), fontSize, total.Seconds(), -lineHeight*max(0, len(all)-s.rows), keys.String(),
		width-1, height-1, titleBar+1, width-17, margin, titleBar+margin, width-2*margin, s.rows*lineHeight, b.String())
}

// layout breaks the output into rows as a terminal does.
func (s screen) layout(moments []moment) []row {
	all := []row{{}}
	for _, m := range moments {
		for i, line := range strings.Split(m.text, "\n") {
			if i > 0 {
				all = append(all, row{at: m.at})
			}
			last := &all[len(all)-1]
			if last.text == "" {
				last.at = m.at
			}
			last.bold = last.bold || strings.Contains(line, "\x1b[1m")
			rest := []rune(last.text + strings.NewReplacer("\x1b[1m", "", "\x1b[0m", "").Replace(line))
			for len(rest) > s.columns {
				last.text = string(rest[:s.columns])
				rest = rest[s.columns:]
				all = append(all, row{at: m.at})
				last = &all[len(all)-1]
			}
			last.text = string(rest)
		}
	}
	for len(all) > 1 && all[len(all)-1].text == "" {
		all = all[:len(all)-1]
	}
	for len(all) > 1 && all[0].text == "" {
		all = all[1:]
	}
	return all
}

func percent(at, total time.Duration) float64 { return 100 * float64(at) / float64(total) }

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // writing to a Builder cannot fail
	return b.String()
}
