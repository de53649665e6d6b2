package exercise

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

func results(oks ...bool) (all []check.Result) {
	for _, ok := range oks {
		all = append(all, check.Result{Name: "it runs", OK: ok, Saw: "0 of 2 pods"})
	}
	return all
}

func scores(oks ...bool) (all []scenario.FieldScore) {
	for i, ok := range oks {
		all = append(all,
			scenario.FieldScore{Field: []string{"component", "object", "field", "mechanism"}[i], Right: ok})
	}
	return all
}

var said4 = &scenario.Diagnosis{Component: "workload"}

// The points of all the ways to do well and badly.
func TestPoints(t *testing.T) {
	t.Parallel()
	damage := []baseline.Difference{
		{Ref: scenario.Ref{Kind: "Service", Namespace: "a", Name: "b"}, Kind: baseline.Deleted},
	}
	for name, test := range map[string]struct {
		report  Report
		weights scenario.Weights
		passed  bool
		score   int
		why     string
	}{
		"all": {
			Report{Fixed: results(true), Diagnosis: said4, Diagnosed: scores(true, true, true, true)},
			scenario.Weights{}, true, 100, "",
		},
		"own weights": {
			Report{Fixed: results(true)}, scenario.Weights{Fixed: 90, Diagnosis: 10}, true, 90, "not submitted",
		},
		"half of the diagnosis": {
			Report{Fixed: results(true), Diagnosis: said4, Diagnosed: scores(true, false, true, false)},
			scenario.Weights{}, true, 87, "incorrect: object, mechanism",
		},
		"nothing done": {
			Report{Fixed: results(false)}, scenario.Weights{}, false, 0, "not fixed: it runs",
		},
		"nothing done, but explained": {
			Report{Fixed: results(false), Diagnosis: said4, Diagnosed: scores(true, true, true, true)},
			scenario.Weights{}, false, 25, "",
		},
		"half mended": {
			Report{Fixed: results(true, false)}, scenario.Weights{}, false, 25, "not fixed",
		},
		"a workaround": {
			Report{Fixed: results(true), Unchanged: results(false)}, scenario.Weights{}, false, 0,
			"workaround: it runs",
		},
		"damage": {
			Report{Fixed: results(true), Collateral: damage}, scenario.Weights{}, false, 65,
			"also changed: Service a/b deleted",
		},
		"three quarters of the time": {
			Report{Fixed: results(true), Took: 30 * time.Minute}, scenario.Weights{}, true, 70, "took 30m0s",
		},
		"all of the time": {
			Report{Fixed: results(true), Took: 40 * time.Minute}, scenario.Weights{}, true, 65,
			"whole time box of 40m0s",
		},
		"hints beyond their weight": {
			Report{Fixed: results(true), Hints: []Taken{{Cost: 5}, {Cost: 15}}}, scenario.Weights{}, true, 55,
			"2 hints taken",
		},
		"hints and nothing done": {
			Report{Fixed: results(false), Hints: []Taken{{Cost: 20}}}, scenario.Weights{}, false, 0, "",
		},
		"nothing to mend, and said so": {
			Report{Diagnosis: &scenario.Diagnosis{Component: "none"}, Diagnosed: scores(true, true, true, true)},
			scenario.Weights{}, true, 100, "",
		},
		"nothing to mend, and not said so": {Report{}, scenario.Weights{}, false, 0, "did not submit that diagnosis"},
		"nothing to mend, and something found": {
			Report{Diagnosis: said4, Diagnosed: scores(false, true, true, true)}, scenario.Weights{}, false, 18,
			"the candidate diagnosed workload",
		},
		"nothing to mend, and something done": {
			Report{
				Diagnosis: &scenario.Diagnosis{Component: "none"}, Diagnosed: scores(true, true, true, true),
				Collateral: damage,
			},
			scenario.Weights{}, false, 90, "also changed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.report.TimeBox = 40 * time.Minute
			test.report.judge(test.weights, "")
			if test.report.Passed != test.passed || test.report.Score != test.score {
				t.Errorf("passed %t, score %d: %+v", test.report.Passed, test.report.Score, test.report.Points)
			}
			if reasons := strings.Join(test.report.Reasons, "; "); !strings.Contains(reasons, test.why) ||
				test.score == 100 && reasons != "" {
				t.Errorf("reasons: %s", reasons)
			}
		})
	}
}
