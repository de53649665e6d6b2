package printer

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// IsDangerous reports whether a character can control a terminal or change the appearance of other text.
func IsDangerous(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Clean returns untrusted text as a single line that is safe for terminals and reports. Dangerous characters and
// invalid UTF-8 are replaced with their numbers, and tabs and line breaks with spaces.
func Clean(text string) string {
	return clean(text, func(r rune) string {
		if r == '\t' || r == '\n' {
			return " "
		}
		return number(r)
	})
}

// Escape is like Clean, but keeps line breaks and tabs.
func Escape(text string) string {
	return clean(text, func(r rune) string {
		if r == '\t' || r == '\n' {
			return string(r)
		}
		return number(r)
	})
}

// Indented indents all lines of a text except the first, so that untrusted lines cannot be mistaken for messages from
// this tool.
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

// screen is a writer that escapes all text.
type screen struct {
	w io.Writer

	mu   sync.Mutex
	rest []byte // start of a character that the next write completes
}

// Screen returns a writer that escapes all text. Use Raw for output that is not text or that needs control characters.
func Screen(w io.Writer) io.Writer {
	if _, is := w.(*screen); is {
		return w
	}
	return &screen{w: w}
}

// Raw returns the underlying writer of a Screen, for JSON or YAML that programs read, and for colors and redrawn lines
// whose text is already escaped.
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

// partial returns the incomplete character at the end of data.
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

// Escaping returns a writer that makes JSON safe for terminals: it writes the dangerous characters that JSON does not
// escape (DEL, C1 controls, bidirectional controls) as \u00XX. Each Write must contain whole characters.
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
