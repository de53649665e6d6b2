package main

import (
	"regexp"
	"strings"
)

// page is a Markdown page that is being written.
type page struct{ strings.Builder }

func (p *page) made() {
	p.line("<!-- Made by `go run ./hack/docs`: change the program, not this page. -->")
}

// line writes a paragraph or a heading.
func (p *page) line(text string) { p.WriteString(text + "\n\n") }

// row writes a table row. The cells are Markdown.
func (p *page) row(cells ...string) { p.WriteString("| " + strings.Join(cells, " | ") + " |\n") }

// String returns the page with exactly one newline at the end.
func (p *page) String() string { return strings.TrimRight(p.Builder.String(), "\n") + "\n" }

func (p *page) end() { p.WriteString("\n") }

// code writes a code block. kind is its language, or text if it is not to be typed.
func (p *page) code(kind, text string) {
	p.WriteString("```" + kind + "\n" + strings.TrimRight(text, "\n") + "\n```\n\n")
}

// prose writes the paragraphs of a help text. Indented lines become a code block.
func (p *page) prose(text string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if head, list, ok := strings.Cut(paragraph, "\n "); ok || strings.HasPrefix(paragraph, " ") {
			if head != "" && !strings.HasPrefix(paragraph, " ") {
				p.line(escape(strings.ReplaceAll(head, "\n", " ")))
				paragraph = " " + list
			}
			p.code("text", unindent(paragraph))
			continue
		}
		p.line(escape(strings.ReplaceAll(paragraph, "\n", " ")))
	}
}

// unindent removes the common indentation of all lines.
func unindent(text string) string {
	lines := strings.Split(text, "\n")
	least := len(text)
	for _, line := range lines {
		if strings.TrimSpace(line) != "" {
			least = min(least, len(line)-len(strings.TrimLeft(line, " ")))
		}
	}
	for i, line := range lines {
		lines[i] = line[min(least, len(line)):]
	}
	return strings.Join(lines, "\n")
}

// meaning matches the characters with a special meaning in Markdown. It also matches text in backquotes and underscores
// in words, which need no escaping.
var meaning = regexp.MustCompile("`[^`]*`|[[:alnum:]]_+[[:alnum:]]|[\\\\<>*_\\[\\]|]")

// escape escapes text for Markdown, including table cells.
func escape(text string) string {
	return meaning.ReplaceAllStringFunc(text, func(s string) string {
		switch {
		case strings.HasPrefix(s, "`"):
			return strings.ReplaceAll(s, "|", `\|`)
		case len(s) > 1:
			return s
		}
		return `\` + s
	})
}

// anchor returns the anchor that GitHub generates for a heading.
func anchor(heading string) string {
	return strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

var noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
