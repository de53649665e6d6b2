package diagnose

import (
	"strings"
	"unicode/utf8"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// lastLines keeps the last lines of a text, and so many bytes at most, with long lines cut.
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

// printable replaces control bytes, which XML cannot have either, but for tabs and line ends. JSON would make six bytes
// of each.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' && r != '\r' {
			return utf8.RuneError
		}
		return r
	}, text)
}
