package markup

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes text from elsewhere safe to show in a line: control characters, what turns the direction of writing, and bytes that are no
// UTF-8 are shown by their numbers. A tab becomes a blank; a line break too.
func Clean(text string) string {
	if !strings.ContainsFunc(text, IsDangerous) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case r == '\t' || r == '\n':
			b.WriteByte(' ')
		case IsDangerous(r) && r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case IsDangerous(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		text = text[size:]
	}
	return b.String()
}

// IsDangerous is whether a character can move a cursor, or make text look like another.
func IsDangerous(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Escaping returns a writer of JSON in which no byte can speak to a terminal: what JSON leaves raw (DEL and the C1 controls, and what turns
// the direction of writing) is written as \u00XX. Each Write must hold whole characters.
func Escaping(w io.Writer) io.Writer { return escaping{w} }

type escaping struct{ w io.Writer }

func (e escaping) Write(raw []byte) (int, error) {
	var b strings.Builder
	for _, r := range string(raw) {
		if IsDangerous(r) && r != '\n' && r != '\t' {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	if _, err := io.WriteString(e.w, b.String()); err != nil {
		return 0, err
	}
	return len(raw), nil
}
