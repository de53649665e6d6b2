package report

import (
	"io"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/junit"
)

// JUnit writes a suite for each report, with a case for each check, one for unrelated changes, and one for the
// diagnosis.
func JUnit(w io.Writer, reports ...exercise.Report) error {
	all := junit.Report{Name: "kubectl gpu-fault scenario"}
	for _, r := range reports {
		all.Suites = append(all.Suites, suiteOf(r))
	}
	return all.Write(w)
}

func suiteOf(r exercise.Report) junit.Suite {
	suite := junit.Suite{Name: r.Scenario, Time: r.At}
	add := func(class string, results []check.Result) {
		for _, c := range results {
			one := junit.Case{Name: c.Name, Class: "scenario." + class, Took: c.Took}
			if !c.OK {
				one.Failure = &junit.Message{Message: c.Message, Type: class, Text: evidence(c)}
			}
			suite.Cases = append(suite.Cases, one)
		}
	}
	add("fixed", r.Fixed)
	add("unchanged", r.Unchanged)
	suite.Cases = append(suite.Cases, collateralCase(r), diagnosisCase(r))
	return suite
}

func collateralCase(r exercise.Report) junit.Case {
	one := junit.Case{Name: "nothing else was changed", Class: "scenario.collateral"}
	var lines []string
	for _, d := range r.Collateral {
		lines = append(lines, d.String())
	}
	if len(lines) > 0 {
		one.Failure = &junit.Message{Message: lines[0], Type: "collateral", Text: strings.Join(lines, "\n")}
	}
	return one
}

// diagnosisCase returns the case for the diagnosis. It never fails: a wrong diagnosis costs points, but a correct fix
// passes.
func diagnosisCase(r exercise.Report) junit.Case {
	one := junit.Case{Name: "diagnosis", Class: "scenario.diagnosis"}
	if r.Diagnosis == nil {
		one.Skipped = &junit.Message{Message: "none was submitted"}
		return one
	}
	var lines []string
	for _, f := range r.Diagnosed {
		lines = append(lines, mark(f.Right)+" "+f.Field+": "+f.Got)
	}
	one.Output = strings.Join(lines, "\n")
	return one
}
