package printer

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// IsDangerous reports whether a character can move a cursor, or make text look like another.
func IsDangerous(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Clean makes text from elsewhere safe to show in a line, on a terminal, in a page or in a report: dangerous
// characters and bytes that are not UTF-8 are shown by their numbers. A tab becomes a blank; a line break too.
func Clean(text string) string {
	return clean(text, func(r rune) string {
		if r == '\t' || r == '\n' {
			return " "
		}
		return number(r)
	})
}

// Escape is Clean for text of several lines: line breaks and tabs stay.
func Escape(text string) string {
	return clean(text, func(r rune) string {
		if r == '\t' || r == '\n' {
			return string(r)
		}
		return number(r)
	})
}

// Indented is text of several lines of which only the first begins at the margin: no line of a record, or of what a
// node says, looks like one of ours.
func Indented(text string) string {
	lines := strings.Split(text, "\n")
	for i := 1; i < len(lines); i++ {
		if !strings.HasPrefix(lines[i], " ") {
			lines[i] = "  " + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

func clean(text string, replace func(rune) string) string {
	if !strings.ContainsFunc(text, IsDangerous) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case IsDangerous(r):
			b.WriteString(replace(r))
		default:
			b.WriteRune(r)
		}
		text = text[size:]
	}
	return b.String()
}

func number(r rune) string {
	if r < 0x80 {
		return fmt.Sprintf(`\x%02x`, r)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// screen is a stream that people read.
type screen struct {
	w io.Writer

	mu   sync.Mutex
	rest []byte // the beginning of a character whose end comes with the next write
}

// Screen returns a stream on which every text is escaped, whoever writes it and wherever it comes from. Raw is for
// what is not text for people, or has control characters of its own.
func Screen(w io.Writer) io.Writer {
	if _, is := w.(*screen); is {
		return w
	}
	return &screen{w: w}
}

// Raw returns the stream below a Screen: for machines that read JSON or YAML verbatim, and for colors and redrawn
// lines, whose text the writer has escaped.
func Raw(w io.Writer) io.Writer {
	if s, is := w.(*screen); is {
		return s.w
	}
	return w
}

func (s *screen) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append(s.rest, data...)
	whole := len(all) - len(partial(all))
	s.rest = append([]byte(nil), all[whole:]...)
	if _, err := io.WriteString(s.w, Escape(string(all[:whole]))); err != nil {
		return 0, err
	}
	return len(data), nil
}

// partial returns the end of data that is the beginning of a character.
func partial(data []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(data); i++ {
		if end := data[len(data)-i:]; utf8.RuneStart(end[0]) {
			if utf8.FullRune(end) {
				return nil
			}
			return end
		}
	}
	return nil
}

// Escaping returns a writer of JSON in which no byte can speak to a terminal: what JSON leaves raw (DEL and the C1
// controls, and what turns the direction of writing) is written as \u00XX. Each Write must hold whole characters.
func Escaping(w io.Writer) io.Writer { return escaping{Raw(w)} }

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
