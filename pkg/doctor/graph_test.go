package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// told returns a check's findings, each "ID", "ID@node", or "ID@node/pod".
func told(t *testing.T, c Check, what ...string) *Result {
	t.Helper()
	r := &Result{check: c}
	for _, text := range what {
		f := Finding{Title: c.Title, Object: Object{Kind: "Cluster"}}
		if at, pod, hasPod := strings.Cut(text, "/"); hasPod {
			f.Object = Object{Kind: "Pod", Namespace: "default", Name: pod}
			if at != "" {
				f.Nodes = []string{at}
			}
		} else if at != "" {
			f.Object = Object{Kind: "Node", Name: at}
		}
		r.Add(f)
	}
	return r
}

// shape returns what the graph came to: "root[objects] <- consequence[objects]".
func shape(items []Finding) string {
	var lines []string
	for _, f := range items {
		var on []string
		for _, o := range f.Objects {
			on = append(on, o.Name)
		}
		if len(on) == 0 {
			on = []string{f.Object.Name}
		}
		slices.Sort(on)
		line := fmt.Sprintf("%s[%s] %s", f.ID, strings.Join(on, " "), f.Severity)
		if !f.Root {
			line += " <- " + strings.Join(f.CausedBy, ",")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// What follows from a cause on the same node or pod is folded under it, and what only looks like it elsewhere is not.
func TestFold(t *testing.T) {
	t.Parallel()
	cause := Check{
		ID: "rt.wrong-instance", Title: "cause", Layer: LayerRuntime, Explains: []string{"rt.handler-missing", "dp.*"},
	}
	middle := Check{
		ID: "rt.handler-missing", Title: "middle", Layer: LayerRuntime, Explains: []string{"wl.pod-failing"},
	}
	plugin := Check{ID: "dp.capacity-zero", Title: "plugin", Layer: LayerDevicePlugin, Explains: []string{"sched.*"}}
	pending := Check{ID: "sched.none", Title: "pending", Layer: LayerScheduling}
	failing := Check{ID: "wl.pod-failing", Title: "failing", Layer: LayerWorkload}
	a, b := Check{ID: "a", Title: "a", Layer: LayerCluster, Explains: []string{"b"}},
		Check{ID: "b", Title: "b", Layer: LayerCluster, Explains: []string{"a"}}
	for name, test := range map[string]struct {
		results []*Result
		want    string
	}{
		"a chain has one root": {[]*Result{told(t, cause, "n1"), told(t, middle, "n1"), told(t, plugin, "n1"), told(t, pending, "/p"), told(t, failing, "n1/q")}, `
rt.wrong-instance[n1] error
rt.handler-missing[n1] info <- rt.wrong-instance
dp.capacity-zero[n1] info <- rt.wrong-instance
sched.none[p] info <- dp.capacity-zero
wl.pod-failing[q] info <- rt.handler-missing`},
		"the same elsewhere has its own root": {[]*Result{told(t, cause, "n1"), told(t, middle, "n1", "n2")}, `
rt.wrong-instance[n1] error
rt.handler-missing[n2] error
rt.handler-missing[n1] info <- rt.wrong-instance`},
		"the same on many nodes is told once": {[]*Result{told(t, cause, "n1", "n2", "n3"), told(t, middle, "n3", "n1", "n2")}, `
rt.wrong-instance[n1 n2 n3] error
rt.handler-missing[n1 n2 n3] info <- rt.wrong-instance`},
		"another pod of the node is not explained by a pod": {[]*Result{told(t, middle, "n1/p"), told(t, failing, "n1/p", "n1/q")}, `
rt.handler-missing[p] error
wl.pod-failing[q] error
wl.pod-failing[p] info <- rt.handler-missing`},
		"what explains each other are both roots": {[]*Result{told(t, a, "n1"), told(t, b, "n1")}, `
a[n1] error
b[n1] error`},
		"a cause of the whole cluster is everywhere": {[]*Result{told(t, cause, ""), told(t, middle, "n1")}, `
rt.wrong-instance[] error
rt.handler-missing[n1] info <- rt.wrong-instance`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checks := []Check{cause, middle, plugin, pending, failing, a, b}
			found, _ := gather(test.results, nil, checks)
			items, edges := fold(found)
			if got := shape(items); got != strings.TrimSpace(test.want) {
				t.Errorf("got\n%s\nwanted%s", got, test.want)
			}
			for _, e := range edges {
				if items[e.To].Root || !slices.Contains(items[e.To].CausedBy, items[e.From].ID) {
					t.Errorf("an edge leads from %s to %s", items[e.From].ID, items[e.To].ID)
				}
			}
		})
	}
}

// What the user ignores is neither told nor a cause, and is counted.
func TestIgnore(t *testing.T) {
	t.Parallel()
	cause := Check{ID: "hw.ecc", Title: "cause", Layer: LayerHardware, Explains: []string{"dp.x"}}
	effect := Check{ID: "dp.x", Title: "effect", Layer: LayerDevicePlugin}
	results := []*Result{told(t, cause, "gpu-1", "other"), told(t, effect, "gpu-1")}
	found, ignored := gather(results, []Ignore{{ID: "hw.*", Object: "Node gpu-*"}}, []Check{cause, effect})
	items, _ := fold(found)
	if got := shape(items); ignored != 1 || got != "hw.ecc[other] error\ndp.x[gpu-1] error" {
		t.Errorf("%d ignored, left:\n%s", ignored, got)
	}
}

// IDs are a contract: each is there once, and what a check explains exists.
func TestChecksAreWhole(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.ID] {
			t.Errorf("%s is there twice", c.ID)
		}
		seen[c.ID] = true
		if c.Title == "" || c.Reads == "" || c.Why == "" || c.Layer == "" || c.Run == nil || len(c.Needs) == 0 {
			t.Errorf("%s lacks a title, what it reads, why, its layer, its needs or its function: %+v", c.ID, c)
		}
		if !slices.Contains(Layers(), c.Layer) {
			t.Errorf("%s is of layer %q, which is none", c.ID, c.Layer)
		}
	}
	for _, c := range Checks() {
		for _, pattern := range c.Explains {
			found := slices.ContainsFunc(Checks(),
				func(other Check) bool { return Check{Explains: []string{pattern}}.explains(other.ID) })
			if !found {
				t.Errorf("%s explains %q, which no check finds", c.ID, pattern)
			}
		}
	}
}
