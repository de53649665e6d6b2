// Package junit writes reports in the JUnit XML format, following the schema of Jenkins' xUnit plugin.
package junit

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Report contains the suites of one run of the tool.
type Report struct {
	Name   string
	Suites []Suite
}

// Suite is a group of cases.
type Suite struct {
	Name  string
	Time  time.Time
	Cases []Case
}

// Case is a test case. It passed if Failure, Error and Skipped are nil.
type Case struct {
	Name, Class string
	Took        time.Duration
	Failure     *Message
	Error       *Message // the case could not be run and counts as failed
	Skipped     *Message
	Output      string
}

// Message describes why a case failed or was skipped.
type Message struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

type suites struct {
	XMLName  xml.Name `xml:"testsuites"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Skipped  int      `xml:"skipped,attr"`
	Suites   []suite  `xml:"testsuite"`
}

type suite struct {
	Name      string     `xml:"name,attr"`
	Timestamp string     `xml:"timestamp,attr"`
	Tests     int        `xml:"tests,attr"`
	Failures  int        `xml:"failures,attr"`
	Errors    int        `xml:"errors,attr"`
	Skipped   int        `xml:"skipped,attr"`
	Cases     []testcase `xml:"testcase"`
}

type testcase struct {
	Name    string   `xml:"name,attr"`
	Class   string   `xml:"classname,attr"`
	Time    string   `xml:"time,attr"` // seconds
	Failure *Message `xml:"failure,omitempty"`
	Error   *Message `xml:"error,omitempty"`
	Skipped *Message `xml:"skipped,omitempty"`
	Output  string   `xml:"system-out,omitempty"`
}

// Write writes the report. It escapes control characters in all strings, and replaces line breaks in names and messages
// with spaces.
func (r Report) Write(w io.Writer) error {
	all := suites{Name: printer.Clean(r.Name)}
	for _, s := range r.Suites {
		one := suite{Name: printer.Clean(s.Name), Timestamp: s.Time.UTC().Format("2006-01-02T15:04:05")}
		for _, c := range s.Cases {
			one.Tests++
			if c.Failure != nil {
				one.Failures++
			}
			if c.Error != nil {
				one.Errors++
			}
			if c.Skipped != nil {
				one.Skipped++
			}
			one.Cases = append(one.Cases, testcase{
				printer.Clean(c.Name), printer.Clean(c.Class), seconds(c.Took), clean(c.Failure), clean(c.Error),
				clean(c.Skipped), printer.Escape(c.Output),
			})
		}
		all.Tests, all.Failures = all.Tests+one.Tests, all.Failures+one.Failures
		all.Errors, all.Skipped = all.Errors+one.Errors, all.Skipped+one.Skipped
		all.Suites = append(all.Suites, one)
	}
	raw, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("print as junit: %w", err)
	}
	raw = bytes.ReplaceAll(raw, []byte("&#xA;"), []byte("\n")) // equivalent in text; attributes have no line breaks
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, raw)
	return err
}

func clean(m *Message) *Message {
	if m == nil {
		return nil
	}
	return &Message{Message: printer.Clean(m.Message), Type: printer.Clean(m.Type), Text: printer.Escape(m.Text)}
}

func seconds(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	return fmt.Sprintf("%.3f", d.Seconds())
}
