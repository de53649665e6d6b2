package printer

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/olekukonko/tablewriter/pkg/twwidth"
	"golang.org/x/term"
)

// Talk writes a message and a final line break. On a terminal, it wraps long lines at spaces. It escapes the message,
// because args may be untrusted.
func Talk(w io.Writer, format string, args ...any) {
	text := Escape(strings.TrimSuffix(fmt.Sprintf(format, args...), "\n"))
	// A failed write to stderr cannot be reported.
	_, _ = fmt.Fprintln(w, Wrap(text, Width(w)))
}

// Width returns the width of the terminal in columns, or 0 if w is not a terminal.
func Width(w io.Writer) int {
	f, ok := Raw(w).(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// Wrap wraps lines that are wider than width columns at spaces, and preserves their indentation. It does not break
// kubectl commands, so that users can copy them. If width is 0, it returns the text unchanged.
func Wrap(text string, width int) string {
	if width <= 0 {
		return text
	}
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		lines = append(lines, WrapHanging(line, width, indent)...)
	}
	return strings.Join(lines, "\n")
}

// WrapHanging wraps a single line like Wrap, with hanging as the prefix of continuation lines. It returns at least one
// line.
func WrapHanging(line string, width int, hanging string) []string {
	if width <= 0 || twwidth.Width(line) <= width {
		return []string{line}
	}
	glued := command.ReplaceAllStringFunc(line, func(c string) string {
		if twwidth.Width(c) > width-twwidth.Width(hanging) {
			return c
		}
		return strings.ReplaceAll(c, " ", noBreak)
	})
	var lines []string
	current := ""
	for _, word := range word.FindAllString(glued, -1) {
		if strings.TrimSpace(current) != "" && twwidth.Width(current+word) > width {
			lines = append(lines, current)
			current, word = hanging, strings.TrimLeft(word, " ")
		}
		current += word
	}
	lines = append(lines, current)
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], noBreak, " ")
	}
	return lines
}

var (
	// word matches a word with its leading spaces.
	word = regexp.MustCompile(` *[^ ]+`)
	// command matches a kubectl command within a sentence.
	command = regexp.MustCompile("kubectl(?: [^ ;)`|]*[^ ;:)`|,])+")
)

const noBreak = "\u00a0"
