package containerd

import (
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// A change replaces a range of bytes.
type change struct {
	at   span
	text string
}

// edits returns the changes as a patch, in order and with adjacent removals joined. Overlapping changes are a bug,
// which verify detects.
func (d *document) edits(changes []change) []patch.Edit {
	sorting.StableFunc(changes, func(a, b change) int { return a.at.from - b.at.from })
	var all []change
	for _, c := range changes {
		if n := len(all); n > 0 && all[n-1].text == "" && c.text == "" && c.at.from <= all[n-1].at.to {
			all[n-1].at.to = max(all[n-1].at.to, c.at.to)
			continue
		}
		if n := len(all); n > 0 && all[n-1].at == c.at && c.at.from == c.at.to {
			all[n-1].text += c.text // two insertions at the same position
			continue
		}
		all = append(all, c)
	}
	edits := make([]patch.Edit, len(all))
	for i, c := range all {
		edits[i] = patch.Edit{Offset: c.at.from, Old: slices.Clone(d.data[c.at.from:c.at.to]), New: []byte(c.text)}
		if len(edits[i].Old) == 0 {
			edits[i].Old = nil
		}
		if c.text == "" {
			edits[i].New = nil
		}
	}
	return edits
}

// remove returns the changes that remove all definitions of path: entire tables and lines, and members of inline tables
// including their commas.
func (d *document) remove(path []string) []change {
	var changes []change
	members := map[*expr][]*expr{}
	var holders []*expr
	for _, e := range d.at(path) {
		if e.of == nil {
			changes = append(changes, change{at: d.lines(e)})
			continue
		}
		if members[e.of] == nil {
			holders = append(holders, e.of)
		}
		members[e.of] = append(members[e.of], e)
	}
	for _, holder := range holders {
		changes = append(changes, removeMembers(holder.inside, members[holder])...)
	}
	return changes
}

// removeMembers removes each run of consecutive members, including the text up to the next remaining member. For a run
// at the end, it instead includes the text from the end of the previous member.
func removeMembers(all, gone []*expr) []change {
	var changes []change
	for i := 0; i < len(all); i++ {
		if !slices.Contains(gone, all[i]) {
			continue
		}
		last := i
		for last+1 < len(all) && slices.Contains(gone, all[last+1]) {
			last++
		}
		at := span{all[i].all.from, all[last].all.to}
		if last+1 < len(all) {
			at.to = all[last+1].all.from
		} else if i > 0 {
			at.from = all[i-1].all.to
		}
		changes = append(changes, change{at: at})
		i = last
	}
	return changes
}

// put sets the key at path to value, which is TOML. It replaces an existing value. Otherwise, it adds the key to its
// table, or to the table's nearest defined ancestor whose path has at least depth parts. It returns nil if no such
// table exists.
func (d *document) put(path []string, value string, depth int) []change {
	if e := d.exactly(path); e != nil && !e.header {
		return []change{{e.value, value}}
	}
	for n := len(path) - 1; n >= depth; n-- {
		if changes := d.insert(path[:n], dottedKey(path[n:])+" = "+value); changes != nil {
			return changes
		}
	}
	return nil
}

// insert adds a line, or a member of an inline table, to the table at path.
func (d *document) insert(path []string, line string) []change {
	found := d.at(path)
	if len(found) == 0 {
		// The table is not defined: at() has already searched nested inline tables for it.
		return nil
	}
	if e := d.exactly(path); e != nil {
		switch {
		case e.header:
			return []change{d.lineAfter(e, line)}
		case e.inline && len(e.inside) > 0:
			first := e.inside[0].all.from
			return []change{{span{first, first}, line + ", "}}
		case e.inline:
			return []change{{span{e.value.from + 1, e.value.from + 1}, " " + line + " "}}
		}
		return nil
	}
	for _, e := range found {
		above := len(e.path) - len(e.keys) // number of parts from the enclosing table
		if e.header || above >= len(path) {
			continue
		}
		// If e is a dotted key, write another one with the same prefix next to it.
		line = d.text(span{e.keys[0].from, e.keys[len(path)-above-1].to}) + "." + line
		if e.of != nil {
			return []change{{span{e.all.to, e.all.to}, ", " + line}}
		}
		return []change{d.lineAfterLine(e, line)}
	}
	for _, e := range found {
		if e.header && !slices.Contains(e.path, arrayElement) {
			// Only a subtable has a header, so write a header for the table above it.
			start, indent, eol := d.lineStart(e.all.from), d.indent(e), d.newline()
			name := d.text(span{e.keys[0].from, e.keys[len(path)-1].to})
			return []change{{span{start, start}, indent + "[" + name + "]" + eol + indent + line + eol}}
		}
	}
	return nil
}

// lineAfter adds a line after the last line of the table with header e.
func (d *document) lineAfter(e *expr, line string) change {
	last := e
	for _, other := range d.exprs {
		if other.table == e {
			last = other
		}
	}
	return d.lineAfterLine(last, line)
}

func (d *document) lineAfterLine(e *expr, line string) change {
	line = d.indent(e) + line
	end := d.lineEnd(e.all.to)
	if end > 0 && d.data[end-1] == '\n' {
		return change{span{end, end}, line + d.newline()}
	}
	return change{span{end, end}, d.newline() + line}
}

// appended adds text at the end of the file, on separate lines.
func (d *document) appended(text string) change {
	end := len(d.data)
	if end > d.bom && d.data[end-1] != '\n' {
		text = d.newline() + text
	}
	return change{span{end, end}, text}
}

func dottedKey(path []string) string {
	parts := make([]string, len(path))
	for i, p := range path {
		parts[i] = quotedKey(p)
	}
	return strings.Join(parts, ".")
}

// quotedKey formats a key as TOML, without quotes if possible.
func quotedKey(key string) string {
	for _, r := range key {
		if r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
			return quoted(key, "")
		}
	}
	if key == "" {
		return `""`
	}
	return key
}

// quoted formats text as a TOML string in the same style as the old value.
func quoted(text, old string) string {
	plain := !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
	if strings.HasPrefix(old, "'") && plain && !strings.Contains(text, "'") {
		return "'" + text + "'"
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			const hex = "0123456789ABCDEF"
			b.WriteString(`\u00` + string(hex[r>>4]) + string(hex[r&15]))
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
