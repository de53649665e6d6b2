package markup

import (
	"crypto/sha256"
	_ "embed" // the style and the script
	"encoding/base64"
	"strings"
)

// Style and Script are those of all our pages: light and dark, wide, narrow and printed; buttons that copy.
var (
	//go:embed page.css
	Style string
	//go:embed page.js
	Script string
)

// Document is a page that needs nothing else: its policy forbids browsers to load or run anything for it but our one
// style and one script.
type Document struct {
	Title string
	// Style is added to that of all pages. It is a file of ours.
	Style Own
	Body  Part
}

// String returns the page as a file.
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

// hash returns how a Content-Security-Policy names the one style or script that may be there.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
