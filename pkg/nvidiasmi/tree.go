package nvidiasmi

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The bounds of an input. A node with 16 GPUs in 7 partitions each prints about 1 MiB, with some 20000 elements.
const (
	// MaxSize is the size in bytes of the longest output that [Parse] reads.
	MaxSize     = 16 << 20
	maxDepth    = 32
	maxElements = 400_000
	maxText     = 4 << 10 // of one value, in bytes; longer is cut
)

// element is a node of the XML. Old and new schemas differ in what is where, so that values are asked for by paths.
type element struct {
	name, id, text string
	children       []*element
}

// read makes a tree of the first element of a document. What could be read comes back also with an error: an output
// that ends in the middle still tells of the GPUs before.
func read(raw []byte) (*element, error) {
	d := xml.NewDecoder(bytes.NewReader(raw))
	d.Strict = true
	// The output is ASCII or UTF-8, whatever its declaration says.
	d.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	var stack []*element
	var root *element
	for count := 0; ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && root == nil {
			return nil, errors.New("it contains no XML")
		}
		if err != nil {
			return root, fmt.Errorf("the XML is invalid or truncated: %w", err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			if count++; count > maxElements || len(stack) >= maxDepth {
				return root, fmt.Errorf("the XML has more than %d elements, or more than %d levels",
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

// at follows a path of names separated by slashes; nil when something of it is not there.
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

// all returns the children of a name.
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
