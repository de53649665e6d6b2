package report

import (
	"strings"
	"unicode/utf8"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// longest is how many bytes of one line of a quotation are shown; the whole is in -o json.
const longest = 1000

func clean(text string) string { return printer.Clean(text) }

// quoted returns the lines of a quotation, clean and cut to what can be read.
func quoted(text string) []string {
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(text, "\ufffd")) {
		lines = append(lines, cut(clean(strings.TrimRight(line, "\r\n"))))
	}
	return lines
}

func cut(line string) string {
	if len(line) <= longest {
		return line
	}
	end := longest
	for end > 0 && !utf8.RuneStart(line[end]) {
		end--
	}
	return line[:end] + "…"
}
