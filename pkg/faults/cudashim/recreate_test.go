package cudashim

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/kubeedit"
)

const train = `{apiVersion: batch/v1, kind: Job, metadata: {name: train, namespace: team, labels: {a: b}}, spec: {parallelism: 2, selector: {matchLabels: {batch.kubernetes.io/controller-uid: x}},
  template: {metadata: {labels: {batch.kubernetes.io/controller-uid: x, batch.kubernetes.io/job-name: train}}, spec: {containers: [{name: main, image: i}]}}}%}`

func job(status string) string { return strings.Replace(train, "%", status, 1) }

// Work that is done is not done twice, and nothing is deleted without consent.
func TestJobsThatMayNotBeCreatedAgain(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]string{
		``: "--recreate",
		`, status: {conditions: [{type: Complete, status: "True"}]}`: "has finished (Complete)",
		`, status: {conditions: [{type: Failed, status: "True"}]}`:   "has finished (Failed)",
		`, status: {completedIndexes: "0-3", succeeded: 4}`:          "has completed indexes 0-3",
		`, status: {succeeded: 1}`:                                   "has completed pods (1)",
	} {
		w := newWorld(t, job(status))
		in := w.injection(w.find("job/train"))
		in.Recreate = status != ""
		if _, err := in.Change("").Apply(t.Context(), &recorder{world: w}); err == nil ||
			!strings.Contains(err.Error(), want) || len(w.calls) > 0 {
			t.Errorf("%s: %v, calls %v", status, err, w.calls)
		}
	}
}

// recreated returns a world in which a job was created again with the shim.
func recreated(t *testing.T) (*world, *Workload, *recorder) {
	t.Helper()
	w := newWorld(t, job(""))
	if err := w.client.Tracker().Add(started("train-1")); err != nil {
		t.Fatal(err)
	}
	found, r := w.find("job/train"), &recorder{world: w}
	in := w.injection(found)
	in.Recreate = true
	if _, err := in.Change("").Apply(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return w, found, r
}

func TestJobIsCreatedAgainAndBack(t *testing.T) {
	t.Parallel()
	w, found, r := recreated(t)
	if got := strings.Join(w.calls[:6],
		", "); got != "save, create configmap, delete jobs, create jobs, update configmap, save" {
		t.Errorf("calls %s", got)
	}
	now := w.object(found)
	if now.GetUID() == found.Object.GetUID() || !strings.Contains(string(kubeedit.Encode(now.Object)), "LD_PRELOAD") ||
		strings.Contains(string(kubeedit.Encode(now.Object)), "controller-uid") {
		t.Errorf("created %s", kubeedit.Encode(now.Object))
	}
	// What somebody changes of it meanwhile is kept.
	kubeedit.Map(now.Object, kubeedit.Fields("spec"))["parallelism"] = int64(5)
	if _, err := w.cluster.resource(found).Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	state, said, err := w.undo(r.step)
	if err != nil || state != ledger.StateReverted || !strings.Contains(said, "restored") {
		t.Errorf("%s: %s, %v", state, said, err)
	}
	after := recreatable(w.object(found))
	want := recreatable(found.Object)
	kubeedit.Map(want.Object, kubeedit.Fields("spec"))["parallelism"] = int64(5)
	if diff := cmp.Diff(want.Object["spec"], after.Object["spec"]); diff != "" {
		t.Error(diff)
	}
	if _, err := w.client.CoreV1().ConfigMaps("team").Get(
		t.Context(), Name(run), metav1.GetOptions{},
	); !apierrors.IsNotFound(err) {
		t.Errorf("the configmap is left: %v", err)
	}
}

// A client that dies at any place leaves a job that the undo brings back; what somebody else did is not taken for that.
func TestUndoAfterACrash(t *testing.T) {
	t.Parallel()
	t.Run("between deletion and creation", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, job(""))
		found, r := w.find("job/train"), &recorder{world: w}
		in := w.injection(found)
		in.Recreate = true
		w.dynamic.PrependReactor("create", "jobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if len(a.(clienttesting.CreateActionImpl).CreateOptions.DryRun) > 0 || len(w.calls) > 3 {
				return false, nil, nil
			}
			w.note("crash")
			return true, nil, errors.New("killed")
		})
		if _, err := in.Change("").Apply(t.Context(), r); err == nil {
			t.Fatal("no error")
		}
		if state, said, err := w.undo(r.step); err != nil || state != ledger.StateReverted ||
			!strings.Contains(said, "recreated with its original content") {
			t.Errorf("%s: %s, %v", state, said, err)
		}
		if got := kubeedit.Encode(w.object(found).Object); strings.Contains(string(got), "gpu-fault") {
			t.Errorf("created %s", got)
		}
	})
	t.Run("of the undo, between deletion and creation", func(t *testing.T) {
		t.Parallel()
		w, found, r := recreated(t)
		killed := false
		w.dynamic.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
			if killed {
				return false, nil, nil
			}
			killed = true
			return true, nil, errors.New("killed")
		})
		if _, _, err := w.undo(r.step); err == nil {
			t.Fatal("no error")
		}
		if state, said, err := w.undo(r.step); err != nil || state != ledger.StateReverted {
			t.Errorf("%s: %s, %v", state, said, err)
		}
		if got := kubeedit.Encode(w.object(found).Object); strings.Contains(string(got), "gpu-fault") {
			t.Errorf("created %s", got)
		}
	})
	t.Run("somebody deleted it", func(t *testing.T) {
		t.Parallel()
		w, found, r := recreated(t)
		if err := w.cluster.resource(found).Delete(t.Context(), "train", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if state, said, err := w.undo(r.step); err != nil || state != ledger.StateSuperseded ||
			!strings.Contains(said, "another client has deleted it") {
			t.Errorf("%s: %s, %v", state, said, err)
		}
	})
	t.Run("the workload has finished", func(t *testing.T) {
		t.Parallel()
		w, found, r := recreated(t)
		now := w.object(found)
		now.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Failed", "status": "True"}}}
		if _, err := w.cluster.resource(found).Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		calls := len(w.calls)
		if state, said, err := w.undo(r.step); err != nil || state != ledger.StateSuperseded ||
			!strings.Contains(said, "has finished") {
			t.Errorf("%s: %s, %v", state, said, err)
		}
		if strings.Contains(strings.Join(w.calls[calls:], " "), "jobs") {
			t.Errorf("it was touched: %v", w.calls[calls:])
		}
	})
	t.Run("nothing had been done", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, web)
		if state, said, err := w.undo(ledger.Step{Undo: ledger.Undo{Kind: UndoKind}}); err != nil ||
			state != ledger.StateReverted || !strings.Contains(said, "nothing was changed") {
			t.Errorf("%s: %s, %v", state, said, err)
		}
	})
	t.Run("another object of that name", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, web)
		_, d := injected(t, w.find("deployment/web"), Selection{}, false)
		d.Name = "web" // whose UID is not u1
		if state, said, err := w.undo(stepOf(d)); err != nil || state != ledger.StateSuperseded ||
			!strings.Contains(said, "because it is a different object") {
			t.Errorf("%s: %s, %v", state, said, err)
		}
		d.Name = "gone"
		if state, said, err := w.undo(stepOf(d)); err != nil || state != ledger.StateSuperseded ||
			!strings.Contains(said, "no longer exists") {
			t.Errorf("%s: %s, %v", state, said, err)
		}
	})
}

// Work that ends between the look at a Job and its deletion is not lost: the version that was looked at is deleted, or
// none.
func TestJobThatEndsBeforeItIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Replace(job(""), "labels:", "resourceVersion: '7', labels:", 1))
	found := w.find("job/train")
	conflicts, seen := 0, ""
	w.dynamic.PrependReactor("delete", "jobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		conflicts++
		if p := a.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions; p != nil && p.ResourceVersion != nil {
			seen = *p.ResourceVersion
		}
		stored, err := w.dynamic.Tracker().Get(found.Resource, "team", "train")
		if err != nil {
			return true, nil, err
		}
		now := stored.(*unstructured.Unstructured).DeepCopy()
		now.Object["status"] = map[string]any{"succeeded": int64(1)}
		if err := w.dynamic.Tracker().Update(found.Resource, now, "team"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(found.Resource.GroupResource(), "train", errors.New("newer"))
	})
	in := w.injection(found)
	in.Recreate = true
	_, err := in.Change("").Apply(t.Context(), &recorder{world: w})
	if err == nil || !strings.Contains(err.Error(), "has completed pods (1)") || conflicts != 1 || seen != "7" {
		t.Errorf("%v after %d conflicts, version %q", err, conflicts, seen)
	}
}
