package xid

import (
	"fmt"
	"strconv"
	"strings"
)

// Selector selects what to inject: an XID, an SXid, or the record of a GPU that has fallen off the bus.
type Selector struct {
	Kind Kind // KindXID, KindSXid or KindFallenOff
	Code int  // for an XID or SXid
}

// ParseSelector parses "79", "sxid:20034" or "fallen-off-bus". It also accepts codes that are not in the catalog,
// because they can be injected with a message; see [Selector.Known].
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
				fmt.Errorf("invalid XID %q: must be a number such as 79, sxid:20034, or %s", s, KindFallenOff)
		}
	}
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || strings.HasPrefix(digits, "+"):
		return Selector{},
			fmt.Errorf("invalid XID %q: must be a number such as 79 (see xid list), sxid:20034, or %s",
				s, KindFallenOff)
	case n < 1 || n > maxNumber:
		return Selector{}, fmt.Errorf("invalid XID %q: must be 1 to %d (see xid list)", s, maxNumber)
	}
	return Selector{Kind: kind, Code: n}, nil
}

// String returns the selector in the form that [ParseSelector] parses.
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

// Known reports whether the text for the selector is known, so that no message is required.
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

// Event returns the selected event, using [New], [NewSXid] or [NewFallenOff].
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
