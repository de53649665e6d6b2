package expect

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/experiment"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/junit"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// The report formats that are supported in addition to the usual ones.
const (
	formatJUnit      = "junit"
	formatPrometheus = "prometheus"
)

// Formats returns the report formats that are supported in addition to the usual ones.
func Formats() []string { return []string{formatJUnit, formatPrometheus} }

// Print writes a result in any format.
func Print(out io.Writer, r experiment.Result, format printer.Format) error {
	switch {
	case format.Output == formatJUnit:
		return JUnit(out, r)
	case format.Output == formatPrometheus:
		return Prometheus(out, r)
	case !format.IsTable():
		var names []string
		for _, id := range r.Runs {
			names = append(names, "run/"+id)
		}
		return format.Object(out, r, names...)
	}
	table := &printer.Table{
		Header: []string{"EXPECTED", "RESULT", "AFTER", "LIMIT", "BY", "SEEN"}, NoHeader: format.NoHeader,
	}
	for _, v := range r.Verdicts {
		name := v.Name
		if v.Not {
			name = "not " + name
		}
		happened := printer.None
		if v.After != 0 {
			happened = Seconds(v.After)
		}
		table.Add(name, Word(v), happened, Seconds(v.Limit), v.By, oneLine(v.Text))
	}
	if len(r.Verdicts)+len(r.Load) == 0 { // for example, if the steady state does not hold
		return nil
	}
	if width := printer.Width(out); width > 0 && !format.IsWide() {
		table.Fit(width, "SEEN", "BY")
	}
	if err := table.Write(out); err != nil || len(r.Load) == 0 {
		return err
	}
	fmt.Fprintln(out)
	return loads(r, format).Write(out)
}

// loads returns the table of requests in each phase.
func loads(r experiment.Result, format printer.Format) *printer.Table {
	table := &printer.Table{
		Header: []string{"LOAD", "PHASE", "REQUESTS", "OK", "P50", "P95", "P99"}, NoHeader: format.NoHeader,
	}
	for _, l := range r.Load {
		for _, p := range l.Phases {
			table.Add(append([]string{l.Name}, PhaseRow(p)...)...)
		}
	}
	return table
}

// PhaseRow returns the figures of a phase for display.
func PhaseRow(p experiment.LoadPhase) []string {
	return []string{
		string(p.Phase), strconv.Itoa(p.Requests), fmt.Sprintf("%.1f%%", 100*p.OK), fmt.Sprintf("%.2fs", p.P50),
		fmt.Sprintf("%.2fs", p.P95), fmt.Sprintf("%.2fs", p.P99),
	}
}

// Word returns the state of a verdict for display. Failures are in upper case.
func Word(v experiment.Verdict) string {
	if v.OK {
		return string(v.State)
	}
	return strings.ToUpper(string(v.State))
}

// Seconds formats a number of seconds in the usual form: 2.1s, 5m0s.
func Seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", max(s, 0))
	}
	return d.Round(time.Second).String()
}

// Summary returns a one-sentence summary of the result.
func Summary(r experiment.Result) string {
	times := ""
	for _, v := range r.Verdicts {
		if v.After > 0 && !v.Not {
			times += fmt.Sprintf("  %s: %s", v.Name, Seconds(v.After))
		}
	}
	left := ""
	if len(r.LeftBehind) > 0 {
		left = "  left behind: " + strings.Join(r.LeftBehind, "; ")
	}
	if len(r.Simulated) > 0 {
		left = "  simulated: " + strings.Join(r.Simulated, ", ") + left
	}
	switch {
	case r.Error != "":
		return "FAILED: " + r.Error + left
	case r.Failed() > 0:
		return fmt.Sprintf("FAILED: %d of %s not met.%s%s", r.Failed(), count.Of(len(r.Verdicts), "expectation"),
			times, left)
	case !r.Passed:
		return "FAILED." + left
	}
	return fmt.Sprintf("passed: %s met.%s%s", count.Of(len(r.Verdicts), "expectation"), times, left)
}

// JUnit writes a test case for each expectation, with its duration, and the timeline as output.
func JUnit(out io.Writer, r experiment.Result) error {
	suite := junit.Suite{Name: r.Name, Time: r.Started}
	for _, v := range r.Verdicts {
		one := junit.Case{
			Name: v.Name, Class: "experiment." + r.Name, Took: time.Duration(max(v.After, 0) * float64(time.Second)),
		}
		if v.Not {
			one.Name = "not " + v.Name
		}
		seen := strings.TrimSpace(v.Text + "\n" + v.By)
		switch {
		case v.OK:
			one.Output = seen
		case v.State == experiment.StateUnknown:
			one.Error = &junit.Message{Message: v.Text, Type: string(v.State), Text: seen}
		default:
			one.Failure = &junit.Message{Message: failure(v), Type: string(v.State), Text: seen}
		}
		suite.Cases = append(suite.Cases, one)
	}
	whole := junit.Case{Name: "everything is restored", Class: "experiment." + r.Name, Output: timeline(r)}
	if r.InPlace {
		whole.Name = "the fault is in place"
	}
	if r.Error != "" {
		whole.Error = &junit.Message{Message: r.Error, Type: "error"}
	}
	if len(r.LeftBehind) > 0 {
		whole.Failure = &junit.Message{Message: strings.Join(r.LeftBehind, "; "), Type: "left behind"}
	}
	suite.Cases = append(suite.Cases, whole)
	return junit.Report{Name: "kubectl gpu-fault", Suites: []junit.Suite{suite}}.Write(out)
}

func failure(v experiment.Verdict) string {
	switch v.State {
	case experiment.StateLate:
		return fmt.Sprintf("after %s; the limit is %s", Seconds(v.After), Seconds(v.Limit))
	case experiment.StateHappened:
		return fmt.Sprintf("happened after %s, but must not happen within %s", Seconds(v.After), Seconds(v.Limit))
	}
	text := "did not happen within " + Seconds(v.Limit)
	if v.Text != "" {
		text += ": " + oneLine(v.Text)
	}
	return text
}

func timeline(r experiment.Result) string {
	var lines []string
	for _, e := range r.Timeline {
		lines = append(lines, Line(e))
	}
	return strings.Join(lines, "\n")
}
