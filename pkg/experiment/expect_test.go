package experiment

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/reaction"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

func seconds(n int) scenario.Duration { return scenario.Duration(time.Duration(n) * time.Second) }

// observe plays reactions at their seconds after the proof of a fault, and returns the verdicts.
func observe(
	t *testing.T, targets []string, play map[int][]reaction.Reaction, expect, not []Expectation,
) (verdicts []Verdict) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := NewObserver(targets)
		o.Begin()
		proof := time.Now()
		for at, all := range play {
			go func() {
				time.Sleep(time.Duration(at) * time.Second)
				for i := range all {
					all[i].Time = time.Now()
				}
				o.News(reaction.News{Reactions: all})
			}()
		}
		o.Proven(proof, "proven")
		var err error
		if verdicts, err = o.Expect(context.Background(), expect, not); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // what comes too late is still observed
		verdicts = o.Verdicts()
	})
	return verdicts
}

// Every way in which an expectation can end.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	cordon := func(by string) reaction.Reaction {
		return reaction.Reaction{Name: reaction.Cordoned, Node: "a", By: by, Who: reaction.Who(by)}
	}
	for name, c := range map[string]struct {
		play  map[int][]reaction.Reaction
		x     Expectation
		not   bool
		state State
		after float64
		text  string
	}{
		"in time": {
			play: map[int][]reaction.Reaction{3: {cordon("fault-quarantine")}},
			x:    Expectation{Name: "cordoned", Within: seconds(60)}, state: StateOK, after: 3,
		},
		"late": {
			play: map[int][]reaction.Reaction{61: {cordon("fault-quarantine")}},
			x:    Expectation{Name: "cordoned", Within: seconds(60)}, state: StateLate, after: 61,
		},
		"missing": {
			x: Expectation{Name: "cordoned", Within: seconds(60)}, state: StateMissing,
		},
		"by a person": {
			play: map[int][]reaction.Reaction{3: {cordon("kubectl-cordon")}},
			x:    Expectation{Name: "cordoned", Within: seconds(60)}, state: StateMissing,
			text: "cordoned by a person (kubectl-cordon) after 3.0 s, which does not count",
		},
		"by somebody else than expected": {
			play: map[int][]reaction.Reaction{3: {cordon("karpenter")}},
			x:    Expectation{Name: "cordoned", By: "NVSentinel", Within: seconds(60)}, state: StateMissing,
			text: "cordoned by karpenter after 3.0 s, which does not count",
		},
		"by a person, then by the system": {
			play: map[int][]reaction.Reaction{3: {cordon("kubectl-cordon")}, 9: {cordon("fault-quarantine")}},
			x:    Expectation{Name: "cordoned", By: "nvsentinel", Within: seconds(60)}, state: StateOK, after: 9,
		},
		"by anybody": {
			play: map[int][]reaction.Reaction{3: {cordon("kubectl-cordon")}},
			x:    Expectation{Name: "cordoned", By: "any", Within: seconds(60)}, state: StateOK, after: 3,
		},
		"another node": {
			play: map[int][]reaction.Reaction{3: {{Name: reaction.Cordoned, Node: "other", By: "x"}}},
			x:    Expectation{Name: "cordoned", Within: seconds(60)}, state: StateMissing,
		},
		"must not, and does not": {
			x: Expectation{Name: "cordoned", For: seconds(60)}, not: true, state: StateOK,
		},
		"must not, but does": {
			play: map[int][]reaction.Reaction{59: {cordon("fault-quarantine")}},
			x:    Expectation{Name: "cordoned", For: seconds(60)}, not: true, state: StateHappened, after: 59,
		},
		"must not, and does only afterwards": {
			play: map[int][]reaction.Reaction{61: {cordon("fault-quarantine")}},
			x:    Expectation{Name: "cordoned", For: seconds(60)}, not: true, state: StateOK,
		},
		"a pod of others": {
			play: map[int][]reaction.Reaction{3: {{Name: reaction.PodFailed, Node: "a", Pod: "demo/web-1"}}},
			x:    Expectation{Name: "pod-failed", Pod: "demo/train-*", Within: seconds(60)}, state: StateMissing,
		},
		"a pod of ours": {
			play: map[int][]reaction.Reaction{3: {{Name: reaction.PodFailed, Node: "a", Pod: "demo/train-1"}}},
			x:    Expectation{Name: "pod-failed", Pod: "demo/train-*", Within: seconds(60)}, state: StateOK, after: 3,
		},
		"an own name": {
			play: map[int][]reaction.Reaction{3: {cordon("fault-quarantine")}},
			x:    Expectation{Name: "closed", Reaction: "cordon", Within: seconds(60)}, state: StateOK, after: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expect, not := []Expectation{c.x}, []Expectation(nil)
			if c.not {
				expect, not = not, expect
			}
			got := observe(t, []string{"a"}, c.play, expect, not)
			if len(got) != 1 || got[0].State != c.state || got[0].After != c.after ||
				got[0].OK != (c.state == StateOK) || c.text != "" && got[0].Text != c.text {
				t.Errorf("%+v", got)
			}
		})
	}
}

// Where pods must leave the node, a container that was only restarted on it does not serve again: it is on the broken
// GPU, and the drain has yet to come.
func TestServedByAReplacement(t *testing.T) {
	t.Parallel()
	play := func() map[int][]reaction.Reaction {
		return map[int][]reaction.Reaction{
			1: {{Name: reaction.Served, Node: "a", Pod: "ml/old", Restarted: true}},
			5: {{Name: reaction.Drained, Node: "a"}},
			9: {{Name: reaction.Served, Node: "a", Pod: "ml/new"}},
		}
	}
	served := Expectation{Name: "served", Within: seconds(60)}
	drained := Expectation{Name: "drained", Within: seconds(60)}
	if got := observe(t, []string{"a"}, play(), []Expectation{served}, nil); got[0].After != 1 {
		t.Errorf("nothing is said of a drain, and the restarted pod does not count: %+v", got)
	}
	for _, list := range [][]Expectation{{drained, served}, {served, drained}} {
		for _, v := range observe(t, []string{"a"}, play(), list, nil) {
			if want := map[string]float64{"drained": 5, "served": 9}[v.Name]; v.State != StateOK || v.After != want {
				t.Errorf("%s after %.0f s, want %.0f: %+v", v.Name, v.After, want, v)
			}
		}
	}
	missing := play()
	delete(missing, 9)
	got := observe(t, []string{"a"}, missing, []Expectation{served, drained}, nil)
	if want := "served by the restarted pod ml/old after 1.0 s, which does not count"; got[0].State != StateMissing ||
		got[0].Text != want {
		t.Errorf("%+v, want %q", got[0], want)
	}
}

// An expectation about several targets is met when the last one has reacted.
func TestAllTargets(t *testing.T) {
	t.Parallel()
	on := func(node string) []reaction.Reaction {
		return []reaction.Reaction{{Name: reaction.Cordoned, Node: node, By: "fault-quarantine"}}
	}
	x := []Expectation{{Name: "cordoned", Within: seconds(60)}}
	got := observe(t, []string{"a", "b"}, map[int][]reaction.Reaction{2: on("a"), 5: on("b")}, x, nil)
	if got[0].State != StateOK || got[0].After != 5 {
		t.Errorf("%+v", got)
	}
	got = observe(t, []string{"a", "b"}, map[int][]reaction.Reaction{2: on("a")}, x, nil)
	if got[0].State != StateMissing || got[0].Text != "only on 1 target" {
		t.Errorf("%+v", got)
	}
}

func taint(key string) map[string]any {
	return map[string]any{"spec": map[string]any{"taints": []any{map[string]any{"key": key}}}}
}

// Nodes: a part of the object, and an expression over all nodes.
func TestNodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		x   map[string]any
		not bool
		ok  bool
	}{
		"a part":                {x: map[string]any{"spec": map[string]any{"unschedulable": true}}, ok: true},
		"another value":         {x: map[string]any{"spec": map[string]any{"unschedulable": false}}, ok: true}, // before
		"an item of a list":     {x: taint("sick"), ok: true},
		"not an item of a list": {x: taint("well")},
		"an expression":         {x: map[string]any{"cel": "node.name == target.node && node.spec.unschedulable"}, ok: true},
		"of another node":       {x: map[string]any{"cel": "node.name != target.node && node.spec.unschedulable"}},
		"a field that is not there": {
			x: map[string]any{"cel": "node.spec.nothing == 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := NewObserver([]string{"a"})
				node := func(name string, closed bool) *corev1.Node {
					n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
					if n.Spec.Unschedulable = closed; closed {
						n.Spec.Taints = []corev1.Taint{{Key: "sick", Value: "yes"}}
					}
					return n
				}
				o.News(reaction.News{Node: node("a", false)})
				o.News(reaction.News{Node: node("b", false)})
				o.Begin()
				o.Proven(time.Now(), "")
				time.AfterFunc(time.Second, func() { o.News(reaction.News{Node: node("a", true)}) })
				got, err := o.Expect(t.Context(), []Expectation{{Name: "x", Node: c.x, Within: seconds(10)}}, nil)
				if err != nil || got[0].OK != c.ok {
					t.Errorf("%+v, %v", got, err)
				}
			})
		})
	}
}

// Reactions between the injection and the proof belong to the fault; older ones do not.
func TestSinceTheInjection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := NewObserver([]string{"a"})
		seen := func() {
			o.News(reaction.News{Reactions: []reaction.Reaction{{
				Time: time.Now(), Name: reaction.Detected, Node: "a", By: "xid-monitor", Who: "node-problem-detector",
			}}})
		}
		x := []Expectation{{Name: "detected", By: "node-problem-detector", Within: seconds(5)}}
		seen()
		o.Begin()
		time.Sleep(time.Second)
		o.Proven(time.Now(), "")
		if got, _ := o.Expect(t.Context(), x, nil); got[0].OK {
			t.Errorf("an older reaction counts: %+v", got)
		}
		o.Begin()
		seen()
		time.Sleep(time.Second)
		o.Proven(time.Now(), "")
		if got, _ := o.Expect(t.Context(), x, nil); !got[0].OK || got[0].After != -1 {
			t.Errorf("%+v", got)
		}
	})
}

// An interruption says what was not observed.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := NewObserver([]string{"a"})
	o.Proven(time.Now(), "")
	got, err := o.Expect(ctx, []Expectation{{Name: "detected", Within: seconds(5)}},
		[]Expectation{{Name: "cordoned", For: seconds(5)}})
	if err != nil || got[0].State != StateUnknown || got[1].State != StateUnknown {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBadExpectations(t *testing.T) {
	t.Parallel()
	for want, x := range map[string]Expectation{
		"within is missing":          {Name: "cordoned"},
		"for is not supported here":  {Name: "cordoned", Within: 1, For: 1},
		"did you mean cordoned?":     {Name: "cordonned", Within: 1},
		"only one of reaction":       {Name: "a", Within: 1, Reaction: "cordon", Node: map[string]any{"spec": 1}},
		"by requires a reaction":     {Name: "a", Within: 1, By: "x", Node: map[string]any{"spec": 1}},
		"pod requires a reaction":    {Name: "a", Within: 1, Pod: "a/b", Node: map[string]any{"spec": 1}},
		"pod must be NAMESPACE/NAME": {Name: "evicted", Within: 1, Pod: "b"},
		"must be an expression":      {Name: "a", Within: 1, Node: map[string]any{"cel": 1}},
		"node.cel: ":                 {Name: "a", Within: 1, Node: map[string]any{"cel": "node."}},
		"must have a name":           {Within: 1},
		"and the only key":           {Name: "a", Within: 1, Node: map[string]any{"cel": "true", "spec": 1}},
	} {
		_, err := prepare([]Expectation{x}, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; wanted %q", x, err, want)
		}
	}
	if _, err := prepare(nil, []Expectation{{Name: "cordoned", Within: 1}}); err == nil {
		t.Error("expect-not without for")
	}
}

// Pods that this tool replaces may terminate after the proof, for example if their program ignores SIGTERM. This is not
// a reaction. What happens to the new pods is.
func TestReplacedPodsAreNoReaction(t *testing.T) {
	t.Parallel()
	o := NewObserver([]string{"a"})
	of := func(name reaction.Name, uid types.UID) reaction.News {
		return reaction.News{Reactions: []reaction.Reaction{{
			Time: time.Now(), Name: name, Node: "a", Pod: "team/train-0", UID: uid, // of a StatefulSet
		}}}
	}
	o.Begin()
	o.News(of(reaction.Evicted, "old"))
	o.RolledOut()
	o.Proven(time.Now(), "cuda inject")
	state := func(within time.Duration) State {
		all, err := o.Expect(t.Context(), nil, []Expectation{{
			Name: "x", Reaction: "pod-failed", For: scenario.Duration(within),
		}})
		if err != nil {
			t.Fatal(err)
		}
		return all[0].State
	}
	o.News(of(reaction.PodFailed, "old"))
	if got := state(50 * time.Millisecond); got != StateOK {
		t.Errorf("the old pod's end is %s", got)
	}
	o.News(of(reaction.PodFailed, "new"))
	if got := state(time.Minute); got != StateHappened {
		t.Errorf("the new pod's failure is %s", got)
	}
}
