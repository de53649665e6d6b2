package report

import (
	"html"
	"net/url"
	"strconv"
	"strings"
)

// The page is written with these few elements and not with html/template: templates call methods by their names, for which Go's linker
// keeps every exported method of all of Kubernetes' packages, and the plugin became half as large again.

// part is a part of an element: an attribute, text, or another element. nil is nothing.
type part interface{ put(*strings.Builder) }

// Names of elements and attributes have types of their own, so that only what is written in this package becomes one.
type (
	tag string
	key string
)

// text is what anyone may have written: it is escaped.
type text string

func (t text) put(b *strings.Builder) { b.WriteString(escape(string(t))) }

// own is the content of a file of ours, page.css or page.js: the only text that is written as it is.
type own string

func (o own) put(b *strings.Builder) { b.WriteString(string(o)) }

// attribute is made by attr; its value is escaped.
type attribute struct {
	key   key
	value string
}

func (a attribute) put(b *strings.Builder) {
	b.WriteString(" " + string(a.key) + `="` + escape(a.value) + `"`)
}

// parts are written one after the other.
type parts []part

func (all parts) put(b *strings.Builder) {
	for _, p := range all {
		p.put(b)
	}
}

// element is made by el, which leaves out what is nil.
type element struct {
	tag               tag
	attributes, parts parts
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

// isVoid is whether an element has no content and no end.
func isVoid(t tag) bool { return t == "meta" || t == "br" }

// endsLine is whether a line of the page's source ends with an element, where browsers take no blank from that.
func endsLine(t tag) bool {
	switch t {
	case "html", "head", "body", "meta", "title", "style", "script", "header", "main", "footer", "section", "article", "details", "summary",
		"h1", "h2", "h3", "h4", "p", "div", "figure", "ul", "li", "table", "thead", "tbody", "tr", "defs", "path":
		return true
	}
	return false
}

// el is an element with its attributes, wherever they stand among its parts.
func el(t tag, all ...part) part {
	e := element{tag: t}
	e.add(all)
	return e
}

func (e *element) add(all parts) {
	for _, p := range all {
		switch p := p.(type) {
		case nil:
		case parts:
			e.add(p)
		case attribute:
			e.attributes = append(e.attributes, p)
		default:
			e.parts = append(e.parts, p)
		}
	}
}

func attr(k key, value string) part { return attribute{k, value} }

// num is an attribute in pixels or in units of its drawing.
func num(k key, n int) part { return attribute{k, strconv.Itoa(n)} }

func class(names ...string) part { return attribute{"class", strings.Join(names, " ")} }

// jump makes an element lead to a place of the page itself.
func jump(anchor string) part { return attribute{"href", "#" + anchor} }

// link is an address that leads to its page when it is one of the web; any other stays text.
func link(address string) part {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return text(address)
	}
	return el("a", attribute{"href", u.String()}, attr("rel", "noreferrer"), text(address))
}

// when is a part that is there only sometimes.
func when(ok bool, p part) part {
	if ok {
		return p
	}
	return nil
}

// each is a part for each of them.
func each[T any](all []T, show func(T) part) parts {
	var shown parts
	for _, one := range all {
		shown = append(shown, show(one))
	}
	return shown
}

// escape makes text mean nothing but itself within an element and within the quotation marks of an attribute. Lines stay; what cannot be
// seen, or is no UTF-8, is shown by its number, also where whoever shows it forgot to.
func escape(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = html.EscapeString(clean(line))
	}
	return strings.Join(lines, "\n")
}
