package markup

import (
	"crypto/sha256"
	_ "embed" // embeds the style and the script
	"encoding/base64"
	"strings"
)

// Style and Script are used by all pages for themes, layouts and copy buttons.
var (
	//go:embed page.css
	Style string
	//go:embed page.js
	Script string
)

// Document is a self-contained page. Its Content-Security-Policy allows only its embedded style and script.
type Document struct {
	Title string
	// Style is appended to the common style. It must be trusted.
	Style Own
	Body  Part
}

// String returns the page as HTML.
func (d Document) String() string {
	style := Style + string(d.Style)
	var b strings.Builder
	b.WriteString("<!DOCTYPE html>\n")
	El("html", Attr("lang", "en"),
		El("head",
			El("meta", Attr("charset", "utf-8")),
			El("meta", Attr("http-equiv", "Content-Security-Policy"), Attr("content", Policy(style))),
			El("meta", Attr("name", "viewport"), Attr("content", "width=device-width, initial-scale=1")),
			El("meta", Attr("name", "referrer"), Attr("content", "no-referrer")),
			El("title", Text(d.Title)),
			El("style", Own(style)),
		),
		El("body", d.Body, El("script", Own(Script))),
	).put(&b)
	return b.String()
}

// Policy returns a page's Content-Security-Policy.
func Policy(style string) string {
	return "default-src 'none'; style-src '" + hash(style) + "'; script-src '" + hash(Script) +
		"'; base-uri 'none'; form-action 'none'"
}

// hash returns the Content-Security-Policy hash of a style or script.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
