package exercise

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// An exercise that starts is remembered with all that another machine needs, phase by phase, and holds its namespace.
func TestStartHandsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainer := w.trainer("laptop")
	var phases []string
	w.at = func(what string) {
		if all, err := trainer.List(context.Background()); err == nil && len(all) == 1 {
			phases = append(phases, string(all[0].Phase)+": "+what)
		}
		w.pass(time.Second)
	}
	e, err := trainer.Start(t.Context(), w.play(), StartOptions{For: 20 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Starting: made the team's namespace", "Starting: check the store runs", "Healthy: made the page",
		"Injected: check the page's pods cannot start",
		"Broken: made rights", "Broken: capture", "Broken: issue",
	}
	if !slices.Equal(phases, want) {
		t.Errorf("%s", strings.Join(phases, "\n"))
	}
	if e.Phase != InProgress || string(e.Kubeconfig) != "kubeconfig" || e.By != "alice" || e.From != "laptop" ||
		e.HintsLeft != 2 || e.Minutes != 20 {
		t.Errorf("%+v", e)
	}
	if !e.Created.Before(e.HealthyAt) || !e.HealthyAt.Before(e.InjectedAt) || !e.InjectedAt.Before(e.BrokenAt) ||
		!e.BrokenAt.Before(e.Started) || e.Until.Sub(e.Started) != 20*time.Minute {
		t.Errorf("%+v", e)
	}
	if locks := w.locks(); !slices.Contains(locks, "Namespace/harbour") {
		t.Errorf("locked: %q", locks)
	}

	elsewhere, r, err := w.trainer("desktop").load(t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	if elsewhere.Kubeconfig != nil || elsewhere.Snapshots[snapBefore] == 0 || elsewhere.Snapshots[snapBegin] == 0 ||
		r.Sealed.RootCause.Component.Value != "workload" || r.Seed != 1 {
		t.Errorf("%+v %+v", elsewhere, r.Sealed.RootCause)
	}
	if _, is := r.Setup[0].Create.Objects[3]["spec"].(map[string]any)["replicas"].(int64); !is {
		t.Errorf("a whole number is a %T after it was stored",
			r.Setup[0].Create.Objects[3]["spec"].(map[string]any)["replicas"])
	}
}

// Whatever moment Ctrl-C comes at, everything is put back, nothing is held, and the exercise says that it failed.
func TestCancelledInEveryPhase(t *testing.T) {
	t.Parallel()
	for _, moment := range []string{
		"made the team's namespace", "check the store runs", "made the page", "check the page's pods cannot start",
		"made rights", "capture", "issue",
	} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			trainer := w.trainer("laptop")
			ctx, cancel := context.WithCancel(t.Context())
			first := true
			w.at = func(what string) {
				if what == "capture" && first { // the first is before anything is changed
					first = false
					return
				}
				if what == moment {
					cancel()
				}
			}
			_, err := trainer.Start(ctx, w.play(), StartOptions{})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			wants(t, err, "everything was reverted")
			w.putBack(Failed)
		})
	}
}

// putBack holds that nothing is left of the only exercise there is but what is remembered of it.
func (w *world) putBack(phase Phase) {
	w.Helper()
	trainer := w.trainer("other")
	all, err := trainer.List(context.Background())
	if err != nil || len(all) != 1 || all[0].Phase != phase || all[0].Ended.IsZero() {
		w.Errorf("%+v, %v", all, err)
	}
	if left := w.left(); len(left) > 0 {
		w.Errorf("in place: %q", left)
	}
	if locks := w.locks(); len(locks) > 0 {
		w.Errorf("locked: %q", locks)
	}
	if secrets := w.secrets(); len(secrets) != 1 {
		w.Errorf("secrets: %q", secrets)
	}
	runs, err := trainer.Session.Ledger.List(context.Background(), ledger.All)
	if err != nil || len(runs.Runs) != 1 || !runs.Runs[0].IsClosed() {
		w.Errorf("%+v, %v", runs, err)
	}
}

// A lab that is not as the scenario says is put back, and the trainer reads which check did not hold and what it saw.
func TestLabThatDoesNotBecomeAsItMust(t *testing.T) {
	t.Parallel()
	for check, want := range map[string]string{
		"the store runs":               "the lab did not become healthy: the store runs: saw 0 of 2 pods",
		"the page's pods cannot start": "the lab did not become broken: the page's pods cannot start: saw 0 of 2 pods",
	} {
		w := newWorld(t)
		w.fails(check, true)
		_, err := w.trainer("laptop").Start(t.Context(), w.play(), StartOptions{})
		wants(t, err, want, "everything was reverted")
		if !errors.As(err, new(*CheckError)) {
			t.Errorf("%T", err)
		}
		w.putBack(Failed)
		e, err := w.trainer("laptop").List(t.Context())
		if err != nil || !strings.Contains(e[0].Message, want) {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

// A client that dies at any moment leaves an exercise that another machine ends.
func TestDeadInEveryPhase(t *testing.T) {
	t.Parallel()
	for _, moment := range []string{
		"made the team's namespace", "check the store runs", "made the page", "check the page's pods cannot start",
		"made rights", "capture", "issue",
	} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			trainer := w.trainer("laptop")
			first := true
			w.at = func(what string) {
				if what == "capture" && first {
					first = false
					return
				}
				if what == moment {
					trainer.dead.Store(true)
				}
			}
			if _, err := trainer.Start(t.Context(), w.play(), StartOptions{}); err == nil {
				t.Fatal("a dead client has started an exercise")
			}
			w.at = nil
			other := w.trainer("desktop")
			e, err := other.Get(t.Context(), "")
			if err != nil || !e.Running() {
				t.Fatalf("%+v, %v", e, err)
			}
			_, err = other.Grade(t.Context(), "")
			if !errors.As(err, new(*PhaseError)) {
				t.Errorf("graded before it was broken: %v", err)
			}
			other.world = w
			if _, err := other.End(t.Context(), "", EndOptions{Restore: true}); err != nil {
				t.Fatal(err)
			}
			w.putBack(Ended)
			if _, err := other.End(t.Context(), e.ID, EndOptions{Restore: true}); err != nil { // again
				t.Error(err)
			}
		})
	}
}

// Of two trainers who want the same namespace at the same moment one gets it, and the other reads who has it.
func TestTwoTrainersAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trainers := []*trainer{w.trainer("laptop"), w.trainer("desktop")}
	errs := make([]error, 2)
	var group sync.WaitGroup
	for i, trainer := range trainers {
		group.Go(func() { _, errs[i] = trainer.Start(t.Context(), w.play(), StartOptions{}) })
	}
	group.Wait()
	loser := errs[0]
	if loser == nil {
		loser = errs[1]
	} else if errs[1] != nil {
		t.Fatal(errors.Join(errs...))
	}
	wants(t, loser, "missing-settings", "alice", "harbour")
	_, err := trainers[0].Start(t.Context(), w.play(), StartOptions{})
	wants(t, err, "exercise scenario-", "missing-settings of alice", `uses namespace "harbour"`,
		"scenario end scenario-",
		"--seed")
	if !errors.As(err, new(*BusyError)) {
		t.Errorf("%T", err)
	}
}

// What stands in the way is told before anything is changed.
func TestPreflightRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		objects []string // namespaces that exist
		change  []string
		want    []string
	}{
		"a namespace that exists": {
			objects: []string{"harbour"},
			want:    []string{`namespace "harbour"`, "already exists", "--seed", "kubectl delete namespace harbour"},
		},
		"no GPUs": {
			change: []string{"requires: {nodes: 1}", "requires: {nodes: 2, gpus: 2}"},
			want:   []string{"requires 2 Ready, schedulable nodes with 2 nvidia.com/gpu", "GPU Operator"},
		},
		"a protected namespace": {
			change: []string{"[harbour, meadow, orchard, quarry, lagoon, thicket]", "[kube-system]"},
			want:   []string{"kube-system"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, namespace := range test.objects {
				object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
				if _, err := w.trainer("x").Client.CoreV1().Namespaces().Create(
					t.Context(), object, metav1.CreateOptions{},
				); err != nil {
					t.Fatal(err)
				}
			}
			trainer := w.trainer("laptop")
			r := w.play(test.change...)
			wants(t, trainer.Preflight(t.Context(), r), test.want...)
			_, err := trainer.Start(t.Context(), r, StartOptions{})
			wants(t, err, test.want...)
			if len(w.left())+len(w.secrets()) > 0 {
				t.Errorf("%q %q", w.left(), w.secrets())
			}
		})
	}
}

// A scenario that wants what can harm the cluster is not started by accident.
func TestConsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.play()
	r.Public.Access.NodeShell = true
	_, err := w.trainer("laptop").Start(t.Context(), r, StartOptions{})
	var refused *ConsentError
	if !errors.As(err, &refused) || len(refused.Wants) == 0 || len(w.left()) > 0 {
		t.Fatalf("%v, %q", err, w.left())
	}
	wants(t, err, "--yes alone does not allow")
}

// Who asks how much of a node is free gets told what is missing, and how to get it.
func TestGPURequirements(t *testing.T) {
	t.Parallel()
	nodes := func(gpus ...[2]int) (facts []scenario.NodeFacts) {
		for _, g := range gpus {
			facts = append(facts, scenario.NodeFacts{GPUs: g[0], FreeGPUs: g[1]})
		}
		return facts
	}
	for _, test := range []struct {
		requires scenario.Requires
		nodes    []scenario.NodeFacts
		want     string
	}{
		{scenario.Requires{}, nil, ""},
		{scenario.Requires{Nodes: 2, GPUs: 2}, nodes([2]int{2, 2}, [2]int{4, 2}), ""},
		{scenario.Requires{Nodes: 2, GPUs: 2}, nodes([2]int{2, 2}), "found only 1 (nodes with GPUs: 1)"},
		{scenario.Requires{Nodes: 2, GPUs: 2}, nodes([2]int{2, 2}, [2]int{1, 1}), "found only 1 (nodes with GPUs: 2)"},
		{scenario.Requires{Nodes: 2, GPUs: 2}, nodes([2]int{2, 2}, [2]int{2, 1}), "other pods use the rest"},
		{scenario.Requires{GPUs: 1}, nodes([2]int{0, 0}), "no node has GPUs"},
	} {
		err := enoughGPUs(test.requires, scenario.Facts{Nodes: test.nodes})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, not %q", test.requires, err, test.want)
		}
	}
}

func TestImageNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"docker.io/library/busybox:1.35": "busybox:1.35", "busybox": "busybox:latest",
		"registry:5000/a/b": "registry:5000/a/b:latest",
		"docker.io/a/b:2":   "a/b:2", "busybox@sha256:00": "busybox@sha256:00",
	} {
		if got := familiar(name); got != want {
			t.Errorf("%s: %s, not %s", name, got, want)
		}
	}
}

// GPUs that the lab simulates are advertised after the exercise is remembered and before anything needs them; they are
// the exercise's, and no other one can run beside it.
func TestSimulatedGPUsComeFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.play()
	r.Facts.Simulation = &scenario.Simulation{GPUs: 2, Nodes: []string{"b", "c"}}
	trainer := w.trainer("laptop")
	var made []string
	w.at = func(what string) {
		if action, is := strings.CutPrefix(what, "made "); is {
			made = append(made, action)
		}
	}
	e, err := trainer.Start(t.Context(), r, StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"label node b as having simulated GPUs", "advertise 2 simulated GPUs on node b",
		"label node c as having simulated GPUs",
		"advertise 2 simulated GPUs on node c", "the team's namespace", "the page", "rights",
	}
	if !slices.Equal(made, want) {
		t.Errorf("%q", made)
	}
	if !e.has(nodeRef("b")) || !e.has(nodeRef("c")) || e.has(nodeRef("a")) {
		t.Errorf("owned: %v", e.Owned)
	}
	if keys := keysOf(r); !slices.Contains(keys, keyGPUs) || !slices.Contains(keys, keyNodes) {
		t.Errorf("%q", keys)
	}
	if _, err := trainer.End(t.Context(), "", EndOptions{}); err != nil {
		t.Fatal(err)
	}
	if left := w.left(); len(left) > 0 {
		t.Errorf("in place: %q", left)
	}
}

// Advertised GPUs are patches of the nodes' status, which the trainer must be allowed, and which no control plane's
// node is refused.
func TestSimulatedGPUsArePatches(t *testing.T) {
	t.Parallel()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Node"}, meta.RESTScopeRoot)
	s := &start{
		lab: &Lab{Mapper: mapper, Dynamic: fake.NewSimpleDynamicClient(runtime.NewScheme())},
		r:   &scenario.Resolved{Facts: scenario.Facts{Simulation: &scenario.Simulation{GPUs: 2, Nodes: []string{"b"}}}},
	}
	if err := s.simulate(); err != nil {
		t.Fatal(err)
	}
	for _, need := range []fault.Permission{
		{Verb: "patch", Resource: "nodes"}, {Verb: "patch", Resource: "nodes/status"}, {Verb: "get", Resource: "nodes"},
	} {
		if !slices.Contains(s.plan.Needs, need) {
			t.Errorf("%s is not asked for", need)
		}
	}
	if len(s.plan.Changes) != 2 || len(s.plan.Checks) != 2 || !s.plan.Changes[0].Harmless ||
		!s.plan.Changes[1].Harmless {
		t.Errorf("%+v", s.plan)
	}
}

// On a busy cluster, a lab comes up late. Only checks that must hold at once do not wait.
func TestPatientChecks(t *testing.T) {
	t.Parallel()
	checks := []scenario.Check{{Within: scenario.Duration(time.Second)}, {}, {Within: scenario.Duration(time.Hour)}}
	got := patient(checks, startPatience)
	if got[0].Within != startPatience || got[1].Within != 0 || got[2].Within != checks[2].Within {
		t.Errorf("%v", got)
	}
	if checks[0].Within != scenario.Duration(time.Second) {
		t.Error("the scenario was changed")
	}
}
