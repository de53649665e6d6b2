package expr

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// part is a piece of a string: literal text or an expression.
type part struct {
	text   string
	isExpr bool
	offset int // offset of the expression in the string
}

// errOpen is for an unclosed ${.
var errOpen = errors.New("missing } after ${; write $${ for a literal ${")

// split splits a string into literal text and expressions.
func split(s string) ([]part, error) {
	var parts []part
	var text strings.Builder
	flush := func() {
		if text.Len() > 0 {
			parts = append(parts, part{text: text.String()})
			text.Reset()
		}
	}
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "$${"):
			text.WriteString("${")
			i += 3
		case strings.HasPrefix(s[i:], "${"):
			n := closing(s[i+2:])
			if n < 0 {
				return nil, at(s, i, "%v", errOpen)
			}
			flush()
			parts = append(parts, part{text: s[i+2 : i+2+n], isExpr: true, offset: i + 2})
			i += 2 + n + 1
		default:
			text.WriteByte(s[i])
			i++
		}
	}
	flush()
	return parts, nil
}

// closing returns the index of the } that ends an expression, or -1. It skips the } of maps, string literals
// and comments.
func closing(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '{':
			depth++
		case c == '}':
			if depth == 0 {
				return i
			}
			depth--
		case c == '"' || c == '\'':
			n := literal(s, i)
			if n < 0 {
				return -1
			}
			i = n
		case strings.HasPrefix(s[i:], "//"):
			n := strings.IndexByte(s[i:], '\n')
			if n < 0 {
				return -1
			}
			i += n
		}
	}
	return -1
}

// literal returns the index of the last byte of the string literal that begins at i, or -1. In raw literals
// (r"..."), a backslash does not escape.
func literal(s string, i int) int {
	raw := i > 0 && (s[i-1] == 'r' || s[i-1] == 'R')
	quote := s[i : i+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(s[i:], triple) {
		quote = triple
	}
	for j := i + len(quote); j < len(s); j++ {
		if s[j] == '\\' && !raw {
			j++
			continue
		}
		if strings.HasPrefix(s[j:], quote) {
			return j + len(quote) - 1
		}
	}
	return -1
}

// at returns an error at an offset in a string.
func at(s string, offset int, format string, args ...any) *Error {
	line, column := position(s, offset)
	return &Error{Line: line, Column: column, Message: fmt.Sprintf(format, args...)}
}

// position returns the 1-based line and column of an offset in a string.
func position(s string, offset int) (line, column int) {
	before := s[:min(offset, len(s))]
	return strings.Count(before, "\n") + 1, len([]rune(before[strings.LastIndexByte(before, '\n')+1:])) + 1
}

// Closed returns an error if a ${ in a string has no closing }. It does not check the expressions.
func Closed(text string) error {
	_, err := split(text)
	return err
}

// IsExpression reports whether a string is a single expression, which keeps the type of its value.
func IsExpression(text string) bool {
	parts, err := split(text)
	return err == nil && len(parts) == 1 && parts[0].isExpr
}

// HasExpression reports whether a string contains an expression.
func HasExpression(text string) bool {
	parts, err := split(text)
	return err == nil && slices.ContainsFunc(parts, func(p part) bool { return p.isExpr })
}

// Placed is an expression in a string, with its 1-based position.
type Placed struct {
	*Program
	Line, Column int
}

// Compiled returns the expressions in a string. The expressions may use the given variables. Positions in the error
// refer to the string.
func Compiled(text string, names ...string) ([]Placed, error) {
	parts, err := split(text)
	if err != nil {
		return nil, err
	}
	var all []Placed
	var errs []error
	for _, p := range parts {
		if !p.isExpr {
			continue
		}
		program, err := Compile(p.text, append(names[:len(names):len(names)], omitName)...)
		if err != nil {
			errs = append(errs, shift(text, p, err))
			continue
		}
		line, column := position(text, p.offset)
		all = append(all, Placed{program, line, column})
	}
	return all, errors.Join(errs...)
}
