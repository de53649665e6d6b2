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

// Talk writes text for people and ends its last line. On a terminal, lines that are too long are wrapped between words;
// a pipe gets them as they are. What is in args may come from elsewhere: it is escaped.
func Talk(w io.Writer, format string, args ...any) {
	text := Escape(strings.TrimSuffix(fmt.Sprintf(format, args...), "\n"))
	// As with fmt.Fprintln, there is nobody to tell that nobody listens.
	_, _ = fmt.Fprintln(w, Wrap(text, Width(w)))
}

// Width returns the width in columns of the terminal that w is; 0 when it is none.
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

// Wrap breaks lines that are wider than width columns between words. The rest of a line is indented as its beginning
// is. A word, and a command of kubectl, stays in one piece, so that it can be copied. Width 0 leaves the text as it is.
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

// WrapHanging is Wrap for one line, whose rest goes on below hanging. It returns at least one line.
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
	// word is one with the blanks before it.
	word = regexp.MustCompile(` *[^ ]+`)
	// command is a command line for the user to copy, up to where the sentence goes on.
	command = regexp.MustCompile("kubectl(?: [^ ;)`|]*[^ ;:)`|,])+")
)

const noBreak = "\u00a0"
