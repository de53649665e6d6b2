package junit

import (
	"bytes"
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// FuzzWrite: whatever text a caller passes, the report is XML that holds no character that speaks to a terminal, and
// the text begins no line but in the bodies of messages and in the output.
func FuzzWrite(f *testing.F) {
	f.Add("a\x1b[2Jb\u009bc\u202ed\re\xff\ufffe", "two\nlines\t]]>&#x1b;")
	f.Fuzz(func(t *testing.T, one, other string) {
		message := &Message{Message: one, Type: other, Text: one}
		report := Report{Name: one, Suites: []Suite{{Name: other, Cases: []Case{
			{Name: one, Class: other, Failure: message, Output: other}, {Name: other, Class: one, Error: message},
			{Name: one, Skipped: message},
		}}}}
		var out bytes.Buffer
		if err := report.Write(&out); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); !utf8.ValidString(text) ||
			strings.ContainsFunc(text, func(r rune) bool { return printer.IsDangerous(r) && r != '\n' && r != '\t' }) {
			t.Fatalf("%q", text)
		}
		attributes := 0
		for decoder := xml.NewDecoder(&out); ; {
			token, err := decoder.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if element, is := token.(xml.StartElement); is {
				for _, a := range element.Attr {
					attributes++
					if strings.ContainsFunc(a.Value, printer.IsDangerous) {
						t.Fatalf("%s=%q", a.Name.Local, a.Value)
					}
				}
			}
		}
		if attributes == 0 {
			t.Fatal("no attributes")
		}
		if message.Message != one {
			t.Fatal("Write changed the caller's report")
		}
	})
}
