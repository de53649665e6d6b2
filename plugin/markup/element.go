// Package markup writes reports as HTML pages in which all input is escaped. It does not use html/template, because
// templates call methods by name. Go's linker would therefore keep all exported methods of all Kubernetes packages,
// which would make the plugin 50% larger.
package markup

import (
	"html"
	"net/url"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Part is a part of an element: an attribute, text, or another element. A nil part is ignored.
type Part interface{ put(*strings.Builder) }

// The names of elements and attributes have unexported types, so that callers can use only constants.
type (
	tag string
	key string
)

// Text is untrusted text. It is escaped.
type Text string

func (t Text) put(b *strings.Builder) { b.WriteString(escape(string(t))) }

// Own is the content of an embedded style or script, the only text that is not escaped.
type Own string

func (o Own) put(b *strings.Builder) { b.WriteString(string(o)) }

// attribute is an attribute of an element. Its value is escaped.
type attribute struct {
	key   key
	value string
}

func (a attribute) put(b *strings.Builder) {
	b.WriteString(" " + string(a.key) + `="` + escape(a.value) + `"`)
}

// Parts is a sequence of parts.
type Parts []Part

func (all Parts) put(b *strings.Builder) {
	for _, p := range all {
		p.put(b)
	}
}

// element is an HTML element with its non-nil parts.
type element struct {
	tag               tag
	attributes, parts Parts
}

func (e element) put(b *strings.Builder) {
	b.WriteString("<" + string(e.tag))
	e.attributes.put(b)
	b.WriteByte('>')
	if !isVoid(e.tag) {
		e.parts.put(b)
		b.WriteString("</" + string(e.tag) + ">")
	}
	if endsLine(e.tag) {
		b.WriteByte('\n')
	}
}

// isVoid reports whether an element has no content and no end tag.
func isVoid(t tag) bool { return t == "meta" || t == "br" }

// endsLine reports whether a line break follows the element in the source. Browsers ignore line breaks after these
// elements.
func endsLine(t tag) bool {
	switch t {
	case "html", "head", "body", "meta", "title", "style", "script", "header", "main", "footer", "section", "article",
		"details", "summary",
		"h1", "h2", "h3", "h4", "p", "div", "figure", "ul", "li", "table", "thead", "tbody", "tr", "defs", "path":
		return true
	}
	return false
}

// El returns an element. Attributes and other parts may be in any order.
func El(t tag, all ...Part) Part {
	e := element{tag: t}
	e.add(all)
	return e
}

func (e *element) add(all Parts) {
	for _, p := range all {
		switch p := p.(type) {
		case nil:
		case Parts:
			e.add(p)
		case attribute:
			e.attributes = append(e.attributes, p)
		default:
			e.parts = append(e.parts, p)
		}
	}
}

// Attr returns an attribute of an element.
func Attr(k key, value string) Part { return attribute{k, value} }

// Num returns an attribute with a number, in pixels or drawing units.
func Num(k key, n int) Part { return attribute{k, strconv.Itoa(n)} }

// Class returns a class attribute.
func Class(names ...string) Part { return attribute{"class", strings.Join(names, " ")} }

// Jump returns an href attribute for an anchor on the same page.
func Jump(anchor string) Part { return attribute{"href", "#" + anchor} }

// Link returns a link if the address is an HTTP or HTTPS URL, otherwise text.
func Link(address string) Part {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return Text(address)
	}
	return El("a", attribute{"href", u.String()}, Attr("rel", "noreferrer"), Text(address))
}

// When returns p if ok is true, otherwise nil.
func When(ok bool, p Part) Part {
	if ok {
		return p
	}
	return nil
}

// Each returns a part for each item.
func Each[T any](all []T, show func(T) Part) Parts {
	var shown Parts
	for _, one := range all {
		shown = append(shown, show(one))
	}
	return shown
}

// escape returns s escaped for use in an element or in a quoted attribute. Line breaks are preserved. Control
// characters and invalid UTF-8 are replaced with their numbers.
func escape(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = html.EscapeString(printer.Clean(line))
	}
	return strings.Join(lines, "\n")
}
