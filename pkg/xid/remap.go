package xid

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// pciAnywhere finds what may be an address; pciSpans tells it from other hexadecimal numbers by its surroundings.
var pciAnywhere = regexp.MustCompile(`[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F](?:\.[0-7])?`)

// PCIs returns the addresses that the entry names, each once, in their order, with function 0.
func (e Entry) PCIs() []PCI {
	var out []PCI
	for _, span := range pciSpans(e.Text) {
		if !slices.Contains(out, span.pci) {
			out = append(out, span.pci)
		}
	}
	return out
}

// PCIs returns the addresses that the log names, each once, in their order.
func (l Log) PCIs() []PCI {
	var out []PCI
	for _, e := range l.Entries {
		for _, p := range e.PCIs() {
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// Remap moves the entry to other devices: every address that is a key of to becomes its value; functions, upper or
// lower case, the number of digits of the domain, and all other bytes stay. Keys and values are without function, and
// may change places.
func (e Entry) Remap(to map[PCI]PCI) Entry {
	var b strings.Builder
	last := 0
	for _, span := range pciSpans(e.Text) {
		target, ok := to[span.pci]
		if !ok {
			continue
		}
		old := e.Text[span.from:span.to]
		digits := strings.IndexByte(old, ':')
		now := fmt.Sprintf("%0*x:%02x:%02x", digits, target.Domain, target.Bus, target.Device)
		if old == strings.ToUpper(old) && old != strings.ToLower(old) {
			now = strings.ToUpper(now)
		}
		b.WriteString(e.Text[last:span.from])
		b.WriteString(now)
		last = span.to
	}
	b.WriteString(e.Text[last:])
	e.Text = b.String()
	e.Event = parseText(e.Text)
	return e
}

// WithUUID replaces the UUID of a line that tells it (see [KindUUID]); other entries stay as they are. A replay on
// another GPU needs it: NVSentinel learns UUIDs from that line.
func (e Entry) WithUUID(u UUID) Entry {
	if e.Event.Kind == KindUUID {
		e.Text = strings.TrimSuffix(e.Text, e.Event.Body) + string(u)
		e.Event = parseText(e.Text)
	}
	return e
}

type pciSpan struct {
	from, to int // without the function
	pci      PCI // with function 0
}

func pciSpans(text string) []pciSpan {
	var out []pciSpan
	for _, at := range pciAnywhere.FindAllStringIndex(text, -1) {
		before, after := text[:at[0]], text[at[1]:]
		if before != "" && (isWord(before[len(before)-1]) || strings.ContainsAny(before[len(before)-1:], "-.")) {
			continue
		}
		// "a:0000:17:00" is part of something longer, but for the "PCI:" of the driver.
		if strings.HasSuffix(before, ":") && !strings.HasSuffix(before, "PCI:") {
			continue
		}
		if after != "" && isWord(after[0]) ||
			len(after) > 1 && strings.ContainsAny(after[:1], ":-.") && isWord(after[1]) {
			continue
		}
		p, err := ParsePCI(text[at[0]:at[1]])
		if err != nil {
			continue
		}
		end := at[1]
		if dot := strings.IndexByte(text[at[0]:at[1]], '.'); dot >= 0 {
			end = at[0] + dot
		}
		p.Function = 0
		out = append(out, pciSpan{at[0], end, p})
	}
	return out
}

func isWord(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
}
