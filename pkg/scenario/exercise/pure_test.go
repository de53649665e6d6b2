package exercise

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// The estimator is the share of samples of k tries in which one passed, over all samples.
func TestPassAt(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 8; n++ {
		for c := 0; c <= n; c++ {
			for k := 1; k <= n; k++ {
				passed, all := 0, 0
				for set := range 1 << n { // the first c tries are those that passed
					if bits(set) == k {
						all++
						if set&(1<<c-1) != 0 {
							passed++
						}
					}
				}
				if got, want := passAt(n, c, k), float64(passed)/float64(all); math.Abs(got-want) > 1e-12 {
					t.Errorf("n %d c %d k %d: %g, not %g", n, c, k, got, want)
				}
			}
		}
	}
	if got := passAt(1000, 1, 10); math.Abs(got-0.01) > 1e-9 {
		t.Errorf("%g", got)
	}
}

func bits(set int) (n int) {
	for ; set > 0; set &= set - 1 {
		n++
	}
	return n
}

// Values from R: prop.test(c, n, correct = FALSE).
func TestWilson(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		c, n      int
		low, high float64
	}{
		{0, 0, 0, 1}, {0, 10, 0, 0.2775328}, {10, 10, 0.7224672, 1}, {5, 10, 0.2365931, 0.7634069},
		{1, 100, 0.0017674, 0.0544862},
	} {
		low, high := wilson(test.c, test.n)
		if math.Abs(low-test.low) > 1e-5 || math.Abs(high-test.high) > 1e-5 {
			t.Errorf("%d of %d: %g to %g", test.c, test.n, low, high)
		}
	}
}

// Tries in which the lab failed count for nobody, and means are over those that count.
func TestSummary(t *testing.T) {
	t.Parallel()
	report := summarize("agent", []Try{
		{Scenario: "b", Passed: true, Score: 90, Took: time.Minute}, {Scenario: "a", Score: 20},
		{Scenario: "a", Passed: true, Score: 100, Took: 2 * time.Minute},
		{Scenario: "a", Invalid: "no cluster"}, {Scenario: "c", Invalid: "no cluster"},
	})
	if report.Tries != 3 || report.Passed != 2 || report.Invalid != 2 || len(report.Scenarios) != 3 ||
		len(report.PassAt) != 1 || math.Abs(report.PassAt[0]-0.75) > 1e-9 {
		t.Errorf("%+v", report)
	}
	if a := report.Scenarios[0]; a.Scenario != "a" || a.PassAt1 != 0.5 || len(a.PassAt) != 2 || a.PassAt[1] != 1 ||
		a.Score != 60 || a.Took != time.Minute {
		t.Errorf("%+v", a)
	}
	if _, err := json.Marshal(report); err != nil { // no NaN
		t.Error(err)
	}
}

// Jobs that share a key are never done at the same time, and all are done, whatever their order.
func TestRunJobs(t *testing.T) {
	t.Parallel()
	var (
		mu   sync.Mutex
		busy = map[string]bool{}
		told int
	)
	random := rand.New(rand.NewPCG(1, 2))
	var jobs []job
	meet := make(chan bool)
	for _, send := range []bool{true, false} { // these two end only when they run at the same time
		jobs = append(jobs, job{do: func() func() {
			if send {
				meet <- true
			} else {
				<-meet
			}
			return func() { told++ }
		}})
	}
	for range 200 {
		var keys []string
		for _, key := range []string{"a", "b", "c", "d"} {
			if random.IntN(3) == 0 {
				keys = append(keys, key)
			}
		}
		set := func(value bool) {
			mu.Lock()
			defer mu.Unlock()
			for _, key := range keys {
				if busy[key] == value {
					t.Errorf("%s is used twice at the same time", key)
				}
				busy[key] = value
			}
		}
		jobs = append(jobs, job{keys: keys, do: func() func() {
			set(true)
			for range 100 {
				runtime.Gosched() // lets others come in between
			}
			set(false)
			return func() { told++ }
		}})
	}
	runJobs(t.Context(), jobs, 4)
	if told != len(jobs) {
		t.Errorf("%d of %d told", told, len(jobs))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	runJobs(ctx, []job{{do: func() func() { t.Error("begun after the end"); return func() {} }}}, 2)
}

// applied is RFC 7386.
func applied(target map[string]any, patch map[string]any) map[string]any {
	for name, value := range patch {
		inner, isMap := value.(map[string]any)
		switch {
		case value == nil:
			delete(target, name)
		case isMap:
			old, _ := target[name].(map[string]any)
			if old == nil {
				old = map[string]any{}
			}
			target[name] = applied(old, inner)
		default:
			target[name] = value
		}
	}
	return target
}

// A patch that puts back really does, whatever was changed; and where nothing was it is empty.
func TestMergePatch(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	var value func(depth int) any
	object := func(depth int) map[string]any {
		o := map[string]any{}
		for _, name := range []string{"a", "b", "c"} {
			if random.IntN(2) == 0 {
				o[name] = value(depth)
			}
		}
		return o
	}
	value = func(depth int) any {
		switch n := random.IntN(5); {
		case n < 2 && depth > 0:
			return object(depth - 1)
		case n == 2:
			return []any{"x", int64(random.IntN(2))}
		}
		return int64(random.IntN(3))
	}
	for range 5000 {
		now, was := object(3), object(3)
		if got := applied(clone(t, now), mergePatch(now, was)); !reflect.DeepEqual(clone(t, got), clone(t, was)) {
			t.Fatalf("%v to %v: %v", now, was, got)
		}
		if patch := mergePatch(now, now); len(patch) > 0 {
			t.Fatalf("%v: %v", now, patch)
		}
	}
}

// A patch that puts back removes a candidate's first label or annotation, and keeps those that no snapshot contains.
func TestBackPatchKeepsWhatControllersSet(t *testing.T) {
	t.Parallel()
	was := map[string]any{"metadata": map[string]any{"name": "a"}, "spec": map[string]any{"x": int64(1)}}
	now := map[string]any{
		"metadata": map[string]any{"name": "a", "annotations": map[string]any{"example.com/note": "broken"}},
		"spec":     map[string]any{"x": int64(1)},
	}
	want := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"example.com/note": nil}}}
	if patch := backPatch(now, was); !reflect.DeepEqual(patch, want) {
		t.Errorf("%v", patch)
	}
	if patch := backPatch(now, now); len(patch) > 0 {
		t.Errorf("%v", patch)
	}
	if _, changed := was["metadata"].(map[string]any)["annotations"]; changed {
		t.Errorf("the snapshot was changed: %v", was)
	}
}

func clone(t *testing.T, o map[string]any) (c map[string]any) {
	t.Helper()
	text, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What the candidate cannot have done is not theirs.
func TestWriters(t *testing.T) {
	t.Parallel()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Node"}, meta.RESTScopeRoot)
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	node, mine, theirs := nodeRef("a"),
		scenario.Ref{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "team", Name: "x"},
		scenario.Ref{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "other", Name: "x"}
	rule := func(verb, group, resource string, names ...string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{
			{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names},
		}
	}
	for name, test := range map[string]struct {
		access scenario.Access
		want   []scenario.Ref
	}{
		"namespace": {scenario.Access{Namespaces: []string{"team"}}, []scenario.Ref{mine}},
		"reading": {
			scenario.Access{Namespaces: []string{"team"}, Read: []string{"other"}, Rules: rule("get", "*", "*")},
			[]scenario.Ref{mine},
		},
		"nodes": {
			scenario.Access{Namespaces: []string{"team"}, Rules: rule("patch", "", "nodes")},
			[]scenario.Ref{mine, node},
		},
		"another node": {
			scenario.Access{Namespaces: []string{"team"}, Rules: rule("patch", "", "nodes", "b")}, []scenario.Ref{mine},
		},
		"node shell":  {scenario.Access{Namespaces: []string{"team"}, NodeShell: true}, []scenario.Ref{mine, node}},
		"all of apps": {scenario.Access{Rules: rule("*", "apps", "deployments")}, []scenario.Ref{mine, theirs}},
		"escalate": {
			scenario.Access{Rules: rule("escalate", "rbac.authorization.k8s.io", "roles")},
			[]scenario.Ref{mine, theirs, node},
		},
	} {
		candidate := writersOf(test.access, mapper)
		for _, ref := range []scenario.Ref{mine, theirs, node} {
			if got := candidate.may(ref); got != slices.Contains(test.want, ref) {
				t.Errorf("%s: %v: %t", name, ref, got)
			}
		}
	}
}

// Objects are the same in whatever version of their API they are named.
func TestExerciseHas(t *testing.T) {
	t.Parallel()
	e := Exercise{
		Namespaces: []string{"team"}, Account: Account{Namespace: "account"},
		Owned: []scenario.Ref{{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "reader"}},
	}
	for ref, want := range map[scenario.Ref]bool{
		{APIVersion: "v1", Kind: "Namespace", Name: "team"}:                                    true,
		{APIVersion: "v1", Kind: "Namespace", Name: "account"}:                                 true,
		{APIVersion: "v1", Kind: "Secret", Namespace: "team", Name: "x"}:                       true,
		{APIVersion: "v1", Kind: "Secret", Namespace: "other", Name: "team"}:                   false,
		{APIVersion: "rbac.authorization.k8s.io/v1beta1", Kind: "ClusterRole", Name: "reader"}: true,
		{APIVersion: "v1", Kind: "Node", Name: "team"}:                                         false,
	} {
		if got := e.has(ref); got != want {
			t.Errorf("%v: %t", ref, got)
		}
	}
}

// Of what a candidate is handed nothing is from the sealed half.
func TestCard(t *testing.T) {
	t.Parallel()
	r := newWorld(t).play()
	e := &Exercise{ID: "scenario-x7k2mq", Scenario: r.Metadata.Name, Public: r.Public, Minutes: 15, Until: noon}
	text, err := json.Marshal((&Lab{}).Card(e))
	if err != nil {
		t.Fatal(err)
	}
	for _, never := range []string{
		r.Metadata.Name, "x7k2mq", r.Sealed.RootCause.Mechanism.Value, "gpu-fault", "gpufault", r.Sealed.Story[:20],
	} {
		if strings.Contains(string(text), never) {
			t.Errorf("%s has %q", text, never)
		}
	}
	for _, always := range []string{
		"The page does not come up", `"namespace":"harbour"`, "administrator of namespace harbour",
	} {
		if !strings.Contains(string(text), always) {
			t.Errorf("%s lacks %q", text, always)
		}
	}
}
