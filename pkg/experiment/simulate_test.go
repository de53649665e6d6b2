package experiment

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cordon"
)

// fakeRemediator cordons nodes of a world, under the name of the real one.
type fakeRemediator struct {
	*world
	t     *testing.T
	fails error
}

func (f fakeRemediator) Cordon(_ context.Context, node string) (string, error) {
	if f.fails != nil {
		return "", f.fails
	}
	f.did("cordon " + node)
	f.set(node, true)
	return "cordon-" + node, nil
}

func (f fakeRemediator) Drain(_ context.Context, node string) ([]string, error) {
	f.did("drain " + node)
	return []string{"team/lone"}, nil
}

func (f fakeRemediator) set(name string, cordoned bool) {
	nodes := f.client.CoreV1().Nodes()
	node, err := nodes.Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Error(err)
		return
	}
	node.Spec.Unschedulable = cordoned
	writer := metav1.UpdateOptions{FieldManager: cordon.Manager("xid-abc234")}
	if _, err := nodes.Update(context.Background(), node, writer); err != nil {
		f.t.Error(err)
	}
}

func remediated(t *testing.T, fails error) *world {
	t.Helper()
	w := newWorld(t)
	remediator := fakeRemediator{w, t, fails}
	w.Remediator = remediator
	revert := w.Lab.Revert
	w.Lab.Revert = func(ctx context.Context, id string) error {
		if node, is := strings.CutPrefix(id, "cordon-"); is {
			remediator.set(node, false)
		}
		return revert(ctx, id)
	}
	return w
}

// The simulated remediator does its steps after the fault, what it does counts, and its cordon does not outlive the
// experiment.
func TestSimulatedRemediation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		steps string
		more  string
		lines []string
	}{
		"stays cordoned until the end": {
			"[cordon, drain]", "- expect-not: [{name: uncordoned, for: 300ms}]\n",
			[]string{"xid 79 a", "cordon a", "drain a", "revert run-79", "revert cordon-a"},
		},
		"uncordons": {
			"[cordon, uncordon]", "- expect: [{name: uncordoned, within: 10s}]\n",
			[]string{"xid 79 a", "cordon a", "revert cordon-a", "revert run-79"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := remediated(t, nil)
			r, err := w.Play(t.Context(), parse(t, "simulateRemediation: "+c.steps+`
steps:
- inject: {xid: 79}
- expect: [{name: cordoned, within: 10s}]
`+c.more), []string{"a"})
			if err != nil || !r.Passed || !slices.Equal(w.lines, c.lines) {
				t.Fatalf("%v, %q\n%+v", err, w.lines, r)
			}
			if by := r.Verdicts[0].By; by != "simulated remediation (gpu-fault-cordon-xid-abc234)" {
				t.Errorf("cordoned by %q", by)
			}
			if !slices.Contains(r.Runs, "cordon-a") {
				t.Errorf("the runs are %q", r.Runs)
			}
		})
	}
}

// An experiment that ends while the node is being uncordoned waits for that, and leaves nothing behind.
func TestSimulatedRemediationEndsWithTheExperiment(t *testing.T) {
	t.Parallel()
	w := remediated(t, nil)
	revert := w.Lab.Revert
	w.Lab.Revert = func(ctx context.Context, id string) error {
		if strings.HasPrefix(id, "cordon-") {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(200 * time.Millisecond): // the experiment ends meanwhile
			}
		}
		return revert(ctx, id)
	}
	r, err := w.Play(t.Context(), parse(t, `
simulateRemediation: [cordon, uncordon]
steps:
- inject: {xid: 79}
- expect: [{name: cordoned, within: 10s}]
`), []string{"a"})
	if err != nil || !r.Passed || len(r.LeftBehind) > 0 || !slices.Contains(w.lines, "revert cordon-a") {
		t.Errorf("%v, %q\n%+v", err, w.lines, r)
	}
}

// Without a detector, a remediation that begins with one does not begin: the cordon is missing.
func TestSimulatedRemediationWaitsForADetector(t *testing.T) {
	t.Parallel()
	w := remediated(t, nil)
	e := parse(t, `
simulateRemediation: [detect, cordon]
steps:
- inject: {xid: 79}
- expect: [{name: cordoned, within: 300ms}]
`)
	r, _ := w.Play(t.Context(), e, []string{"a"})
	if r.Passed || slices.Contains(w.lines, "cordon a") {
		t.Errorf("%q\n%+v", w.lines, r)
	}
	w = remediated(t, nil)
	inject := w.Lab.Command
	w.Lab.Command = func(ctx context.Context, line []string) (string, error) {
		_, err := w.client.CoreV1().Events("default").Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: "xid", Namespace: "default", UID: "1"},
			InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "a"}, Type: corev1.EventTypeWarning,
			Reason: "Xid", Source: corev1.EventSource{Component: "node-problem-detector"},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Error(err)
		}
		return inject(ctx, line)
	}
	e.Steps[1].Expect[0].Within = e.Steps[1].Expect[0].Within * 40
	if r, _ = w.Play(t.Context(), e, []string{"a"}); !r.Passed {
		t.Errorf("%q\n%+v", w.lines, r)
	}
}

// A remediation that fails is on the timeline, and what depends on it is missing.
func TestSimulatedRemediationFails(t *testing.T) {
	t.Parallel()
	w := remediated(t, errors.New("nodes are forbidden"))
	r, _ := w.Play(t.Context(), parse(t, `
simulateRemediation: [cordon]
steps:
- inject: {xid: 79}
- expect: [{name: cordoned, within: 300ms}]
`), []string{"a"})
	said := slices.ContainsFunc(r.Timeline, func(e Entry) bool {
		return e.What == WhatSimulated && strings.Contains(e.Text, "nodes are forbidden")
	})
	if r.Passed || !said {
		t.Errorf("%+v", r)
	}
}

// Unknown steps, another order, and steps without a cordon are errors of the file.
func TestBadSimulations(t *testing.T) {
	t.Parallel()
	for steps, says := range map[string]string{
		"[cordn]":          `unknown step "cordn"`,
		"[drain, cordon]":  "must be in the order",
		"[cordon, cordon]": "without repetition",
		"[detect, drain]":  "requires the cordon step",
	} {
		_, err := Parse("f", []byte(head+"simulateRemediation: "+steps+"\nsteps: [{inject: {xid: 79}}]"))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", steps, err)
		}
	}
}

// The runs of the simulated remediation are none of the experiment's faults: ${run} is that of the last fault.
func TestSimulatedRemediationIsNoFault(t *testing.T) {
	t.Parallel()
	w := remediated(t, nil)
	r, err := w.Play(t.Context(), parse(t, `
simulateRemediation: [cordon]
steps:
- inject: {xid: 79}
- expect: [{name: cordoned, within: 10s}]
- inject: {command: [cuda, disarm, "${run}"]}
`), []string{"a"})
	if err != nil || !r.Passed || !slices.Contains(w.lines, "cuda disarm run-79") {
		t.Errorf("%v, %q\n%+v", err, w.lines, r)
	}
}

// A lab that lacks what the experiment needs injects nothing.
func TestLabWithoutWhatIsNeeded(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"simulateRemediation: [cordon]\n":      "Lab.Remediator is not set",
		"load: [{name: x, url: 'http://a'}]\n": "Lab.Load is not set",
	} {
		w := newWorld(t)
		_, err := w.Play(t.Context(), parse(t, text+"steps: [{inject: {xid: 79}}]"), []string{"a"})
		if err == nil || !strings.Contains(err.Error(), says) || len(w.lines) > 0 {
			t.Errorf("%v, %q", err, w.lines)
		}
	}
}
