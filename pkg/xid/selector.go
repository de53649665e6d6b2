package xid

import (
	"fmt"
	"strconv"
	"strings"
)

// Selector is what a user names to be injected: an XID, an SXid, or the record of a GPU that fell off the bus.
type Selector struct {
	Kind Kind // KindXID, KindSXid or KindFallenOff
	Code int  // of an XID or SXid
}

// ParseSelector understands "79", "sxid:20034" and "fallen-off-bus". It does not ask the catalog: a code that is not
// in it can still be made with a message; see [Selector.Known].
func ParseSelector(s string) (Selector, error) {
	s = strings.TrimSpace(s)
	if s == string(KindFallenOff) {
		return Selector{Kind: KindFallenOff}, nil
	}
	kind, digits := KindXID, s
	if prefix, rest, ok := strings.Cut(s, ":"); ok {
		switch prefix {
		case "xid":
			digits = rest
		case "sxid":
			kind, digits = KindSXid, rest
		default:
			return Selector{},
				fmt.Errorf("%q selects nothing: write an XID like 79, sxid:20034, or %s", s, KindFallenOff)
		}
	}
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || strings.HasPrefix(digits, "+"):
		return Selector{},
			fmt.Errorf("%q is no XID: write its number, like 79 (xid list shows them), sxid:20034, or %s",
				s, KindFallenOff)
	case n < 1 || n > maxNumber:
		return Selector{}, fmt.Errorf("%q is no XID: numbers go from 1 to %d (xid list shows them)", s, maxNumber)
	}
	return Selector{Kind: kind, Code: n}, nil
}

// String returns the form that [ParseSelector] reads.
func (s Selector) String() string {
	switch s.Kind {
	case KindSXid:
		return "sxid:" + strconv.Itoa(s.Code)
	case KindXID:
		return strconv.Itoa(s.Code)
	default:
		return string(s.Kind)
	}
}

// Known reports whether a text is known, so that no message is needed.
func (s Selector) Known() bool {
	switch s.Kind {
	case KindXID:
		_, ok := lookup(s.Code)
		return ok
	case KindSXid:
		_, ok := LookupSXid(s.Code)
		return ok
	default:
		return s.Kind == KindFallenOff
	}
}

// Event makes the event that s selects: [New], [NewSXid] or [NewFallenOff].
func (s Selector) Event(o Options) (Event, error) {
	switch s.Kind {
	case KindXID:
		return New(s.Code, o)
	case KindSXid:
		return NewSXid(s.Code, o)
	case KindFallenOff:
		return NewFallenOff(o)
	default:
		return Event{}, fmt.Errorf("%q cannot be selected", s.Kind)
	}
}
