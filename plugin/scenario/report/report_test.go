package report

import (
	"bytes"
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/exercise"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/recorder"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// graded returns a judgment with all that a judgment can have; the text of the candidate and of the cluster wants to
// be more than text.
func graded() exercise.Report {
	begin := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	diagnosis := scenario.Diagnosis{
		Component: "scheduler", Object: "Deployment/trainer", Field: "spec.replicas", Mechanism: "too few",
		Explanation: "I think <b>so</b>",
	}
	return exercise.Report{
		ID: "scenario-x7k2mq", Scenario: "gpu-resources", Title: "A training job never starts", Seed: 4711, By: "anna",
		At: begin.Add(14 * time.Minute), Took: 14 * time.Minute,
		TimeBox: 20 * time.Minute, Score: 41,
		Gates: []exercise.Gate{
			{Name: "fixed", OK: true}, {Name: "unchanged", Why: "1 of 2 checks does not hold"},
			{Name: "collateral", Why: "1 object"},
		},
		Points: []exercise.Points{
			{Name: "fixed", Got: 0, Of: 50, Why: "not by fair means"}, {Name: "diagnosis", Got: 12, Of: 25},
			{Name: "collateral", Got: 0, Of: 10},
			{Name: "time", Got: 6, Of: 10}, {Name: "hints", Got: -2, Of: 5, Why: "1 hint"},
		},
		Reasons: []string{"the request for GPUs is gone"},
		Fixed:   []check.Result{{Name: "the pods run", OK: true, Saw: "2", Took: time.Second}},
		Unchanged: []check.Result{
			{
				Name: "each pod still asks for a GPU", Message: "a pod without a GPU is no training",
				Saw: "nvidia.com/gpu: 0\x1b[2J</pre><script>alert(1)</script>",
			},
			{Name: "the image is the same", OK: true},
		},
		Collateral: []baseline.Difference{{
			Ref:  scenario.Ref{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "team-vega", Name: "web"},
			Kind: baseline.Changed, Fields: []string{"spec.replicas"}, Before: "2", After: "0",
		}},
		Omitted:     3,
		NotCompared: []string{"widgets.example.com: forbidden"},
		Applied: &exercise.Applied{
			At: begin, Changes: []string{"changed NetworkPolicy team-vega/names", "deleted Role team-vega/old"},
		},
		Diagnosis: &diagnosis,
		Diagnosed: []scenario.FieldScore{
			{Field: "component", Right: true, Want: "scheduler", Got: "scheduler"},
			{Field: "mechanism", Want: "requests-more-than-any-node-has", Got: "too few"},
		},
		Hints: []exercise.Taken{{At: begin.Add(5 * time.Minute), Cost: 2, Text: "Look at the events of the pod."}},
		Recorded: &exercise.Recorded{
			Summary: recorder.Summary{
				Requests: 31, Looks: 28, Changes: 3, Refused: 2, First: begin.Add(time.Minute),
				Objects: []recorder.Count{{Object: "deployments.apps team-vega/<b>web</b>", Looks: 20, Changes: 3}},
				Minutes: []recorder.Minute{{Minute: 0, Looks: 8}, {Minute: 7, Looks: 20, Changes: 3}},
			},
			Look: 4 * time.Minute, Later: 2,
		},
		Timeline: []exercise.Moment{
			{At: begin, What: "handed over"}, {At: begin.Add(5 * time.Minute), What: "hint, 2 points"},
			{At: begin.Add(14 * time.Minute), What: "graded: failed"},
		},
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := Text(&out, graded(), 100); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("what the cluster said commands the terminal")
	}
	golden.Compare(t, "report.golden", out.String())
}

// CI systems count a failure for each check that does not hold and for damage elsewhere; a wrong diagnosis is none.
func TestJUnit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := JUnit(&out, graded()); err != nil {
		t.Fatal(err)
	}
	var all struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
	}
	if err := xml.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	if all.Tests != 5 || all.Failures != 2 {
		t.Errorf("%d of %d failed, wanted 2 of 5:\n%s", all.Failures, all.Tests, out.String())
	}
}

// The page is closed everywhere, and nothing that anyone wrote became a part of it.
func TestHTML(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := HTML(&out, graded(), "v0.3.0"); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta", "br"}, xml.HTMLEntity
	for {
		_, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(page, "<script") != 1 || strings.Contains(page, "<b>") {
		t.Error("somebody's text became an element")
	}
	for _, want := range []string{"FAILED: 41 of 100 points", "requests-more-than-any-node-has", "hint, 2 points",
		"Deployment", "a pod without a GPU is no training", "Could not be compared: widgets.example.com: forbidden",
		"request about the root cause after 4m, no change", "20 looks, 3 changes"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if looks, changes := strings.Count(page, `class="looks"`), strings.Count(page, `class="changes"`); looks != 2 ||
		changes != 1 {
		t.Errorf("%d bars of looks and %d of changes are drawn, wanted 2 and 1", looks, changes)
	}
}

// A gate says what it demands: nothing can be healthy again if nothing was broken, and no sentence repeats its heading.
func TestGates(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]exercise.Report{
		"FAIL  the candidate recognized that nothing is broken: nothing was broken, but": {
			Gates: []exercise.Gate{{Name: "fixed", Why: "nothing was broken, but the candidate did not submit that"}},
		},
		"FAIL  the workload is healthy, and stays healthy: the pods run: no pod": {
			Gates: []exercise.Gate{{Name: "fixed", Why: "not fixed: the pods run: no pod"}},
			Fixed: []check.Result{{Name: "the pods run"}},
		},
		"FAIL  no workaround: the image is the same: no": {
			Gates: []exercise.Gate{{Name: "unchanged", Why: "workaround: the image is the same: no"}},
		},
		"FAIL  nothing else was changed: Node a: a taint": {
			Gates: []exercise.Gate{{Name: "collateral", Why: "also changed: Node a: a taint"}},
		},
	} {
		var b strings.Builder
		if err := Text(&b, r, 0); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, b.String())
		}
	}
}
