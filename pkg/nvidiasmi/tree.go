package nvidiasmi

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits for the input. For a node with 16 GPUs that are divided into 7 partitions each, nvidia-smi prints about 1 MiB,
// with about 20000 elements.
const (
	// MaxSize is the maximum size of an output that [Parse] reads, in bytes.
	MaxSize     = 16 << 20
	maxDepth    = 32
	maxElements = 400_000
	maxText     = 4 << 10 // length of one value, in bytes; longer values are truncated
)

// element is a node in the XML. The locations of values differ between old and new schemas, so values are looked up by
// several paths.
type element struct {
	name, id, text string
	children       []*element
}

// read builds a tree from the first element of a document. On an error, it also returns the part that could be read:
// truncated output still describes the GPUs before the end.
func read(raw []byte) (*element, error) {
	d := xml.NewDecoder(bytes.NewReader(raw))
	d.Strict = true
	// The output is ASCII or UTF-8, regardless of its declaration.
	d.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	var stack []*element
	var root *element
	for count := 0; ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && root == nil {
			return nil, errors.New("no XML found")
		}
		if err != nil {
			return root, fmt.Errorf("the XML is invalid or truncated: %w", err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			if count++; count > maxElements || len(stack) >= maxDepth {
				return root, fmt.Errorf("the XML contains more than %d elements, or more than %d levels",
					maxElements, maxDepth)
			}
			e := &element{name: t.Name.Local}
			for _, a := range t.Attr {
				if a.Name.Local == "id" {
					e.id = a.Value
				}
			}
			if len(stack) > 0 {
				parent := stack[len(stack)-1]
				parent.children = append(parent.children, e)
			} else {
				root = e
			}
			stack = append(stack, e)
		case xml.EndElement:
			if stack = stack[:len(stack)-1]; len(stack) == 0 {
				return root, nil
			}
		case xml.CharData:
			if len(stack) > 0 {
				e := stack[len(stack)-1]
				if text := bytes.TrimSpace(t); len(e.text)+len(text) <= maxText {
					e.text += string(text)
				}
			}
		}
	}
}

// at follows a path of names separated by slashes. It returns nil if an element does not exist.
func (e *element) at(path string) *element {
	for name := range strings.SplitSeq(path, "/") {
		if e = e.child(name); e == nil {
			return nil
		}
	}
	return e
}

func (e *element) child(name string) *element {
	if e == nil {
		return nil
	}
	for _, c := range e.children {
		if c.name == name {
			return c
		}
	}
	return nil
}

// all returns the children with the given name.
func (e *element) all(name string) []*element {
	var found []*element
	if e != nil {
		for _, c := range e.children {
			if c.name == name {
				found = append(found, c)
			}
		}
	}
	return found
}

// texts calls do for each value below the element.
func (e *element) texts(do func(string)) {
	for _, c := range e.children {
		if len(c.children) == 0 && c.text != "" {
			do(c.text)
		}
		c.texts(do)
	}
}
