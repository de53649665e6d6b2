// Package report formats the report of an exercise as text, as JUnit for CI, and as an HTML page with a timeline.
package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// Text writes the report as plain text, in lines of at most width columns. A width of 0 means unlimited.
func Text(w io.Writer, r exercise.Report, width int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d of 100 points\n", Verdict(r), r.Score)
	fmt.Fprintf(&b, "%s (%s, seed %d), %s of %s%s\n\n", r.Title, r.Scenario, r.Seed, human(r.Took), human(r.TimeBox),
		late(r))
	for _, g := range r.Gates {
		fmt.Fprintf(&b, "  %-5s %s%s\n", mark(g.OK), gateName(r, g), reason(g))
	}
	b.WriteString("\n")
	for _, p := range r.Points {
		fmt.Fprintf(&b, "  %3d of %3d  %s%s\n", p.Got, p.Of, p.Name, because(p.Why))
	}
	for _, c := range failed(r) {
		fmt.Fprintf(&b, "\n  FAIL  %s\n        %s\n", c.Name,
			strings.Join(nonEmpty(c.Message, evidence(c)), "\n        "))
	}
	if r.Applied != nil {
		fmt.Fprintf(&b, "\nThe Terraform module was applied first: %s\n",
			cmp.Or(strings.Join(r.Applied.Changes, ", "), "no changes"))
	}
	if len(r.Collateral) > 0 {
		b.WriteString("\nChanges that are not part of a fix:\n")
	}
	for _, d := range r.Collateral {
		fmt.Fprintf(&b, "  %s\n", d)
	}
	if r.Omitted > 0 {
		fmt.Fprintf(&b, "  and %d more\n", r.Omitted)
	}
	if len(r.NotCompared) > 0 {
		fmt.Fprintf(&b, "\nCould not be compared: %s\n", strings.Join(r.NotCompared, "; "))
	}
	if r.Recorded != nil {
		fmt.Fprintf(&b, "\nRecorded: %s\n", recorded(*r.Recorded))
	}
	for _, f := range r.Diagnosed {
		if !f.Right {
			fmt.Fprintf(&b, "\n  diagnosis, %s: %q, expected %q", f.Field, f.Got, f.Want)
		}
	}
	_, err := fmt.Fprintln(w, printer.Wrap(printer.Escape(strings.TrimRight(b.String(), "\n")), width))
	return err
}

// Verdict returns the result as one word.
func Verdict(r exercise.Report) string {
	if r.Passed {
		return "PASSED"
	}
	return "FAILED"
}

func mark(ok bool) string {
	if ok {
		return "ok"
	}
	return "FAIL"
}

// gateName returns the description of a gate.
func gateName(r exercise.Report, gate exercise.Gate) string {
	switch {
	case gate.Name == "fixed" && len(r.Fixed) == 0 && (gate.OK || strings.HasPrefix(gate.Why, "nothing was broken")):
		return "the candidate recognized that nothing is broken"
	case gate.Name == "fixed":
		return "the workload is healthy, and stays healthy"
	case gate.Name == "unchanged":
		return "no workaround"
	case gate.Name == "collateral":
		return "nothing else was changed"
	}
	return gate.Name
}

// reason returns why a gate failed, without the words that its description already contains.
func reason(gate exercise.Gate) string {
	why := gate.Why
	for _, prefix := range []string{"not fixed: ", "workaround: ", "also changed: "} {
		why = strings.TrimPrefix(why, prefix)
	}
	return because(why)
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

func late(r exercise.Report) string {
	if r.Late {
		return ", late"
	}
	return ""
}

// recorded summarizes a transcript.
func recorded(t exercise.Recorded) string {
	when := func(what string, after time.Duration) string {
		if after == 0 {
			return "no " + what
		}
		return what + " after " + human(after)
	}
	text := fmt.Sprintf("%s (%s, %d refused); %s, %s", count.Of(t.Requests, "request"), count.Of(t.Changes, "change"),
		t.Refused, when("request about the root cause", t.Look), when("change", t.Change))
	if t.Later > 0 {
		text += "; " + count.Of(t.Later, "request") + " after grading not counted"
	}
	return text
}

// failed returns the failed checks.
func failed(r exercise.Report) []check.Result {
	var all []check.Result
	for _, results := range [][]check.Result{r.Fixed, r.Unchanged} {
		for _, c := range results {
			if !c.OK {
				all = append(all, c)
			}
		}
	}
	return all
}

func evidence(c check.Result) string {
	if c.Saw == "" {
		return ""
	}
	return "seen: " + c.Saw
}

func nonEmpty(words ...string) []string {
	var kept []string
	for _, w := range words {
		if w != "" {
			kept = append(kept, w)
		}
	}
	return kept
}

func human(d time.Duration) string {
	if d < time.Second {
		return "0s"
	}
	return duration.HumanDuration(d)
}
