package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger/ledgertest"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
)

// unanswered is a command line without --yes, where there is no terminal to ask on.
func unanswered(a *arming) { a.yes = false }

// To disarm heals, and so it works always: unasked, while the client is at work, after it was killed, and when the time
// is up.
func TestDisarmIsAnEmergencyBrake(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*ledger.Run){
		"in place": nil,
		"being made": func(r *ledger.Run) {
			r.Phase, r.Deadline = ledger.Applying, time.Now().Add(time.Minute)
		},
		"its client was killed": func(r *ledger.Run) {
			r.Phase, r.Deadline = ledger.Applying, time.Now().Add(-time.Hour)
		},
		"taken over":     func(r *ledger.Run) { r.Phase = ledger.Interrupted },
		"not undone":     func(r *ledger.Run) { r.Phase, r.Steps[0].State = ledger.Failed, ledger.StateFailed },
		"its time is up": func(r *ledger.Run) { r.Until = time.Now().Add(-time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, change, pod("web-1", "gpu-1"))
			_, errOut, err := w.switching(t, "disarm", unanswered)
			if err != nil || strings.Contains(errOut, "Warning") {
				t.Errorf("%v\n%s", err, errOut)
			}
			if s := w.stored(t); !s.ArmedAt.IsZero() || s.Run != runID {
				t.Errorf("%+v", s)
			}
			if run, err := w.store().Get(t.Context(), runID); err != nil ||
				!strings.HasSuffix(run.Summary, disarmedSuffix) {
				t.Errorf("%v, %q", err, run.Summary)
			}
		})
	}
}

// A client that is still making the run may arm it between the two writes of a disarm: the disarm wins.
func TestDisarmWinsAgainstTheClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(r *ledger.Run) { r.Phase, r.Deadline = ledger.Applying, time.Now().Add(time.Minute) },
		pod("web-1", "gpu-1"))
	armed := w.state
	armed.Generation, armed.ArmedAt = 99, time.Now()
	file, err := armed.Encode()
	if err != nil {
		t.Fatal(err)
	}
	client := w.server.Client(ledgertest.Hooks{})
	w.client = w.server.Client(ledgertest.Hooks{Before: func(c ledgertest.Call) error {
		if c.Verb == "update" && c.Name == runID {
			return cudashim.Arm(t.Context(), client, namespace, runID, file)
		}
		return nil
	}})
	if _, errOut, err := w.switching(t, "disarm", nil); err != nil {
		t.Errorf("%v\n%s", err, errOut)
	}
	if s := w.stored(t); !s.ArmedAt.IsZero() {
		t.Errorf("%+v", s)
	}
}

// A ledger that does not answer, or pods that cannot be listed, do not hold up the state file.
func TestDisarmDoesNotWaitForOthers(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(ledgertest.Call) bool{
		"the record": func(c ledgertest.Call) bool { return c.Verb == "update" && c.Name == runID },
		"pods":       func(c ledgertest.Call) bool { return c.Verb == "list" && c.Resource == "pods" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, pod("web-1", "gpu-1"))
			w.client = w.server.Client(ledgertest.Hooks{Before: func(c ledgertest.Call) error {
				if fails(c) {
					return errors.New("no response")
				}
				return nil
			}})
			_, _, _ = w.switching(t, "disarm", nil) // may complain
			if s := w.stored(t); !s.ArmedAt.IsZero() {
				t.Errorf("%+v", s)
			}
		})
	}
}

// overwrite puts a file in the place of the state.
func (w *world) overwrite(t *testing.T, file []byte) {
	t.Helper()
	if err := cudashim.UpdateState(t.Context(), w.client, namespace, runID, file); err != nil {
		t.Fatal(err)
	}
}

// A state that is damaged, or is another run's, is not armed and leads to nobody else's ConfigMap; it can be disarmed.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	const other = "cuda-222222"
	foreign, err := lostGPU.State(other, 7, time.Now(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	ofOther, err := foreign.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string][]byte{"garbage": []byte("garbage"), "empty": {}, "another run's": ofOther} {
		for _, asked := range []bool{true, false} { // whether the record says what was asked for
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, func(r *ledger.Run) {
					if !asked {
						r.Steps[0].Detail = nil
					}
				}, pod("web-1", "gpu-1"))
				configMaps := w.client.CoreV1().ConfigMaps(namespace)
				if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{
						Name:   cudashim.Name(other),
						Labels: map[string]string{ledger.LabelManagedBy: ledger.ManagedBy, ledger.LabelRun: other},
					},
					BinaryData: map[string][]byte{cudashim.StateKey: ofOther},
				}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				w.overwrite(t, file)
				if _, _, err := w.switching(t, "arm", nil); err == nil || !strings.Contains(err.Error(), "run "+runID) {
					t.Errorf("arm: %v", err)
				}
				if _, errOut, err := w.switching(t, "disarm", nil); err != nil {
					t.Errorf("disarm: %v\n%s", err, errOut)
				}
				if s := w.stored(t); !s.ArmedAt.IsZero() || s.Run != runID || !s.Expires.Equal(w.run.Until) {
					t.Errorf("%+v", s)
				}
				theirs, err := configMaps.Get(t.Context(), cudashim.Name(other), metav1.GetOptions{})
				if err != nil || string(theirs.BinaryData[cudashim.StateKey]) != string(ofOther) {
					t.Errorf("the other run's state was changed: %v", err)
				}
			})
		}
	}
}

// Between the question and the arming somebody reverts the run: it stays healthy, the record says so, and the user
// hears of it.
func TestArmAgainstARevert(t *testing.T) {
	t.Parallel()
	isRecord := func(verb string) func(ledgertest.Call) bool {
		return func(c ledgertest.Call) bool {
			return c.Verb == verb && c.Name == runID && c.Namespace == ledger.DefaultNamespace
		}
	}
	isList := func(c ledgertest.Call) bool { return c.Verb == "list" && c.Resource == "pods" }
	change := func(change func(*ledger.Run)) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			_, err := ledger.New(w.server.Client(ledgertest.Hooks{}),
				ledger.DefaultNamespace).Update(t.Context(), runID, func(r *ledger.Run) error {
				change(r)
				return nil
			})
			return err
		}
	}
	closes := change(func(r *ledger.Run) { r.Closed, r.Phase = time.Now(), ledger.Reverted })
	deletes := func(t *testing.T, w *world) error {
		return w.server.Client(ledgertest.Hooks{}).CoreV1().ConfigMaps(namespace).Delete(t.Context(),
			cudashim.Name(runID), metav1.DeleteOptions{})
	}
	for name, test := range map[string]struct {
		when func(ledgertest.Call) bool
		nth  int
		what func(*testing.T, *world) error
		want string
	}{
		"closed while it was asked": {isRecord("get"), 2, closes, "was closed at"},
		"taken over while it was asked": {
			isRecord("get"), 2, change(func(r *ledger.Run) { r.Phase = ledger.Interrupted }),
			"was interrupted or is being reverted",
		},
		"time up while it was asked": {
			isRecord("get"), 2, change(func(r *ledger.Run) { r.Until = time.Now() }), "expired at",
		},
		"undone before the record": {
			isList, 1, change(func(r *ledger.Run) { r.Steps[0].Undone = time.Now() }), "was reverted: inject",
		},
		"closed before the record": {isList, 1, closes, "was reverted in the meantime"},
		"closed with the record written": {
			isRecord("update"), 1, closes, "was reverted in the meantime",
		},
		"its ConfigMap deleted": {isList, 1, deletes, "or its ConfigMap was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, pod("web-1", "gpu-1"))
			seen := 0
			w.client = w.server.Client(ledgertest.Hooks{Before: func(c ledgertest.Call) error {
				if !test.when(c) {
					return nil
				}
				if seen++; seen == test.nth {
					return test.what(t, w)
				}
				return nil
			}})
			_, errOut, err := w.switching(t, "arm", func(a *arming) { a.fault = &cudafault.Fault{Error: 719} })
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "not found") {
				t.Errorf("%v, want %q\n%s", err, test.want, errOut)
			}
			if file, err := cudashim.ReadState(t.Context(), w.client, namespace, runID); err == nil {
				if s, err := cudafault.DecodeState(file); err != nil || s.Generation != w.state.Generation {
					t.Errorf("it was armed nevertheless: %v, %+v", err, s)
				}
			}
			if run, err := w.store().Get(t.Context(), runID); err != nil || run.Summary != w.run.Summary ||
				string(run.Steps[0].Detail) != string(w.run.Steps[0].Detail) {
				t.Errorf("the record: %v, %q, %s", err, run.Summary, run.Steps[0].Detail)
			}
		})
	}
}

// The record is written before the state, so that no fault is there of which the record knows nothing.
func TestArmWritesTheRecordFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, pod("web-1", "gpu-1"))
	var order []string
	w.client = w.server.Client(ledgertest.Hooks{After: func(c ledgertest.Call) error {
		if c.Verb == "update" && c.Resource == "configmaps" {
			order = append(order, c.Name)
		}
		return nil
	}})
	if _, errOut, err := w.switching(t, "arm", nil); err != nil {
		t.Fatalf("%v\n%s", err, errOut)
	}
	if want := []string{runID, cudashim.Name(runID)}; !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
}

// A dry run by the API server needs no right beyond those of the roles, which have no patch of ConfigMaps.
func TestServerDryRun(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"arm", "disarm"} {
		w := newWorld(t, nil, pod("web-1", "gpu-1"))
		recorded := w.server.Client(ledgertest.Hooks{})
		w.client = recorded
		out, errOut, err := w.switching(t, verb, func(a *arming) { a.dryRun, a.yes = "server", false })
		if err != nil || out != "run/"+runID+" "+verb+"ed (server dry run)\n" {
			t.Errorf("%v\n%s%s", err, out, errOut)
		}
		tried := 0
		for _, action := range recorded.Actions() {
			if action.GetResource().Resource != "configmaps" || action.GetVerb() == "get" {
				continue
			}
			update, ok := action.(clienttesting.UpdateActionImpl)
			if !ok || !slices.Equal(update.UpdateOptions.DryRun, []string{metav1.DryRunAll}) {
				t.Errorf("%s: it sent %+v", verb, action)
				continue
			}
			tried++
		}
		if tried != 1 {
			t.Errorf("%s: it was tried %d times", verb, tried)
		}
	}
}
