package xid

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// pciAnywhere matches possible addresses. pciSpans distinguishes them from other hexadecimal numbers by their context.
var pciAnywhere = regexp.MustCompile(`[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F](?:\.[0-7])?`)

// PCIs returns the distinct addresses in the entry, in order of appearance, with function 0.
func (e Entry) PCIs() []PCI {
	var out []PCI
	for _, span := range pciSpans(e.Text) {
		if !slices.Contains(out, span.pci) {
			out = append(out, span.pci)
		}
	}
	return out
}

// PCIs returns the distinct addresses in the log, in order of appearance.
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

// Remap returns the entry with its addresses replaced: each address that is a key in the map becomes the corresponding
// value. It preserves the function, the case, the number of domain digits, and all other bytes. The keys and values
// have no function. Addresses can be swapped.
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

// WithUUID returns the entry with the UUID in a [KindUUID] line replaced. Other entries are returned unchanged. This is
// required for a replay on another GPU, because NVSentinel learns UUIDs from such lines.
func (e Entry) WithUUID(u UUID) Entry {
	if e.Event.Kind == KindUUID {
		e.Text = strings.TrimSuffix(e.Text, e.Event.Body) + string(u)
		e.Event = parseText(e.Text)
	}
	return e
}

type pciSpan struct {
	from, to int // range of the address without the function
	pci      PCI // address with function 0
}

func pciSpans(text string) []pciSpan {
	var out []pciSpan
	for _, at := range pciAnywhere.FindAllStringIndex(text, -1) {
		before, after := text[:at[0]], text[at[1]:]
		if before != "" && (isWord(before[len(before)-1]) || strings.ContainsAny(before[len(before)-1:], "-.")) {
			continue
		}
		// In "a:0000:17:00", the address is part of a longer string and is skipped. A colon is allowed only in the
		// driver's "PCI:".
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
