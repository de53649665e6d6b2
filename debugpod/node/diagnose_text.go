package node

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// shorten cuts a text that is longer than most bytes, and says so with "…".
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	text = text[:most]
	for range utf8.UTFMax { // not within a character
		if last, size := utf8.DecodeLastRuneInString(text); last != utf8.RuneError || size != 1 {
			break
		}
		text = text[:len(text)-1]
	}
	return text + "…"
}

// lastLines keeps the last lines of a text, and so many bytes at most, with long lines cut.
func lastLines(text string, lines, size int) string {
	all := strings.Split(strings.TrimRight(strings.ToValidUTF8(text, "\uFFFD"), "\n"), "\n")
	first := len(all)
	for kept := 0; first > 0 && len(all)-first < lines; first-- {
		line := shorten(all[first-1], maxLineText)
		if kept += len(line) + 1; kept > size {
			break
		}
		all[first-1] = line
	}
	if first == len(all) {
		return ""
	}
	if text = strings.Join(all[first:], "\n"); text == "" {
		return ""
	}
	return text + "\n"
}

// printable replaces control bytes, which XML cannot have either, but for tabs and line ends. JSON would make six bytes
// of each.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' && r != '\r' {
			return utf8.RuneError
		}
		return r
	}, text)
}

// text returns a file's text: never more than most bytes of it, and nothing is opened but a plain file.
func (r rootFS) text(name string, most int64) (string, error) {
	file, err := guarded{r}.Open(relative(name))
	if err != nil {
		if why := errors.Unwrap(err); why != nil { // its path is relative
			err = why
		}
		return "", fmt.Errorf("open %s: %w", name, err)
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	return strings.ToValidUTF8(string(raw), "\uFFFD"), nil
}

// word returns a small file's text without the space around it, or "".
func (r rootFS) word(name string) string {
	text, err := r.text(name, maxLineText)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

// kept is a writer that keeps the first or the last bytes of what it gets.
type kept struct {
	most int
	last bool
	text []byte
	cut  bool
}

func (k *kept) Write(p []byte) (int, error) {
	if !k.last {
		room := min(len(p), k.most-len(k.text))
		k.text = append(k.text, p[:room]...)
		k.cut = k.cut || room < len(p)
		return len(p), nil
	}
	k.text = append(k.text, p...)
	if len(k.text) > 2*k.most { // seldom, as it copies
		k.trim()
	}
	return len(p), nil
}

func (k *kept) trim() {
	if over := len(k.text) - k.most; over > 0 && k.last {
		k.text, k.cut = append(k.text[:0], k.text[over:]...), true
	}
}

func (k *kept) String() string {
	k.trim()
	return string(k.text)
}
