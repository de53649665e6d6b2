package exercise

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// Names of gates and points.
const (
	nameFixed      = "fixed"
	nameUnchanged  = "unchanged"
	nameCollateral = "collateral"
	nameDiagnosis  = "diagnosis"
	nameTime       = "time"
	nameHints      = "hints"
)

// judge computes gates, points and reasons from the results.
//
// An attempt passes if all gates hold. Points for fixed are proportional to the number of checks that hold, but a
// workaround gets none. Points for collateral, time and hints require a fix, because an attempt that does nothing
// causes no damage either. The diagnosis always counts.
func (r *Report) judge(weights scenario.Weights, spoiled string) {
	if weights == (scenario.Weights{}) {
		weights = scenario.DefaultWeights
	}
	r.Gates = []Gate{r.fixedGate(spoiled), r.unchangedGate(), r.collateralGate()}
	r.Passed = true
	for _, gate := range r.Gates {
		if !gate.OK {
			r.Passed = false
			r.Reasons = append(r.Reasons, gate.Why)
		}
	}
	mended := r.Gates[0].OK && r.Gates[1].OK
	r.Points = []Points{
		r.fixedPoints(weights.Fixed, r.Gates[0], r.Gates[1]),
		r.diagnosisPoints(weights.Diagnosis),
		earned(mended, r.collateralPoints(weights.Collateral)),
		earned(mended, r.timePoints(weights.Time)),
		earned(mended, r.hintPoints(weights.Hints)),
	}
	total := 0
	for _, points := range r.Points {
		total += points.Got
		// Already reported by the gates.
		told := points.Name == nameFixed || points.Name == nameCollateral || points.Why == unearned
		if points.Why != "" && !told {
			r.Reasons = append(r.Reasons, points.Name+": "+points.Why)
		}
	}
	r.Score = min(max(total, 0), 100)
}

// unearned is the reason why no points are given if the fault is not fixed.
const unearned = "counts only if the fault is fixed"

func earned(mended bool, points Points) Points {
	if mended || points.Got < 0 {
		return points
	}
	points.Got, points.Why = 0, unearned
	return points
}

// fixedGate returns the gate for the fix. If nothing was broken, the gate requires the diagnosis that nothing was
// broken.
func (r *Report) fixedGate(spoiled string) Gate {
	gate := Gate{Name: nameFixed}
	switch {
	case spoiled != "":
		gate.Why = spoiled
	case len(r.Fixed) > 0:
		gate.OK, gate.Why = check.OK(r.Fixed), "not fixed: "+failures(r.Fixed)
	case r.Diagnosis == nil:
		gate.Why = "nothing was broken, but the candidate did not submit that diagnosis"
	default:
		gate.OK, gate.Why = r.component(),
			fmt.Sprintf("nothing was broken, but the candidate diagnosed %s", r.Diagnosis.Component)
	}
	if gate.OK {
		gate.Why = ""
	}
	return gate
}

// component reports whether the component of the diagnosis is correct.
func (r *Report) component() bool {
	for _, score := range r.Diagnosed {
		if score.Field == "component" {
			return score.Right
		}
	}
	return false
}

func (r *Report) unchangedGate() Gate {
	if check.OK(r.Unchanged) {
		return Gate{Name: nameUnchanged, OK: true}
	}
	return Gate{Name: nameUnchanged, Why: "workaround: " + failures(r.Unchanged)}
}

func (r *Report) collateralGate() Gate {
	if len(r.Collateral) == 0 {
		return Gate{Name: nameCollateral, OK: true}
	}
	var what []string
	for i, difference := range r.Collateral {
		if i == 3 && len(r.Collateral) > 4 {
			what = append(what, fmt.Sprintf("and %d more", len(r.Collateral)+r.Omitted-i))
			break
		}
		what = append(what, inWords(difference))
	}
	return Gate{Name: nameCollateral, Why: "also changed: " + strings.Join(what, ", ")}
}

func failures(results []check.Result) string {
	var failed []string
	for _, result := range results {
		if !result.OK {
			failed = append(failed, said(result))
		}
	}
	return strings.Join(failed, "; ")
}

func (r *Report) fixedPoints(weight int, fixed, unchanged Gate) Points {
	points := Points{Name: nameFixed, Of: weight}
	held := 0
	for _, result := range r.Fixed {
		if result.OK {
			held++
		}
	}
	switch {
	case !unchanged.OK:
		points.Why = unchanged.Why
	case fixed.OK:
		points.Got = weight
	case len(r.Fixed) > 0 && held < len(r.Fixed):
		points.Got, points.Why = weight*held/len(r.Fixed),
			fmt.Sprintf("correct: %d of %s", held, count.Of(len(r.Fixed), "result"))
	default:
		points.Why = fixed.Why
	}
	return points
}

func (r *Report) diagnosisPoints(weight int) Points {
	points := Points{Name: nameDiagnosis, Of: weight}
	if r.Diagnosis == nil {
		points.Why = "not submitted"
		return points
	}
	right := 0
	var wrong []string
	for _, score := range r.Diagnosed {
		if score.Right {
			right++
		} else {
			wrong = append(wrong, score.Field)
		}
	}
	if len(r.Diagnosed) > 0 {
		points.Got = weight * right / len(r.Diagnosed)
	}
	if len(wrong) > 0 {
		points.Why = "incorrect: " + strings.Join(wrong, ", ")
	}
	return points
}

func (r *Report) collateralPoints(weight int) Points {
	points := Points{Name: nameCollateral, Got: weight, Of: weight}
	if n := len(r.Collateral) + r.Omitted; n > 0 {
		points.Got, points.Why = 0, count.Of(n, "different object")+" changed"
	}
	return points
}

// timePoints returns all points if at most half of the time box was used. After that, the points decrease linearly, to
// zero at the end of the time box.
func (r *Report) timePoints(weight int) Points {
	points := Points{Name: nameTime, Got: weight, Of: weight}
	half := r.TimeBox / 2
	switch {
	case r.Took <= half:
	case r.Took >= r.TimeBox:
		points.Got, points.Why = 0,
			fmt.Sprintf("took %s, the whole time box of %s", r.Took.Round(time.Second), r.TimeBox)
	default:
		points.Got = int(float64(weight) * float64(r.TimeBox-r.Took) / float64(r.TimeBox-half))
		points.Why = fmt.Sprintf("took %s, more than half of the time box of %s", r.Took.Round(time.Second), r.TimeBox)
	}
	return points
}

func (r *Report) hintPoints(weight int) Points {
	points := Points{Name: nameHints, Got: weight, Of: weight}
	for _, hint := range r.Hints {
		points.Got -= hint.Cost
	}
	if n := len(r.Hints); n > 0 {
		points.Why = count.Of(n, "hint") + " taken"
	}
	return points
}
