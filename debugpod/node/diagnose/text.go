package diagnose

import (
	"strings"
	"unicode/utf8"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// lastLines returns the last lines of a string, at most size bytes, with long lines truncated.
func lastLines(text string, lines, size int) string {
	all := strings.Split(strings.TrimRight(strings.ToValidUTF8(text, "\uFFFD"), "\n"), "\n")
	first := len(all)
	for kept := 0; first > 0 && len(all)-first < lines; first-- {
		line := api.Shorten(all[first-1], api.MaxLineText)
		if kept += len(line) + 1; kept > size {
			break
		}
		all[first-1] = line
	}
	if first == len(all) {
		return ""
	}
	if text = strings.Join(all[first:], "\n"); text == "" {
		return ""
	}
	return text + "\n"
}

// printable replaces control bytes except tabs and line breaks. XML does not allow them, and JSON needs six bytes for
// each.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' && r != '\r' {
			return utf8.RuneError
		}
		return r
	}, text)
}
