package scenario

import (
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/expr"
)

// Limits for a file, well above the needs of a scenario, so that an untrusted file cannot exhaust memory.
const (
	maxFile  = 1 << 20
	maxNodes = 100_000
	maxDepth = 60
)

// reader builds nodes from YAML and collects problems.
type reader struct {
	file     string
	lines    []string // of the file
	problems Problems
	nodes    int
	within   []*yaml.Node // the aliases that are being followed
}

func (r *reader) fail(line, column int, field, format string, args ...any) {
	r.problems = append(r.problems,
		&Problem{File: r.file, Line: line, Column: column, Field: field, Message: fmt.Sprintf(format, args...)})
}

// read parses a file with one document.
func (r *reader) read(data []byte) *node {
	if len(data) > maxFile {
		r.fail(0, 0, "", "the file is %d bytes; the maximum is %d", len(data), maxFile)
		return nil
	}
	r.lines = strings.Split(string(data), "\n")
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		r.fail(1, 1, "", "the file is empty")
		return nil
	case err != nil:
		r.syntax(err)
		return nil
	}
	root := r.node(&doc, "", 0)
	switch err := dec.Decode(&more); {
	case errors.Is(err, io.EOF):
	case err != nil:
		r.syntax(err)
	default:
		r.fail(more.Line, more.Column, "", "unexpected second document: a file must contain only one")
	}
	return root
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntax reports an error from the YAML library, which knows only the line.
func (r *reader) syntax(err error) {
	line, message := 0, err.Error()
	if m := yamlLine.FindStringSubmatch(strings.TrimSpace(message)); m != nil {
		line, _ = strconv.Atoi(m[1])
		message = m[2]
	}
	if i := slices.IndexFunc(
		r.lines, func(l string) bool { return strings.HasPrefix(strings.TrimLeft(l, " "), "\t") },
	); i >= 0 && line > 0 && i+1 <= line+1 {
		r.fail(i+1, strings.Index(r.lines[i], "\t")+1, "", "found a tab: indent YAML with spaces")
		return
	}
	r.fail(line, min(line, 1), "", "invalid YAML: %s", message)
}

func (r *reader) node(y *yaml.Node, path string, depth int) *node {
	n := &node{line: y.Line, column: y.Column, style: styleOf(y)}
	if r.nodes++; r.nodes == maxNodes {
		r.fail(y.Line, y.Column, path, "more than %d values, including aliases", maxNodes)
	}
	if depth == maxDepth {
		r.fail(y.Line, y.Column, path, "nested more than %d levels deep", maxDepth)
	}
	if r.nodes >= maxNodes || depth >= maxDepth {
		return n
	}
	switch y.Kind {
	case yaml.DocumentNode:
		return r.node(y.Content[0], path, depth)
	case yaml.AliasNode:
		return r.alias(y, path, depth)
	case yaml.MappingNode:
		n.shape = mapping
		r.mapping(n, y, path, depth)
	case yaml.SequenceNode:
		n.shape = list
		for i, item := range y.Content {
			n.items = append(n.items, r.node(item, fmt.Sprintf("%s[%d]", path, i), depth+1))
		}
	default:
		n.value = r.scalar(y, path)
	}
	return n
}

func styleOf(y *yaml.Node) style {
	switch {
	case y.Style&yaml.LiteralStyle != 0:
		return literal
	case y.Style&yaml.FoldedStyle != 0:
		return folded
	case y.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		return quoted
	}
	return plainStyle
}

// place returns the position in the file for an error within a string.
func (r *reader) place(n *node, e *expr.Error) (line, column int) {
	switch {
	case n.style == literal && n.line < len(r.lines):
		for _, l := range r.lines[n.line:] {
			if rest := strings.TrimLeft(l, " "); rest != "" {
				return n.line + e.Line, len(l) - len(rest) + e.Column
			}
		}
	case n.style == quoted && e.Line == 1:
		return n.line, n.column + e.Column
	case n.style == plainStyle && e.Line == 1:
		return n.line, n.column + e.Column - 1
	}
	return n.line, n.column
}

// exprError reports the problems in an expression, with their positions in the file.
func (r *reader) exprError(n *node, path string, err error) {
	for _, e := range expr.Errors(err) {
		line, column := r.place(n, e)
		r.fail(line, column, path, "%s", e.Message)
	}
}

// alias returns the value of an alias, at the position of the anchor.
func (r *reader) alias(y *yaml.Node, path string, depth int) *node {
	if slices.Contains(r.within, y.Alias) {
		r.fail(y.Line, y.Column, path, "*%s contains itself", y.Value)
		return &node{line: y.Line, column: y.Column}
	}
	r.within = append(r.within, y.Alias)
	defer func() { r.within = r.within[:len(r.within)-1] }()
	return r.node(y.Alias, path, depth+1)
}

func (r *reader) mapping(n *node, y *yaml.Node, path string, depth int) {
	var merged []*node
	for i := 0; i+1 < len(y.Content); i += 2 {
		key, value := y.Content[i], y.Content[i+1]
		if key.ShortTag() == "!!merge" {
			merged = append(merged, r.merged(value, path, depth)...)
			continue
		}
		if key.Kind != yaml.ScalarNode {
			r.fail(key.Line, key.Column, path, "key must be a string")
			continue
		}
		if before := n.entry(key.Value); before != nil {
			r.fail(key.Line, key.Column, expr.Join(path, key.Value), "duplicate key, first used in line %d",
				before.line)
			continue
		}
		n.keys = append(n.keys, entry{
			name: key.Value, line: key.Line, column: key.Column,
			value: r.node(value, expr.Join(path, key.Value), depth+1),
		})
	}
	for _, m := range merged { // keys of the map itself override merged keys
		for _, e := range m.keys {
			if n.entry(e.name) == nil {
				n.keys = append(n.keys, e)
			}
		}
	}
}

// merged returns the maps that a << key merges.
func (r *reader) merged(y *yaml.Node, path string, depth int) []*node {
	m := r.node(y, path, depth+1)
	maps := []*node{m}
	if m.shape == list {
		maps = m.items
	}
	for _, one := range maps {
		if one.shape != mapping {
			r.fail(y.Line, y.Column, path, "<< must refer to a map, not %s", one.describe())
			return nil
		}
	}
	return maps
}

func (r *reader) scalar(y *yaml.Node, path string) any {
	var value any
	switch tag := y.ShortTag(); tag {
	case "!!null":
		return nil
	case "!!str", "!!timestamp": // a date is a string, as in JSON
		return y.Value
	case "!!bool", "!!int", "!!float":
		if err := y.Decode(&value); err != nil {
			r.fail(y.Line, y.Column, path, "invalid value %q for type %s", y.Value, strings.TrimPrefix(tag, "!!"))
			return nil
		}
	default:
		r.fail(y.Line, y.Column, path,
			"unsupported tag %s: must be a plain string, number, true, false or null", tag)
		return nil
	}
	switch value := value.(type) {
	case int:
		return int64(value)
	case uint64:
		r.fail(y.Line, y.Column, path, "%d is too large", value)
		return nil
	case float64:
		if math.IsNaN(value) || math.IsInf(value, 0) {
			r.fail(y.Line, y.Column, path, "invalid number %s: not supported in JSON", y.Value)
			return nil
		}
	}
	return value
}
