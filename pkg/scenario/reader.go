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

// Bounds of a file, beyond all that a scenario needs: nobody's file may take the memory of whoever looks at it.
const (
	maxFile  = 1 << 20
	maxNodes = 100_000
	maxDepth = 60
)

// reader makes nodes of YAML and collects what is wrong.
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

// read reads a file of one document.
func (r *reader) read(data []byte) *node {
	if len(data) > maxFile {
		r.fail(0, 0, "", "the file has %d bytes: more than %d is no scenario", len(data), maxFile)
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
		r.fail(more.Line, more.Column, "", "a second document: a file has one scenario")
	}
	return root
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntax is an error of the YAML library, which knows lines only.
func (r *reader) syntax(err error) {
	line, message := 0, err.Error()
	if m := yamlLine.FindStringSubmatch(strings.TrimSpace(message)); m != nil {
		line, _ = strconv.Atoi(m[1])
		message = m[2]
	}
	if i := slices.IndexFunc(
		r.lines, func(l string) bool { return strings.HasPrefix(strings.TrimLeft(l, " "), "\t") },
	); i >= 0 && line > 0 && i+1 <= line+1 {
		r.fail(i+1, strings.Index(r.lines[i], "\t")+1, "", "a tab: YAML is indented by spaces")
		return
	}
	r.fail(line, min(line, 1), "", "no YAML: %s", message)
}

func (r *reader) node(y *yaml.Node, path string, depth int) *node {
	n := &node{line: y.Line, column: y.Column, style: styleOf(y)}
	if r.nodes++; r.nodes == maxNodes {
		r.fail(y.Line, y.Column, path, "more than %d values, aliases followed", maxNodes)
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

// place returns where in the file an error within a text is.
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

// exprError tells an expression's problems by their places in the file.
func (r *reader) exprError(n *node, path string, err error) {
	for _, e := range expr.Errors(err) {
		line, column := r.place(n, e)
		r.fail(line, column, path, "%s", e.Message)
	}
}

// alias returns the value that an alias stands for, with the place of the anchor.
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
			r.fail(key.Line, key.Column, path, "a key must be text")
			continue
		}
		if before := n.entry(key.Value); before != nil {
			r.fail(key.Line, key.Column, expr.Join(path, key.Value), "the key stands twice: already in line %d",
				before.line)
			continue
		}
		n.keys = append(n.keys, entry{
			name: key.Value, line: key.Line, column: key.Column,
			value: r.node(value, expr.Join(path, key.Value), depth+1),
		})
	}
	for _, m := range merged { // what stands in the map itself goes before what is merged
		for _, e := range m.keys {
			if n.entry(e.name) == nil {
				n.keys = append(n.keys, e)
			}
		}
	}
}

// merged returns the maps after a << key.
func (r *reader) merged(y *yaml.Node, path string, depth int) []*node {
	m := r.node(y, path, depth+1)
	maps := []*node{m}
	if m.shape == list {
		maps = m.items
	}
	for _, one := range maps {
		if one.shape != mapping {
			r.fail(y.Line, y.Column, path, "<< merges a map, and this is %s", one.describe())
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
	case "!!str", "!!timestamp": // a date is text, as JSON has it
		return y.Value
	case "!!bool", "!!int", "!!float":
		if err := y.Decode(&value); err != nil {
			r.fail(y.Line, y.Column, path, "%q is no %s", y.Value, strings.TrimPrefix(tag, "!!"))
			return nil
		}
	default:
		r.fail(y.Line, y.Column, path,
			"the tag %s is not understood: only plain text, numbers, true, false and null are", tag)
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
			r.fail(y.Line, y.Column, path, "%s is no number that JSON has", y.Value)
			return nil
		}
	}
	return value
}
