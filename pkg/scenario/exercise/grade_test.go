package exercise

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/baseline"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// started returns an exercise in progress, with its namespace.
func (w *world) started(options StartOptions, change ...string) (*trainer, *Exercise) {
	w.Helper()
	trainer := w.trainer("laptop")
	e, err := trainer.Start(w.Context(), w.play(change...), options)
	if err != nil {
		w.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "harbour"}}
	if _, err := trainer.Client.CoreV1().Namespaces().Create(
		w.Context(), namespace, metav1.CreateOptions{},
	); err != nil {
		w.Fatal(err)
	}
	return trainer, e
}

var right = scenario.Diagnosis{
	Component: "workload", Object: "deployment/page", Field: "spec.template.spec.containers.envFrom",
	Mechanism: "missing configmap",
}

// Who mends it in time, says why, and takes no help gets everything; a second grade shows in the timeline.
func TestAllPoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	w.pass(5 * time.Minute)
	if _, err := trainer.Submit(t.Context(), "", right); err != nil {
		t.Fatal(err)
	}
	report, err := trainer.Grade(t.Context(), "")
	if err != nil || !report.Passed || report.Score != 100 || report.Late || len(report.Reasons) > 0 ||
		report.Took != 5*time.Minute {
		t.Fatalf("%+v, %v", report, err)
	}
	report, err = w.trainer("desktop").Grade(t.Context(), e.ID)
	if err != nil || len(report.Timeline) != 8 ||
		!strings.Contains(report.Timeline[6].What+report.Timeline[7].What, "graded: passed, score 100") {
		t.Errorf("%+v, %v", report, err)
	}
	if now, err := trainer.Get(t.Context(), e.ID); err != nil || now.Phase != Graded || len(now.Grades) != 2 ||
		now.Last().Score != 100 {
		t.Errorf("%+v, %v", now, err)
	}
}

// Who hands in the diagnosis and then waits for the trainer is not slower for it; who goes on working after it is.
func TestTimeEndsWithTheDiagnosis(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		after    *baseline.Baseline // what the cluster is like when it is graded
		shell    bool
		took     time.Duration
		late     bool
		resubmit bool
	}{
		"waits": {&baseline.Baseline{}, false, 5 * time.Minute, false, false},
		"goes on": {
			&baseline.Baseline{Missing: []string{"another state"}}, false, 25 * time.Minute, true, false,
		},
		"hands in once more": {
			&baseline.Baseline{Missing: []string{"another state"}}, false, 25 * time.Minute, true, true,
		},
		"is root on nodes": {&baseline.Baseline{}, true, 25 * time.Minute, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			trainer, e := w.started(StartOptions{For: 20 * time.Minute})
			if test.shell {
				if _, err := trainer.update(
					t.Context(), e.ID, func(e *Exercise) error { e.Public.Access.NodeShell = true; return nil },
				); err != nil {
					t.Fatal(err)
				}
			}
			w.pass(5 * time.Minute)
			if _, err := trainer.Submit(t.Context(), "", right); err != nil {
				t.Fatal(err)
			}
			w.pass(20 * time.Minute)
			trainer.fake.capture = func(context.Context) (*baseline.Baseline, error) { return test.after, nil }
			if test.resubmit {
				if _, err := trainer.Submit(t.Context(), "", right); err != nil {
					t.Fatal(err)
				}
			}
			report, err := trainer.Grade(t.Context(), "")
			if err != nil || report.Took != test.took || report.Late != test.late {
				t.Errorf("took %s, late: %t, %v; wanted %s and %t", report.Took, report.Late, err, test.took, test.late)
			}
		})
	}
}

// Help costs what it says, and there is no more of it than the scenario has.
func TestHintsCost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	first, left, err := trainer.Hint(t.Context(), "")
	if err != nil || left != 1 || first.Cost != 2 || !strings.Contains(first.Text, "kubectl describe") {
		t.Fatalf("%+v, %d, %v", first, left, err)
	}
	second, left, err := w.trainer("desktop").Hint(t.Context(), e.ID)
	if err != nil || left != 0 || second.Text == first.Text {
		t.Fatalf("%+v, %d, %v", second, left, err)
	}
	_, _, err = trainer.Hint(t.Context(), "")
	wants(t, err, "no more hints", "2 given")
	report, err := trainer.Grade(t.Context(), "")
	if err != nil || report.Score != 100-25-5 || !report.Passed {
		t.Errorf("%+v, %v", report, err)
	}
}

// After the time is over there is a grade, which says so, and no points for time; without a diagnosis there are none
// for that.
func TestLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, _ := w.started(StartOptions{For: 10 * time.Minute})
	w.pass(11 * time.Minute)
	report, err := trainer.Grade(t.Context(), "")
	if err != nil || !report.Late || !report.Passed || report.Score != 100-25-10 {
		t.Errorf("%+v, %v", report, err)
	}
	_, err = trainer.Kubeconfig(t.Context(), "")
	wants(t, err, "access expired at 2026-05-04T12:10:00Z")
}

// A namespace that the candidate deleted is a failure with that reason, at once: nothing is waited for.
func TestDeletedNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, _ := w.started(StartOptions{})
	if err := trainer.Client.CoreV1().Namespaces().Delete(t.Context(), "harbour", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	report, err := trainer.Grade(t.Context(), "")
	if err != nil || report.Passed || report.Score != 0 ||
		!strings.Contains(strings.Join(report.Reasons, " "), "deleted: namespace harbour") {
		t.Errorf("%+v, %v", report, err)
	}
}

// What works because the fault's own time was up was not mended.
func TestFaultThatEndedByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	if _, err := trainer.update(
		t.Context(), e.ID, func(e *Exercise) error { e.FaultUntil = noon.Add(time.Hour); return nil },
	); err != nil {
		t.Fatal(err)
	}
	w.pass(61 * time.Minute)
	report, err := trainer.Grade(t.Context(), "")
	if err != nil || report.Passed ||
		!strings.Contains(report.Reasons[0], "expired at 2026-05-04T13:00:00Z") {
		t.Errorf("%+v, %v", report, err)
	}
}

// Nothing can be done with an exercise that is over, nor with one that nobody knows, and each error says why.
func TestWhatCannotBeDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	_, err := trainer.Submit(t.Context(), "", scenario.Diagnosis{Explanation: "no idea"})
	wants(t, err, "the diagnosis is empty")
	if _, err := trainer.Reveal(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	_, err = trainer.Submit(t.Context(), "", right)
	wants(t, err, "the answer was revealed")
	_, err = trainer.Grade(t.Context(), "scenario-nobody")
	wants(t, err, `exercise "scenario-nobody" not found`, "scenario status")
	if _, err := trainer.End(t.Context(), "", EndOptions{Restore: true}); err != nil {
		t.Fatal(err)
	}
	_, err = trainer.Grade(t.Context(), e.ID)
	wants(t, err, "cannot grade exercise "+e.ID, "is Ended", "start another one")
	_, _, err = trainer.Hint(t.Context(), e.ID)
	wants(t, err, "cannot give a hint", "is Ended")
	_, err = trainer.Grade(t.Context(), "")
	wants(t, err, "no running exercise")
	// afterwards is when one wants to know
	if sealed, err := trainer.Reveal(t.Context(), e.ID); err != nil || sealed.Story == "" {
		t.Errorf("%+v, %v", sealed, err)
	}
}

// A lost ledger is told as such, by whatever one tries.
func TestLedgerIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	for _, secret := range w.secrets() {
		if err := trainer.secrets().Delete(t.Context(), secret, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := trainer.Grade(t.Context(), e.ID)
	wants(t, err, "exercise \""+e.ID+"\" not found")
	ending, err := trainer.End(t.Context(), e.ID, EndOptions{Restore: true}) // the run is still there
	if err != nil || ending.Compared || len(w.left()) > 0 {
		t.Errorf("%+v, %v, %q", ending, err, w.left())
	}
	_, err = trainer.End(t.Context(), "scenario-nobody", EndOptions{Restore: true})
	wants(t, err, `exercise "scenario-nobody" not found`, "and its run was not found either")
}

// What was undone by `revert` is not what a candidate has mended; the end still finds what is left.
func TestRevertedByItsRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	if _, err := trainer.session(false).Revert(t.Context(), e.ID, false); err != nil {
		t.Fatal(err)
	}
	_, err := trainer.Grade(t.Context(), e.ID)
	wants(t, err, "its run was reverted by alice", "scenario end "+e.ID)
	ending, err := trainer.End(t.Context(), e.ID, EndOptions{Restore: true})
	if err != nil || !ending.Clean() {
		t.Errorf("%+v, %v", ending, err)
	}
	w.putBack(Ended)
}

// A token that is over is told as that.
func TestExpiredToken(t *testing.T) {
	t.Parallel()
	c := &candidate{e: &Exercise{Account: Account{Until: noon}}}
	wants(t, c.explain(apierrors.NewUnauthorized("no")), "was rejected",
		"which expires at 2026-05-04T12:00:00Z")
	if err := c.explain(errDead); err != errDead {
		t.Error(err)
	}
}

// Without what the cluster was like there is no grade: damage could not be told from the rest.
func TestSnapshotIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	if err := trainer.secrets().Delete(t.Context(), chunk(e.ID, snapBegin, 0), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := trainer.Grade(t.Context(), "")
	wants(t, err, "cannot be graded", "part 1 of 1")
}

// Who may write Secrets in the ledger's namespace, and nothing else, cannot choose what a trainer's grade runs or what
// their end writes back.
func TestForgedRecordIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, forge := range map[string]func(t *testing.T, trainer *trainer, e *Exercise) (grades bool){
		"the scenario": func(t *testing.T, trainer *trainer, e *Exercise) bool {
			r := trainer.world.play("stableFor: 2s", "stableFor: 3s")
			text, err := encodeScenario(r)
			if err != nil {
				t.Fatal(err)
			}
			trainer.change(t, e.ID, keyScenario, text)
			return false
		},
		"the exercise": func(t *testing.T, trainer *trainer, e *Exercise) bool {
			if _, err := trainer.update(
				t.Context(), e.ID, func(e *Exercise) error { e.Nodes = append(e.Nodes, "another"); return nil },
			); err != nil {
				t.Fatal(err)
			}
			return false
		},
		"what the cluster was like before": func(t *testing.T, trainer *trainer, e *Exercise) bool {
			parts, err := (&baseline.Baseline{Missing: []string{"nothing"}}).Encode()
			if err != nil {
				t.Fatal(err)
			}
			trainer.change(t, chunk(e.ID, snapBefore, 0), keyChunk, parts[0])
			return true // which looks at what it was like at the beginning
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			trainer, e := w.started(StartOptions{})
			grades := forge(t, trainer, e)
			if _, err := trainer.Grade(t.Context(), ""); !grades {
				wants(t, err, "is rejected", e.ID)
			} else if err != nil {
				t.Error(err)
			}
			left := w.left()
			_, err := trainer.End(t.Context(), "", EndOptions{Restore: true})
			wants(t, err, "is rejected", "end the exercise without --restore")
			if !slices.Equal(left, w.left()) {
				t.Errorf("it was undone all the same: %q", w.left())
			}
			if _, err := trainer.End(t.Context(), "", EndOptions{}); err != nil {
				t.Error(err)
			}
			w.putBack(Ended)
		})
	}
}

// Without the run's record nothing tells a forged exercise: then nothing is put back by what it says, and the way out
// is named.
func TestRunIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer, e := w.started(StartOptions{})
	if err := trainer.Client.CoreV1().ConfigMaps(ledger.DefaultNamespace).Delete(
		t.Context(), e.ID, metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	_, err := trainer.End(t.Context(), "", EndOptions{Restore: true})
	wants(t, err, "run "+e.ID+" not found",
		"to end the exercise without --restore, run: kubectl gpu-fault scenario end "+e.ID)
	if ending, err := trainer.End(t.Context(), "", EndOptions{}); err != nil || !ending.Compared {
		t.Errorf("%+v, %v", ending, err)
	}
}

// change writes over what a Secret holds.
func (t *trainer) change(test *testing.T, secret, key string, value []byte) {
	test.Helper()
	stored, err := t.secrets().Get(test.Context(), secret, metav1.GetOptions{})
	if err == nil {
		stored.Data[key] = value
		_, err = t.secrets().Update(test.Context(), stored, metav1.UpdateOptions{})
	}
	if err != nil {
		test.Fatal(err)
	}
}

// Several exercises must be named.
func TestSeveralRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.started(StartOptions{})
	if _, err := w.trainer("desktop").Start(
		t.Context(), w.play("[harbour, meadow, orchard, quarry, lagoon, thicket]", "[quarry]"), StartOptions{},
	); err != nil {
		t.Fatal(err)
	}
	_, err := w.trainer("x").Grade(t.Context(), "")
	wants(t, err, "several exercises are running; specify one of", "missing-settings of alice")
}

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

// What has failed by another gate is not waited for: a probe, whose usual time is half a minute, has the time of one
// pod.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	checks := []scenario.Check{
		{
			Name: "an object", Object: &scenario.Ref{}, Within: scenario.Duration(time.Minute),
			Sustained: scenario.Duration(time.Minute),
		},
		{
			Name: "a probe", Probe: &scenario.Probe{}, Within: scenario.Duration(time.Minute),
			Sustained: scenario.Duration(time.Minute),
		},
		{Name: "a probe that says nothing", Probe: &scenario.Probe{}},
	}
	for i, want := range []scenario.Duration{0, onePod, onePod} {
		if got := atOnce(checks)[i]; got.Within != want || got.Sustained != 0 {
			t.Errorf("%s: within %s, sustained %s; wanted %s and nothing", got.Name, time.Duration(got.Within),
				time.Duration(got.Sustained), time.Duration(want))
		}
	}
}

// A workaround that comes while it is still being seen whether it is mended is found by another look, which is for what
// was not looked at since only: the looks of probes take seconds.
func TestLooksAgain(t *testing.T) {
	t.Parallel()
	const object = `object: {apiVersion: apps/v1, kind: Deployment, namespace: "${p.ns}", name: page}
        expect: o != null && o.spec.replicas == was.spec.replicas`
	const probe = `probe: {pod: {apiVersion: v1, kind: Pod, metadata: {name: check, namespace: "${p.ns}"}, spec: {containers: [{name: main, image: "nginx:1"}]}}}
        expect: o != null`
	for name, test := range map[string]struct {
		change    []string
		unchanged time.Duration // when it was looked at whether there are as many pods; it was mended 10s after noon
		looks     int
		passed    bool
	}{
		"looked at before it was mended": {unchanged: 9 * time.Second, looks: 2},
		"looked at since":                {unchanged: 11 * time.Second, looks: 1, passed: true},
		"looked since at a pod that was made before": {
			change: []string{object, probe}, unchanged: 11 * time.Second, looks: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			trainer, e := w.started(StartOptions{}, test.change...)
			looks := 0
			trainer.fake.check = func(_ context.Context, checks []scenario.Check) ([]check.Result, error) {
				results := make([]check.Result, len(checks))
				for i, one := range checks {
					at := noon.Add(10 * time.Second)
					results[i] = check.Result{Name: one.Name, OK: true, LookedFrom: at, LookedUntil: at}
					if one.Message == "the page was scaled down or is gone" {
						looks++
						results[i].LookedFrom, results[i].OK = noon.Add(test.unchanged), looks == 1
					}
				}
				return results, nil
			}
			report, err := trainer.Grade(t.Context(), e.ID)
			if err != nil || report.Passed != test.passed || looks != test.looks {
				t.Errorf("%d looks, %v: %+v", looks, err, report)
			}
		})
	}
}

// Beside a solution, a candidate may tidy up the workload that it changes, and create what has no effect by itself; it
// may not create or delete the workload, nor tidy up others.
func TestHarmlessChanges(t *testing.T) {
	t.Parallel()
	allow := harmless([]scenario.Allowed{
		{Kind: "Deployment", Namespace: "a", Name: "train", Fields: []string{"spec.x"}, Created: true, Deleted: true},
		{Kind: "ConfigMap", Namespace: "a", Name: "settings", Fields: []string{"data"}},
		{Kind: "Pod", Namespace: "a", Deleted: true},
	}, []string{"a"})
	if got := harmless([]scenario.Allowed{{Fields: []string{"metadata.labels[x]"}}}, nil); len(got) != 1 {
		t.Errorf("a rule for all kinds makes more harmless: %+v", got)
	}
	if len(allow) != 6+len(workloads) {
		t.Fatalf("%+v", allow)
	}
	if tidy := allow[0]; tidy.Kind != "Deployment" || tidy.Name != "train" || tidy.Created || tidy.Deleted ||
		!slices.Contains(tidy.Fields, "metadata.labels") || slices.Contains(tidy.Fields, "spec.template") {
		t.Errorf("%+v", tidy)
	}
	if lock := allow[1]; lock.Name != "settings" || lock.Created || !slices.Contains(lock.Fields, "immutable") {
		t.Errorf("%+v", lock)
	}
	if note := allow[2]; note.Kind != kindNode || note.Created || note.Deleted ||
		!slices.Equal(note.Fields, []string{"metadata.annotations"}) {
		t.Errorf("%+v", note)
	}
	for _, one := range allow[3:] {
		workload := slices.Contains(workloads, one.Kind)
		if one.Namespace != "a" || one.Created == workload || one.Deleted || len(one.Fields) == 0 ||
			strings.Contains(strings.Join(one.Fields, " "), "spec") {
			t.Errorf("%+v", one)
		}
	}
}

// A probe that a container did not have makes a workload stricter. One that replaces a probe, or that runs a command,
// may be a way around it.
func TestNewProbesAreHarmless(t *testing.T) {
	t.Parallel()
	ref := scenario.Ref{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "a", Name: "train"}
	of := func(container string) func(scenario.Ref) map[string]any {
		var o map[string]any
		if err := yaml.Unmarshal([]byte("spec: {template: {spec: {containers: ["+container+"]}}}"), &o); err != nil {
			t.Fatal(err)
		}
		return func(scenario.Ref) map[string]any { return o }
	}
	allow := []scenario.Allowed{{Kind: "Deployment", Namespace: "a", Fields: []string{"spec.x"}}}
	changed := []baseline.Difference{{Ref: ref, Kind: baseline.Changed}}
	for name, test := range map[string]struct {
		before, after string
		want          []string
	}{
		"new": {
			"{name: main}", "{name: main, readinessProbe: {tcpSocket: {port: 1}}}",
			[]string{"spec.template.spec.containers[main].readinessProbe"},
		},
		"other than before": {
			"{name: main, readinessProbe: {tcpSocket: {port: 1}}}",
			"{name: main, readinessProbe: {tcpSocket: {port: 2}}}", nil,
		},
		"a command": {"{name: main}", "{name: main, readinessProbe: {exec: {command: [sh]}}}", nil},
		"restarts":  {"{name: main}", "{name: main, livenessProbe: {tcpSocket: {port: 1}}}", nil},
		"another container": {
			"{name: main}", "{name: other, readinessProbe: {tcpSocket: {port: 1}}}", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := of(test.before), of(test.after)
			var got []string
			for _, one := range probing(allow, changed, before, after) {
				got = append(got, one.Fields...)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("allowed %q, expected %q", got, test.want)
			}
		})
	}
	other := []scenario.Allowed{{Kind: "Deployment", Namespace: "a", Name: "other", Fields: []string{"spec.x"}}}
	if got := probing(other, changed, of("{name: main}"),
		of("{name: main, readinessProbe: {tcpSocket: {port: 1}}}")); got != nil {
		t.Errorf("a workload that no solution changes: %+v", got)
	}
}

// Pods left over from debugging are not damage, unless they request a device or are in another namespace.
func TestPodsForDebugging(t *testing.T) {
	t.Parallel()
	pod := func(resource string) map[string]any {
		return map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
			"name": "c", "resources": map[string]any{"limits": map[string]any{resource: "1"}},
		}}}}
	}
	for _, test := range []struct {
		kind, namespace, resource string
		want                      bool
	}{
		{"Pod", "a", "cpu", true}, {"Pod", "a", "nvidia.com/gpu", false}, {"Pod", "b", "cpu", false},
		{"Deployment", "a", "cpu", false},
	} {
		ref := scenario.Ref{APIVersion: "v1", Kind: test.kind, Namespace: test.namespace, Name: "x"}
		if got := debugs(ref, pod(test.resource), []string{"a"}); got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
	}
}
