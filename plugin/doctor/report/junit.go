package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/junit"
)

// JUnit writes a test suite for each layer and a test case for each check that ran. A case fails if its check found a
// root cause at or above the severity of the gate. If the check found nothing but could not check everything, the case
// is skipped. With a strict gate, such a case is an error instead, unless the only reason is that reading the nodes was
// not requested. Other findings become the output of the case.
func JUnit(w io.Writer, r doctor.Report, checks []engine.Check, gate Gate) error {
	all := junit.Report{Name: "kubectl gpu-fault doctor"}
	for _, l := range r.Layers {
		suite := junit.Suite{Name: string(l.Layer), Time: r.Created}
		for _, c := range checks {
			if c.Layer == l.Layer {
				suite.Cases = append(suite.Cases, junitOf(r, c, gate))
			}
		}
		all.Suites = append(all.Suites, suite)
	}
	return all.Write(w)
}

func junitOf(r doctor.Report, c engine.Check, gate Gate) junit.Case {
	one := junit.Case{Name: c.ID, Class: "doctor." + strings.ReplaceAll(string(c.Layer), " ", "-")}
	var failures, others []string
	for i, f := range r.Items {
		switch {
		case f.ID != c.ID:
		case f.Root && rank(f.Severity) <= rank(gate.FailOn):
			if one.Failure == nil {
				one.Failure = &junit.Message{
					Message: sentence(f.Title) + " (" + some(objects(f), someObjects) + ")", Type: string(f.Severity),
				}
			}
			failures = append(failures, plain(r, i))
		default:
			others = append(others, plain(r, i))
		}
	}
	if one.Failure != nil {
		one.Failure.Text = strings.Join(failures, "\n\n")
	}
	one.Output = strings.Join(others, "\n\n")
	unknown := of(r.Unknown, c.ID)
	notChecked := NotChecked(doctor.Report{Unknown: unknown})
	switch {
	case len(failures) > 0:
	case gate.Strict && len(notChecked) > 0:
		one.Error = &junit.Message{Message: "not checked: " + reasons(notChecked), Type: "not checked"}
	case len(unknown) > 0 && len(others) == 0:
		one.Skipped = &junit.Message{Message: "could not check: " + reasons(unknown)}
	}
	return one
}

// reasons returns the reasons why checks could not reach a conclusion, with the objects concerned.
func reasons(unknown []engine.Unknown) string {
	var all []string
	for _, b := range Blinds(doctor.Report{Unknown: unknown}) {
		all = append(all, reason(b))
	}
	return strings.Join(all, "; ")
}

func reason(b Blind) string {
	text := clean(b.Why)
	if len(b.Objects) > 0 {
		text += " (" + some(b.Objects, someObjects) + ")"
	}
	return text
}

func of(all []engine.Unknown, check string) []engine.Unknown {
	var found []engine.Unknown
	for _, u := range all {
		if u.Check == check {
			found = append(found, u)
		}
	}
	return found
}

// plain returns a finding as lines without color or wrapping.
func plain(r doctor.Report, i int) string {
	p := &page{Text: Text{Wide: true}, report: r}
	if r.Items[i].Root {
		p.root(i)
	} else {
		f := r.Items[i]
		p.put("", "", fmt.Sprintf("%s: %s (%s), caused by %s", f.ID, sentence(f.Title), some(objects(f), 0),
			strings.Join(f.CausedBy, ", ")))
		p.evidence(f)
	}
	return strings.TrimSpace(p.b.String())
}
