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
