package markup

import (
	"html"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// hostile is text that wants to command the terminal, or to look like something else.
const hostile = "a\x1b[2Jb\x07\u009b31mc\u202ed\x7f\r\nnext <script>alert(1)</script> \"'><img src=x onerror=alert(1)></style></script>\u2028 \xff"

// escapes are words that want to be more than words.
func escapes() []string {
	return []string{
		"", "a node", "a < b && c > d", hostile, `"`, `'`, `" onmouseover="alert(1)`, `' onmouseover='alert(1)`,
		"` onmouseover=`alert(1)",
		"</script><script>alert(1)</script>", "</style><style>*{display:none}</style>", "</title>", "</pre>",
		"<img src=x onerror=alert(1)>",
		"<!--", "-->", "<![CDATA[", "]]>", "<?xml?>", "&lt;script&gt;", "&#60;script>", "&amp;amp;", "\x00<\x00script>",
		"<scr\x00ipt>", "\x1b[2J\x9b31m",
		"\xff\xfe<", "\xc0\xbcscript\xc0\xbe", "\xe2\x80", "+ADw-script+AD4-", "\u202egnp.exe", "\u2028", "\r\n\r\n",
		"two\nlines\n", "\ttab", "\ufeff", "\ufffe\uffff",
	}
}

// Whatever text an element has, and whatever value its attribute, neither can end the other, and a browser reads it as
// what it is.
func FuzzTextMeansNothing(f *testing.F) {
	for _, s := range escapes() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var b strings.Builder
		El("p", Text(s), Attr("title", s)).put(&b)
		rest, opened := strings.CutPrefix(b.String(), `<p title="`)
		value, rest, between := strings.Cut(rest, `">`)
		content, closed := strings.CutSuffix(rest, "</p>\n")
		if !opened || !between || !closed || value != content || strings.ContainsAny(content, `<>"'`) {
			t.Fatalf("%q became %q", s, b.String())
		}
		if i := strings.IndexFunc(content, func(r rune) bool { return printer.IsDangerous(r) && r != '\n' }); i >= 0 {
			t.Fatalf("%q became %q, in which byte %d cannot be seen", s, content, i)
		}
		lines := strings.Split(s, "\n")
		for i := range lines {
			lines[i] = printer.Clean(lines[i])
		}
		if got, want := html.UnescapeString(content), strings.Join(lines, "\n"); got != want {
			t.Fatalf("%q is read as %q, wanted %q", s, got, want)
		}
	})
}

// Only what is an address of the web can be clicked.
func TestLink(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://docs.nvidia.com/a/b.html#c":       `<a href="https://docs.nvidia.com/a/b.html#c" rel="noreferrer">https://docs.nvidia.com/a/b.html#c</a>`,
		"http://example.com/?a=1&b=2":              `<a href="http://example.com/?a=1&amp;b=2" rel="noreferrer">http://example.com/?a=1&amp;b=2</a>`,
		"HTTPS://example.com":                      `<a href="https://example.com" rel="noreferrer">HTTPS://example.com</a>`,
		`https://example.com/"onclick="alert(1)`:   `<a href="https://example.com/%22onclick=%22alert%281%29" rel="noreferrer">https://example.com/&#34;onclick=&#34;alert(1)</a>`,
		"javascript:alert(1)":                      "javascript:alert(1)",
		"JavaScript://example.com/%0aalert(1)":     "JavaScript://example.com/%0aalert(1)",
		" javascript:alert(1)":                     " javascript:alert(1)",
		"java\tscript:alert(1)":                    "java script:alert(1)",
		"\x01javascript:alert(1)":                  `\x01javascript:alert(1)`,
		"data:text/html,<script>alert(1)</script>": "data:text/html,&lt;script&gt;alert(1)&lt;/script&gt;",
		"vbscript:x":                               "vbscript:x",
		"file:///etc/passwd":                       "file:///etc/passwd",
		"//example.com":                            "//example.com",
		"https:example.com":                        "https:example.com",
		"https://\xff":                             `<a href="https://%FF" rel="noreferrer">https://\xff</a>`,
		"":                                         "",
	} {
		var b strings.Builder
		if Link(address).put(&b); b.String() != want {
			t.Errorf("%q becomes %s, wanted %s", address, b.String(), want)
		}
	}
}

// The style and the script are written as they are, so nothing in them may end their elements.
func TestOwnFilesStayInTheirElements(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"page.css": Style, "page.js": Script} {
		if strings.Contains(content, "</") || strings.Contains(content, "<!--") || strings.Contains(content, "\r") {
			t.Errorf("%s ends its element, or is not what browsers read, which the policy's hash is of", name)
		}
	}
}

// Attributes are where they belong, wherever they were given, and what is nil is not there.
func TestElements(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]Part{
		`<a href="#f1">x</a>`: El("a", Text("x"), Jump("f1")),
		`<b class="a b" id="c">12</b>`: El("b", Parts{Class("a", "b"), nil, Parts{Text("1"), Attr("id", "c")}},
			When(false, Text("no")), Text("2")),
		"<p>1<br>2</p>\n":          El("p", Text("1"), El("br"), Text("2")),
		`<rect width="-3"></rect>`: El("rect", Num("width", -3)),
		"<ul><li>a</li>\n<li>b</li>\n</ul>\n": El("ul",
			Each([]string{"a", "b"}, func(s string) Part { return El("li", Text(s)) })),
	} {
		var b strings.Builder
		if e.put(&b); b.String() != want {
			t.Errorf("%q, wanted %q", b.String(), want)
		}
	}
}
