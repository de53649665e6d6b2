package exercise

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// timeline returns the events of an exercise, in order.
func timeline(e *Exercise, now time.Time) []Moment {
	all := []Moment{
		{e.Created, "started" + by(e.By)}, {e.HealthyAt, "the lab is healthy"},
		{e.InjectedAt, "the fault is in place"},
		{e.BrokenAt, "the symptom is verified"}, {e.Started, "handed to the candidate"},
	}
	all = append(all, Moment{e.ModuleAt, "Terraform module submitted"}, Moment{e.Submitted, "diagnosis submitted"},
		Moment{e.Revealed, "the answer was revealed"})
	for i, hint := range e.Hints {
		all = append(all, Moment{hint.At, fmt.Sprintf("hint %d (cost: %d)", i+1, hint.Cost)})
	}
	for _, report := range e.Grades {
		all = append(all, Moment{report.At, fmt.Sprintf("graded: %s, score %d", verdict(report.Passed), report.Score)})
	}
	all = append(all, Moment{now, "graded"})
	if now.After(e.Until) {
		all = append(all, Moment{e.Until, "the time box ended"})
	}
	return inOrder(all)
}

// inOrder returns the moments that occurred, the earliest first.
func inOrder(all []Moment) []Moment {
	all = slices.DeleteFunc(all, func(m Moment) bool { return m.At.IsZero() })
	sorting.StableFunc(all, func(a, b Moment) int { return a.At.Compare(b.At) })
	return all
}

func verdict(passed bool) string {
	if passed {
		return "passed"
	}
	return "failed"
}

func by(who string) string {
	if who == "" {
		return ""
	}
	return " by " + who
}

// inWords describes a difference.
func inWords(difference baseline.Difference) string {
	if difference.Note != "" {
		return difference.String()
	}
	what := difference.Ref.Kind + " " + difference.Ref.Name
	if difference.Ref.Namespace != "" {
		what = difference.Ref.Kind + " " + difference.Ref.Namespace + "/" + difference.Ref.Name
	}
	text := what + " " + string(difference.Kind)
	if len(difference.Fields) > 0 {
		text += " (" + strings.Join(difference.Fields[:min(3, len(difference.Fields))], ", ")
		if n := len(difference.Fields) - 3; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		text += ")"
	}
	return text
}
