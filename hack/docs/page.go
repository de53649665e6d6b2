package main

import (
	"regexp"
	"strings"
)

// page is Markdown that grows.
type page struct{ strings.Builder }

func (p *page) made() {
	p.line("<!-- Made by `go run ./hack/docs`: change the program, not this page. -->")
}

// line is a paragraph, or a heading.
func (p *page) line(text string) { p.WriteString(text + "\n\n") }

// row is one of a table, whose cells are Markdown; end is behind the last one.
func (p *page) row(cells ...string) { p.WriteString("| " + strings.Join(cells, " | ") + " |\n") }

// String ends with one newline.
func (p *page) String() string { return strings.TrimRight(p.Builder.String(), "\n") + "\n" }

func (p *page) end() { p.WriteString("\n") }

// code is a block that stays as it is; kind is the language, text for what is not to be typed.
func (p *page) code(kind, text string) {
	p.WriteString("```" + kind + "\n" + strings.TrimRight(text, "\n") + "\n```\n\n")
}

// prose takes over the paragraphs of help; one with lines that begin with a blank stays as it is.
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

// unindent takes away the blanks that all lines begin with.
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

// meaning are the characters to which Markdown gives a meaning in the texts that come here; what is in backquotes has
// none, and neither has an underscore within a word.
var meaning = regexp.MustCompile("`[^`]*`|[[:alnum:]]_+[[:alnum:]]|[\\\\<>*_\\[\\]|]")

// escape makes text mean itself in Markdown, also in the cell of a table.
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

// anchor returns what GitHub makes of a heading to jump to.
func anchor(heading string) string {
	return strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

var noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
