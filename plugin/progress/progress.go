// Package progress shows the progress of long operations on stderr: one updated line per target on a terminal,
// otherwise one line per step.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Reporter shows the progress of several targets. Its methods are safe for concurrent use.
type Reporter struct {
	out   io.Writer
	live  bool
	width int
	start time.Time

	mu    sync.Mutex
	order []string
	last  map[string]string
	drawn int // number of lines that the next draw replaces
}

// New returns a Reporter. Times are measured from this call.
func New(out io.Writer) *Reporter {
	width, live := terminal(out)
	return &Reporter{out: printer.Raw(out), live: live, width: width, start: time.Now(), last: map[string]string{}}
}

// Step reports the current step of target.
func (r *Reporter) Step(target, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := printer.Clean(fmt.Sprintf("%s: %s (%.1fs)", target, text, time.Since(r.start).Seconds()))
	if !r.live {
		fmt.Fprintln(r.out, line)
		return
	}
	if _, known := r.last[target]; !known {
		r.order = append(r.order, target)
	}
	r.last[target] = line
	r.draw()
}

// Note prints a permanent message. All lines except the first are indented.
func (r *Reporter) Note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.erase()
	printer.Talk(r.out, "%s", printer.Indented(text))
	r.draw()
}

func (r *Reporter) draw() {
	if !r.live {
		return
	}
	r.erase()
	for _, target := range r.order {
		// If a line wrapped, the number of lines to erase would be wrong.
		fmt.Fprintln(r.out, cut(r.last[target], r.width))
	}
	r.drawn = len(r.order)
}

func (r *Reporter) erase() {
	if r.drawn > 0 {
		fmt.Fprintf(r.out, "\x1b[%dA\x1b[J", r.drawn)
		r.drawn = 0
	}
}

func cut(line string, width int) string {
	runes := []rune(line)
	if width <= 1 || len(runes) < width {
		return line
	}
	return string(runes[:width-2]) + "…"
}

// terminal returns the width of out, and whether its lines can be redrawn. NO_COLOR has no effect on this.
func terminal(out io.Writer) (width int, live bool) {
	width = printer.Width(out)
	return width, width > 0 && !strings.EqualFold(os.Getenv("TERM"), "dumb")
}
