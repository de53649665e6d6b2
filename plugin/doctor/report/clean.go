package report

import (
	"strings"
	"unicode/utf8"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// longest is the maximum number of bytes of a quoted line to show; -o json contains the whole line.
const longest = 1000

func clean(text string) string { return printer.Clean(text) }

// quoted returns the lines of a quotation, sanitized and shortened to a readable length.
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
