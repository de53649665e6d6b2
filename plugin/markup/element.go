// Package markup writes the pages that reports are: HTML in which whatever anyone wrote is text, and nothing else. It
// is written with these few elements and not with html/template: templates call methods by their names, for which Go's
// linker keeps every exported method of all of Kubernetes' packages, and the plugin became half as large again.
package markup

import (
	"html"
	"net/url"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Part is a part of an element: an attribute, text, or another element. nil is nothing.
type Part interface{ put(*strings.Builder) }

// Names of elements and attributes have types of their own, so that only what is written in this package becomes one.
type (
	tag string
	key string
)

// Text is what anyone may have written: it is escaped.
type Text string

func (t Text) put(b *strings.Builder) { b.WriteString(escape(string(t))) }

// Own is the content of a file of ours, a style or a script: the only text that is written as it is.
type Own string

func (o Own) put(b *strings.Builder) { b.WriteString(string(o)) }

// attribute is made by Attr; its value is escaped.
type attribute struct {
	key   key
	value string
}

func (a attribute) put(b *strings.Builder) {
	b.WriteString(" " + string(a.key) + `="` + escape(a.value) + `"`)
}

// Parts are written one after the other.
type Parts []Part

func (all Parts) put(b *strings.Builder) {
	for _, p := range all {
		p.put(b)
	}
}

// element is made by El, which leaves out what is nil.
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

// isVoid reports whether an element has no content and no end.
func isVoid(t tag) bool { return t == "meta" || t == "br" }

// endsLine reports whether a line of the page's source ends with an element, where browsers take no blank from that.
func endsLine(t tag) bool {
	switch t {
	case "html", "head", "body", "meta", "title", "style", "script", "header", "main", "footer", "section", "article",
		"details", "summary",
		"h1", "h2", "h3", "h4", "p", "div", "figure", "ul", "li", "table", "thead", "tbody", "tr", "defs", "path":
		return true
	}
	return false
}

// El returns an element with its attributes, wherever they stand among its parts.
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

// Num returns an attribute in pixels or in units of its drawing.
func Num(k key, n int) Part { return attribute{k, strconv.Itoa(n)} }

// Class returns what styles know an element by.
func Class(names ...string) Part { return attribute{"class", strings.Join(names, " ")} }

// Jump makes an element lead to a place of the page itself.
func Jump(anchor string) Part { return attribute{"href", "#" + anchor} }

// Link returns an address that leads to its page when it is one of the web; any other stays text.
func Link(address string) Part {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return Text(address)
	}
	return El("a", attribute{"href", u.String()}, Attr("rel", "noreferrer"), Text(address))
}

// When returns a part that is there only sometimes.
func When(ok bool, p Part) Part {
	if ok {
		return p
	}
	return nil
}

// Each returns a part for each of them.
func Each[T any](all []T, show func(T) Part) Parts {
	var shown Parts
	for _, one := range all {
		shown = append(shown, show(one))
	}
	return shown
}

// escape makes text mean nothing but itself within an element and within the quotation marks of an attribute. Lines
// stay; what cannot be seen, or is no UTF-8, is shown by its number, also where whoever shows it forgot to.
func escape(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = html.EscapeString(printer.Clean(line))
	}
	return strings.Join(lines, "\n")
}
