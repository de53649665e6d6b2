package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"
)

// A terminal breaks long lines, and a line that is printed in parts is one.
func TestLayout(t *testing.T) {
	t.Parallel()
	moments, err := parse("Script started\n\x1b[1m# head\x1b[0m\r\nab", "1.0 20\n0.5 2\n", 2)
	if err == nil {
		t.Errorf("a timing that is too long was taken: %v", moments)
	}
	moments, err = parse("Script started\n\x1b[1m# head\x1b[0m\r\nabcd\r\nScript done", "1.0 16\n0.5 4\n", 2)
	if err != nil {
		t.Fatal(err)
	}
	rows := screen{rows: 5, columns: 6}.layout(append(moments, moment{2 * time.Second, "efgh\n"}))
	want := []row{{0, "# head", true}, {time.Second, "abcdef", false}, {2 * time.Second, "gh", false}}
	if len(rows) != len(want) {
		t.Fatalf("%v", rows)
	}
	for i, r := range rows {
		if r != want[i] {
			t.Errorf("row %d: %v, wanted %v", i, r, want[i])
		}
	}
}

// What was printed means nothing in the picture, and every file is XML.
func TestDrawIsXML(t *testing.T) {
	t.Parallel()
	text := screen{rows: 2, columns: 80, title: "a <b>"}.draw(
		[]moment{{0, "$ x <y> & \"z\"\n1\n2\n3\n"}, {time.Second, "4"}},
	)
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(text, "%!") || !strings.Contains(text, "$ x &lt;y&gt; &amp;") {
		t.Errorf("%s", text)
	}
}
