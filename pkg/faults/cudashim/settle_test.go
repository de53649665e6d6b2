package cudashim

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// The ConfigMap goes only when the pods that run with the shim are known to learn that they are disarmed; else it
// stays, disarmed, and nothing says that the shim is idle.
func TestTheConfigMapStaysForPodsThatWereNotTold(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web-1", errors.New("no right"))
	for name, test := range map[string]struct {
		patches func(n int32) error // of the n-th annotation
		how     Replacement
		stays   bool
		says    string
		hasNot  string
	}{
		"told": {func(int32) error { return nil }, OnDelete, false, "the idle shim stays in pods", "was left"},
		"told later": {
			func(n int32) error { return map[bool]error{true: forbidden}[n == 1] }, Rolling, false, "restored",
			"not deleted",
		},
		"told once": {
			func(n int32) error { return map[bool]error{true: forbidden}[n > 1] }, Rolling, false, "restored",
			"not deleted",
		},
		"never, on delete": {func(int32) error { return forbidden }, OnDelete, true,
			"the shim stays in pods until you delete them; it is disarmed within a minute or two", "idle"},
		"never, rolling": {
			func(int32) error { return forbidden }, Rolling, true, "was not deleted but disarmed", "idle",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, web)
			pod := started("web-1")
			pod.UID = "p1"
			if err := w.client.Tracker().Add(pod); err != nil {
				t.Fatal(err)
			}
			found, r := w.find("deployment/web"), &recorder{world: w}
			if _, err := w.injection(found).Change("inject").Apply(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			d, err := ReadData(r.step)
			if err != nil {
				t.Fatal(err)
			}
			d.Replaced = test.how
			var n atomic.Int32
			w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				err := test.patches(n.Add(1))
				return err != nil, nil, err
			})
			state, said, err := w.undo(stepOf(d))
			if err != nil || state != ledger.StateReverted || !strings.Contains(said, test.says) ||
				strings.Contains(said, test.hasNot) {
				t.Errorf("%s, %s, %v", state, said, err)
			}
			kept, err := ReadState(t.Context(), w.client, "team", run)
			if test.stays && (err != nil || string(kept) != "disarmed") || !test.stays && !apierrors.IsNotFound(err) {
				t.Errorf("the configmap: %q, %v", kept, err)
			}
			if n.Load() < 2 {
				t.Errorf("the kubelet was told %d times", n.Load())
			}
		})
	}
}

// withShim returns a workload with the shim and its pod web-1.
func withShim(t *testing.T) (*world, *recorder) {
	t.Helper()
	w := newWorld(t, web)
	if err := w.client.Tracker().Add(started("web-1")); err != nil {
		t.Fatal(err)
	}
	found, r := w.find("deployment/web"), &recorder{world: w}
	if _, err := w.injection(found).Change("inject").Apply(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return w, r
}

// Where no pod runs with the shim any more there is nothing to wait for.
func TestNoWaitingWithoutPods(t *testing.T) {
	t.Parallel()
	w, r := withShim(t)
	if err := w.client.CoreV1().Pods("team").Delete(t.Context(), "web-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_, _, err := Undoer{Cluster: w.cluster, Settle: time.Hour}.Undo(t.Context(), ledger.Run{ID: run}, r.step)
	if err != nil || time.Since(begin) > time.Minute {
		t.Errorf("%v after %s", err, time.Since(begin))
	}
}

// TestNoWaitingForReplacedPods: the controller replaces pods in the middle of the wait, which then is over, whether or
// not it is time to annotate them again.
func TestNoWaitingForReplacedPods(t *testing.T) {
	t.Parallel()
	w, r := withShim(t)
	waits := make(chan struct{}, 1)
	go func() {
		<-waits
		_ = w.client.Tracker().Delete(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "team", "web-1")
	}()
	said := func(_ ledger.Step, text string) {
		if strings.HasPrefix(text, "waiting for running processes") {
			waits <- struct{}{}
		}
	}
	begin := time.Now()
	_, _, err := Undoer{Cluster: w.cluster, Settle: time.Hour, Progress: said}.Undo(t.Context(), ledger.Run{ID: run},
		r.step)
	if err != nil || time.Since(begin) > time.Minute {
		t.Errorf("%v after %s", err, time.Since(begin))
	}
}

// Whoever arms a run that somebody is taking away hears of it, also when both write at the same time.
func TestArmDuringAnUndo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, web)
	in := w.injection(w.find("deployment/web"))
	if err := in.createConfigMap(t.Context(), ledger.Run{ID: run}, Data{}); err != nil {
		t.Fatal(err)
	}
	if err := Arm(t.Context(), w.client, "team", run, []byte("armed 2")); err != nil {
		t.Fatal(err)
	}
	d := &Data{Namespace: "team", ConfigMap: Name(run), Disarmed: []byte("disarmed")}
	before, err := w.client.CoreV1().ConfigMaps("team").Get(t.Context(), Name(run), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before = before.DeepCopy()
	Undoer{Cluster: w.cluster}.disarm(t.Context(), ledger.Run{ID: run}, ledger.Step{}, d)
	ended, err := w.client.CoreV1().ConfigMaps("team").Get(t.Context(), Name(run), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended = ended.DeepCopy()
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	if err := w.client.Tracker().Update(configMaps, before, "team"); err != nil { // as the client that arms reads it
		t.Fatal(err)
	}
	lost := false
	w.client.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if lost {
			return false, nil, nil
		}
		lost = true // the undo is faster than this update, which has read the map before
		if err := w.client.Tracker().Update(configMaps, ended, "team"); err != nil {
			t.Error(err)
		}
		return true, nil,
			apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, Name(run), errors.New("newer"))
	})
	if err := Arm(t.Context(), w.client, "team", run, []byte("armed 3")); !errors.Is(err, ErrReverting) || !lost {
		t.Errorf("armed: %v", err)
	}
	if err := in.createConfigMap(t.Context(), ledger.Run{ID: run}, Data{}); !errors.Is(err, ErrReverting) {
		t.Errorf("begun again: %v", err)
	}
	if state, err := ReadState(t.Context(), w.client, "team", run); err != nil || string(state) != "disarmed" {
		t.Errorf("%q, %v", state, err)
	}
	if err := UpdateState(t.Context(), w.client, "team", run, []byte("disarmed 2")); err != nil {
		t.Errorf("disarmed: %v", err)
	}
}

// Of many pods that cannot be annotated one error is told, and the others are annotated.
func TestRefreshOfMany(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var pods []corev1.Pod
	for i := range 35 {
		p := started(fmt.Sprintf("p%02d", i))
		p.UID = types.UID(p.Name)
		pods = append(pods, *p)
		if err := w.client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	w.client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		name := a.(clienttesting.PatchAction).GetName()
		return name == "p03" || name == "p30", nil, errors.New("no")
	})
	told, err := refresh(t.Context(), w.client, pods, "x")
	if len(told) != 33 || err == nil || !strings.HasPrefix(err.Error(), `2 pods: annotate pod "p03"`) ||
		strings.Contains(err.Error(), "p30") {
		t.Errorf("%d told, %v", len(told), err)
	}
}

// Pods are asked for by the run's label; where none has it, all are looked at.
func TestPodsByLabel(t *testing.T) {
	t.Parallel()
	for label, want := range map[string]int{ledger.LabelRun: 1, "other": 2} {
		w := newWorld(t)
		p := started("a")
		p.Labels = map[string]string{label: run}
		if err := w.client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
		pods, err := w.cluster.Pods(t.Context(), "team", run)
		if err != nil || len(pods) != 1 || len(w.client.Actions()) != want {
			t.Errorf("%s: %d pods, %v, %d lists", label, len(pods), err, len(w.client.Actions()))
		}
	}
}
