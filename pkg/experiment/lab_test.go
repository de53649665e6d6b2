package experiment

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario/check"
)

// world is a cluster of nodes a, b and c, in which commands do nothing but open a run.
type world struct {
	*Lab
	client *fake.Clientset

	mu    sync.Mutex
	lines []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{client: fake.NewClientset()}
	for _, name := range []string{"a", "b", "c"} {
		if err := w.client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	w.Lab = &Lab{
		Client: w.client, Say: func(string, ...any) {},
		Command: func(_ context.Context, line []string) (string, error) {
			w.did(strings.Join(line, " "))
			return "run-" + line[1], nil
		},
		Revert: func(_ context.Context, id string) error {
			w.did("revert " + id)
			return nil
		},
		Run: func(_ context.Context, id string) (*ledger.Run, error) {
			return &ledger.Run{ID: id, Steps: []ledger.Step{{State: ledger.StateProven, Ended: time.Now()}}}, nil
		},
		Check: func(_ context.Context, all []scenario.Check) ([]check.Result, error) {
			return []check.Result{{Name: all[0].Name, OK: all[0].Expect == "true", Message: "it is not"}}, nil
		},
	}
	return w
}

func (w *world) did(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, line)
}

func (w *world) cordon(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		node, err := w.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		node.Spec.Unschedulable = true
		if _, err := w.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func parse(t *testing.T, text string) *Experiment {
	t.Helper()
	e, err := Parse("f", []byte(head+text))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Steps run in order, and everything is reverted in reverse order.
func TestPlay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := parse(t, `
steady: [{name: fine, exec: {namespace: a, labels: a=b, command: [a]}, expect: "true"}]
steps:
- inject: {xid: 79}
- inject: {device: unhealthy}
- revert: {}
- parallel:
  - inject: {xid: 48}
  - wait: 1ms
- expect: [{name: again, steady: fine, within: 5s}]
- expect-not:
  - {name: never, for: 1ms, check: {exec: {namespace: a, labels: a=b, command: [a]}, expect: "false"}}
`)
	r, _ := w.Play(t.Context(), e, []string{"a"})
	want := []string{
		"xid 79 a", "device unhealthy a", "revert run-unhealthy", "revert run-79", "xid 48 a", "revert run-48",
	}
	runs := []string{"run-79", "run-unhealthy", "run-48"}
	if !r.Passed || !slices.Equal(w.lines, want) || !slices.Equal(r.Runs, runs) {
		t.Errorf("%q\n%+v", w.lines, r)
	}
}

// Whatever fails, what was injected is reverted; what cannot be is left behind, and said.
func TestPlayFails(t *testing.T) {
	t.Parallel()
	twice := "steps:\n- inject: {xid: 79}\n- inject: {xid: 48}\n"
	t.Run("a fault", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		command := w.Command
		w.Command = func(ctx context.Context, line []string) (string, error) {
			if id, err := command(ctx, line); line[1] == "79" {
				return id, err
			}
			return "run-half", errors.New("it broke")
		}
		r, err := w.Play(t.Context(), parse(t, twice), []string{"a"})
		if err == nil || r.Passed || !strings.Contains(r.Error, "xid 48 a: it broke") ||
			!slices.Equal(w.lines, []string{"xid 79 a", "xid 48 a", "revert run-half", "revert run-79"}) {
			t.Errorf("%q %+v", w.lines, r)
		}
	})
	t.Run("a revert", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.Revert = func(_ context.Context, id string) error {
			w.did("revert " + id)
			return errors.New("the node is gone")
		}
		r, err := w.Play(t.Context(), parse(t, twice), []string{"a"})
		if err != nil || r.Passed || len(r.LeftBehind) != 2 ||
			!strings.Contains(r.LeftBehind[0], "run run-48: the node is gone") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("the steady state", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		steady := `steady: [{name: fine, exec: {namespace: a, labels: a=b, command: [a]}, expect: "false"}]` + "\n"
		r, err := w.Play(t.Context(), parse(t, steady+twice), []string{"a"})
		if err != nil || r.Passed || len(w.lines) > 0 ||
			!strings.Contains(r.Error, "nothing was injected: fine: it is not") {
			t.Errorf("%q %+v", w.lines, r)
		}
	})
	t.Run("an interruption", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		w.Say = func(format string, _ ...any) {
			if strings.HasPrefix(format, "waiting") {
				cancel(errors.New("interrupted"))
			}
		}
		r, _ := w.Play(ctx, parse(t, twice+"- expect: [{name: cordoned, within: 1h}]\n"), []string{"a"})
		if r.Passed || r.Error != "interrupted" || r.Verdicts[0].State != StateUnknown ||
			!slices.Equal(w.lines[2:], []string{"revert run-48", "revert run-79"}) {
			t.Errorf("%q %+v", w.lines, r)
		}
	})
	t.Run("too many cordoned nodes", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.Say = func(format string, _ ...any) {
			if strings.HasPrefix(format, "waiting") {
				w.cordon(t, "a", "c")
			}
		}
		r, err := w.Play(t.Context(), parse(t, "abort: {nodesUnschedulable: 1}\n"+twice+
			"- expect: [{name: drained, within: 1h}]\n"), []string{"a"})
		why := "the limit for cordoned nodes is 1, and these nodes were cordoned: a, c"
		if err != nil || r.Passed || !strings.Contains(r.Error, why) ||
			len(w.lines) != 4 {
			t.Errorf("%q %+v", w.lines, r)
		}
	})
}

// A reaction to the first layer of a fault counts, although the last one is proven later; the rollout of the shim does
// not.
func TestLayersAreOneFault(t *testing.T) {
	t.Parallel()
	o := NewObserver([]string{"a"})
	began := time.Now()
	o.Begin()
	for _, name := range []reaction.Name{reaction.Detected, reaction.Served} {
		o.News(reaction.News{Reactions: []reaction.Reaction{{Time: began, Name: name, Node: "a", By: "npd"}}})
	}
	o.Proven(began, "kernel")
	o.RolledOut()
	o.Proven(began.Add(time.Millisecond), "cuda")
	got, err := o.Expect(t.Context(), []Expectation{
		{Name: "detected", Within: seconds(1)}, {Name: "served", Within: scenario.Duration(time.Millisecond)},
	}, nil)
	if err != nil || !got[0].OK || got[1].State != StateMissing {
		t.Errorf("%+v, %v", got, err)
	}
}

// What our own revert does is not a late reaction.
func TestRevertIsNoReaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := make(chan struct{})
	w.Show = func(e Entry) {
		if e.What == string(reaction.Cordoned) {
			close(seen)
		}
	}
	w.Revert = func(context.Context, string) error {
		w.cordon(t, "a")
		<-seen
		return nil
	}
	r, _ := w.Play(t.Context(), parse(t, "steps:\n- inject: {xid: 79}\n"+
		"- expect: [{name: cordoned, within: 1ms, by: any}]\n- revert: {}\n"), []string{"a"})
	if r.Verdicts[0].State != StateMissing {
		t.Errorf("%+v", r.Verdicts)
	}
}

// A storm does not fill the memory, and is still counted.
func TestStorm(t *testing.T) {
	t.Parallel()
	o := NewObserver([]string{"a"})
	o.Begin()
	o.Proven(time.Now(), "")
	r := reaction.Reaction{Time: time.Now(), Name: reaction.Detected, Node: "a", By: "npd"}
	for range maxEntries + 5 {
		o.News(reaction.News{Reactions: []reaction.Reaction{r}})
	}
	if got := o.Result("", time.Now(), nil); len(got.Timeline) != maxEntries || got.Omitted != 6 {
		t.Errorf("%d entries, %d omitted", len(got.Timeline), got.Omitted)
	}
}

// What must not hold, and does, is reported with its time.
func TestCheckThatMustNotHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.Play(t.Context(), parse(t, `
steady: [{name: fine, exec: {namespace: a, labels: a=b, command: [a]}, expect: "true"}]
steps:
- inject: {xid: 79}
- expect-not: [{name: zombie, steady: fine, for: 5s}]
`), []string{"a"})
	if r.Passed || r.Verdicts[0].State != StateHappened {
		t.Errorf("%+v", r)
	}
}

// Repeated rounds are one result.
func TestRepeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.Play(t.Context(), parse(t, "repeat: 2\nsteps:\n- inject: {xid: 79}\n"+
		"- expect-not: [{name: cordoned, for: 1ms}]\n"), []string{"a"})
	if !r.Passed || len(w.lines) != 4 || len(r.Verdicts) != 2 || r.Verdicts[1].Name != "cordoned (2)" {
		t.Errorf("%q %+v", w.lines, r)
	}
}

// A preparation replaces the pods of the workload: what follows is on the nodes where they run then, and reactions
// there count. Injections at the same time are one fault, and ${run} is that of the preparation.
func TestPreparationMovesTheTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Lab.Targets = func(context.Context) ([]string, error) { return []string{"b"}, nil }
	inject := w.Lab.Command
	w.Lab.Command = func(ctx context.Context, line []string) (string, error) {
		if line[0] == "xid" {
			w.cordon(t, "b")
		}
		return inject(ctx, line)
	}
	r, err := w.Play(t.Context(), parse(t, `
target: {podsOf: deployment/a, namespace: team}
steps:
- inject: {command: [cuda, inject, "${target.podsOf}", --disarmed]}
- parallel:
  - inject: {xid: 79}
  - inject: {command: [cuda, arm, "${run}", "--only-on-node=${target.node}"]}
- expect: [{name: cordoned, within: 10s, by: any}]
`), []string{"a"})
	slices.Sort(w.lines)
	want := []string{
		"cuda arm run-inject --only-on-node=b", "cuda inject deployment/a --disarmed", "revert run-79",
		"revert run-arm", "revert run-inject", "xid 79 b",
	}
	if err != nil || !r.Passed || !slices.Equal(w.lines, want) || !slices.Equal(r.Targets, []string{"b"}) {
		t.Errorf("%v, %q\n%+v", err, w.lines, r)
	}
}

// After a revert that failed, nothing counts as reverted: the experiment ends, and says what is left.
func TestRevertStepFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Lab.Revert = func(context.Context, string) error { return errors.New("the node is away") }
	r, err := w.Play(t.Context(), parse(t, `
steps:
- inject: {xid: 79}
- revert: {}
- inject: {xid: 48}
`), []string{"a"})
	if err == nil || r.Passed || len(r.LeftBehind) != 1 || slices.Contains(w.lines, "xid 48 a") {
		t.Errorf("%v, %q\n%+v", err, w.lines, r)
	}
}
