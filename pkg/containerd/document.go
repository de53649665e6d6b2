package containerd

import (
	"bytes"
	"slices"

	"github.com/pelletier/go-toml/v2/unstable"
)

// A document is a file with the positions of its expressions, which allows edits that keep all other bytes.
type document struct {
	data  []byte
	bom   int
	exprs []*expr
}

// span is a range of bytes.
type span struct{ from, to int }

// expr is a table header, a key with its value, or a member of an inline table.
type expr struct {
	path   []string // unquoted path from the top level of the file
	keys   []span   // parts of the key as written
	all    span     // key and value, or the key of a header
	table  *expr    // header of the enclosing table; nil at the top level
	header bool
	value  span
	inline bool    // whether the value is an inline table
	inside []*expr // members of the inline table
	of     *expr   // expr whose inline table contains this member
}

// arrayElement is a path element that stands for all elements of an array of tables. No key of a handler has this name.
const arrayElement = "\x00[]"

// parse returns both the positions of the expressions in a file and its decoded content.
func (c *Config) parse(f File) (*document, map[string]any, error) {
	tree, err := c.decode(f.Data)
	if err != nil {
		return nil, nil, err
	}
	d := &document{data: f.Data, bom: c.bom(f.Data)}
	p := &unstable.Parser{}
	p.Reset(f.Data[d.bom:])
	var table *expr
	for p.NextExpression() {
		node := p.Expression()
		switch node.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = &expr{header: true}
			d.keys(table, node, nil)
			table.all = span{table.keys[0].from, table.keys[len(table.keys)-1].to}
			if node.Kind == unstable.ArrayTable {
				table.path = append(table.path, arrayElement)
			}
			d.exprs = append(d.exprs, table)
		case unstable.KeyValue:
			d.exprs = append(d.exprs, d.keyValue(node, table, nil))
		}
	}
	return d, tree, p.Error()
}

func (d *document) keys(e *expr, node *unstable.Node, above []string) {
	e.path = slices.Clone(above)
	for it := node.Key(); it.Next(); {
		key := it.Node()
		e.path = append(e.path, string(key.Data))
		e.keys = append(e.keys, d.span(key.Raw))
	}
}

func (d *document) keyValue(node *unstable.Node, table, of *expr) *expr {
	e := &expr{table: table, of: of, all: d.span(node.Raw)}
	var above []string
	if of != nil {
		above = of.path
	} else if table != nil {
		above = table.path
	}
	d.keys(e, node, above)
	e.value = span{e.keys[len(e.keys)-1].to, e.all.to}
	e.value.from += bytes.IndexByte(d.data[e.value.from:e.value.to], '=') + 1
	for e.value.from < e.value.to && (d.data[e.value.from] == ' ' || d.data[e.value.from] == '\t') {
		e.value.from++
	}
	if value := node.Value(); value.Kind == unstable.InlineTable {
		e.inline = true
		for it := value.Children(); it.Next(); {
			if member := it.Node(); member.Kind == unstable.KeyValue {
				e.inside = append(e.inside, d.keyValue(member, table, e))
			}
		}
	}
	return e
}

func (d *document) span(r unstable.Range) span {
	return span{d.bom + int(r.Offset), d.bom + int(r.Offset) + int(r.Length)}
}

func (d *document) text(s span) string { return string(d.data[s.from:s.to]) }

// lines returns the complete lines of e, including the newline. For a header, these are the lines of the entire table.
func (d *document) lines(e *expr) span {
	last := e
	if e.header {
		for _, other := range d.exprs {
			if other.table == e {
				last = other
			}
		}
	}
	return span{d.lineStart(e.all.from), d.lineEnd(last.all.to)}
}

func (d *document) lineStart(at int) int {
	return max(bytes.LastIndexByte(d.data[:at], '\n')+1, d.bom)
}

func (d *document) lineEnd(at int) int {
	if n := bytes.IndexByte(d.data[at:], '\n'); n >= 0 {
		return at + n + 1
	}
	return len(d.data)
}

// indent returns the white space at the start of e's line.
func (d *document) indent(e *expr) string {
	start := d.lineStart(e.all.from)
	end := start
	for end < len(d.data) && (d.data[end] == ' ' || d.data[end] == '\t') {
		end++
	}
	return string(d.data[start:end])
}

// newline returns the line ending of the file.
func (d *document) newline() string {
	if n := bytes.IndexByte(d.data, '\n'); n > 0 && d.data[n-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// lineOf returns the first line that defines path or a descendant of it, or 0 if there is none.
func (d *document) lineOf(path []string) int {
	if found := d.at(path); len(found) > 0 {
		return 1 + bytes.Count(d.data[:found[0].all.from], []byte{'\n'})
	}
	return 0
}

// at returns the expressions that define path or a descendant of it, in file order. If it returns an inline table, it
// does not also return the members of that table.
func (d *document) at(path []string) []*expr {
	var found []*expr
	var look func(e *expr)
	look = func(e *expr) {
		switch {
		case hasPrefix(e.path, path):
			found = append(found, e)
		case e.inline && hasPrefix(path, e.path):
			for _, member := range e.inside {
				look(member)
			}
		}
	}
	for _, e := range d.exprs {
		look(e)
	}
	return found
}

// exactly returns the expression whose key is path. The expression may be a header.
func (d *document) exactly(path []string) *expr {
	for _, e := range d.at(path) {
		if len(e.path) == len(path) {
			return e
		}
	}
	return nil
}

func hasPrefix(path, prefix []string) bool {
	return len(path) >= len(prefix) && slices.Equal(path[:len(prefix)], prefix)
}
