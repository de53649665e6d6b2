package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
)

type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name      string      `xml:"name,attr"`
	Timestamp string      `xml:"timestamp,attr"`
	Tests     int         `xml:"tests,attr"`
	Failures  int         `xml:"failures,attr"`
	Errors    int         `xml:"errors,attr"`
	Skipped   int         `xml:"skipped,attr"`
	Cases     []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name      string        `xml:"name,attr"`
	Classname string        `xml:"classname,attr"`
	Time      string        `xml:"time,attr"`
	Failure   *junitMessage `xml:"failure,omitempty"`
	Skipped   *junitMessage `xml:"skipped,omitempty"`
	Out       string        `xml:"system-out,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// JUnit writes a test suite for each layer and a test case for each check that ran. A case fails when its check found a root at or above the
// severity, and is skipped when the check found nothing and could not see all; other findings are its output.
func JUnit(w io.Writer, r doctor.Report, checks []doctor.Check, failOn doctor.Severity) error {
	all := junitSuites{Name: "kubectl gpu-fault doctor"}
	for _, l := range r.Layers {
		suite := junitSuite{Name: string(l.Layer), Timestamp: r.Created.UTC().Format("2006-01-02T15:04:05")}
		for _, c := range checks {
			if c.Layer != l.Layer {
				continue
			}
			one := junitOf(r, c, failOn)
			suite.Tests++
			if one.Failure != nil {
				suite.Failures++
			}
			if one.Skipped != nil {
				suite.Skipped++
			}
			suite.Cases = append(suite.Cases, one)
		}
		all.Tests, all.Failures, all.Skipped = all.Tests+suite.Tests, all.Failures+suite.Failures, all.Skipped+suite.Skipped
		all.Suites = append(all.Suites, suite)
	}
	raw, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("print as junit: %w", err)
	}
	raw = bytes.ReplaceAll(raw, []byte("&#xA;"), []byte("\n")) // which means the same in text, and attributes have none
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, raw)
	return err
}

func junitOf(r doctor.Report, c doctor.Check, failOn doctor.Severity) junitCase {
	one := junitCase{Name: c.ID, Classname: "doctor." + strings.ReplaceAll(string(c.Layer), " ", "-"), Time: "0"}
	var failures, others []string
	for i, f := range r.Items {
		switch {
		case f.ID != c.ID:
		case f.Root && rank(f.Severity) <= rank(failOn):
			if one.Failure == nil {
				one.Failure = &junitMessage{Message: sentence(f.Title) + " (" + some(objects(f), someObjects) + ")", Type: string(f.Severity)}
			}
			failures = append(failures, plain(r, i))
		default:
			others = append(others, plain(r, i))
		}
	}
	if one.Failure != nil {
		one.Failure.Text = strings.Join(failures, "\n\n")
	}
	one.Out = strings.Join(others, "\n\n")
	var unknown []string
	for _, b := range Blinds(doctor.Report{Unknown: of(r.Unknown, c.ID)}) {
		text := clean(b.Why)
		if len(b.Objects) > 0 {
			text += " (" + some(b.Objects, someObjects) + ")"
		}
		unknown = append(unknown, text)
	}
	if len(unknown) > 0 && len(failures) == 0 && len(others) == 0 {
		one.Skipped = &junitMessage{Message: "could not be seen: " + strings.Join(unknown, "; ")}
	}
	return one
}

func of(all []doctor.Unknown, check string) []doctor.Unknown {
	var found []doctor.Unknown
	for _, u := range all {
		if u.Check == check {
			found = append(found, u)
		}
	}
	return found
}

// plain is a finding in plain lines, without colour and as wide as they are.
func plain(r doctor.Report, i int) string {
	p := &page{Text: Text{Wide: true}, report: r}
	if r.Items[i].Root {
		p.root(i)
	} else {
		f := r.Items[i]
		p.put("", "", fmt.Sprintf("%s: %s (%s), because of %s", f.ID, sentence(f.Title), some(objects(f), 0), strings.Join(f.CausedBy, ", ")))
		p.evidence(f)
	}
	return strings.TrimSpace(p.b.String())
}
