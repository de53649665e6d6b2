package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// told returns a check's findings. Each is specified as "ID", "ID@node" or "ID@node/pod".
func told(t *testing.T, c Check, what ...string) *Result {
	t.Helper()
	r := &Result{Check: c}
	for _, text := range what {
		f := finding.Finding{Title: c.Title, Object: finding.Object{Kind: "Cluster"}}
		if at, pod, hasPod := strings.Cut(text, "/"); hasPod {
			f.Object = finding.Object{Kind: "Pod", Namespace: "default", Name: pod}
			if at != "" {
				f.Nodes = []string{at}
			}
		} else if at != "" {
			f.Object = finding.Object{Kind: "Node", Name: at}
		}
		r.Add(f)
	}
	return r
}

// shape formats the result of the graph: "root[objects] <- consequence[objects]".
func shape(items []finding.Finding) string {
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

// TestFold verifies that consequences on the same node or pod are grouped under their cause, and that similar findings
// elsewhere are not.
func TestFold(t *testing.T) {
	t.Parallel()
	cause := Check{
		ID: "rt.wrong-instance", Title: "cause", Layer: finding.LayerRuntime,
		Explains: []string{"rt.handler-missing", "dp.*"},
	}
	middle := Check{
		ID: "rt.handler-missing", Title: "middle", Layer: finding.LayerRuntime, Explains: []string{"wl.pod-failing"},
	}
	plugin := Check{
		ID: "dp.capacity-zero", Title: "plugin", Layer: finding.LayerDevicePlugin, Explains: []string{"sched.*"},
	}
	pending := Check{ID: "sched.none", Title: "pending", Layer: finding.LayerScheduling}
	failing := Check{ID: "wl.pod-failing", Title: "failing", Layer: finding.LayerWorkload}
	a, b := Check{ID: "a", Title: "a", Layer: finding.LayerCluster, Explains: []string{"b"}},
		Check{ID: "b", Title: "b", Layer: finding.LayerCluster, Explains: []string{"a"}}
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
			found, _ := Gather(test.results, nil, checks)
			items, edges := Fold(found)
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

// TestIgnore verifies that an ignored finding is neither reported nor a cause, but is counted.
func TestIgnore(t *testing.T) {
	t.Parallel()
	cause := Check{ID: "hw.ecc", Title: "cause", Layer: finding.LayerHardware, Explains: []string{"dp.x"}}
	effect := Check{ID: "dp.x", Title: "effect", Layer: finding.LayerDevicePlugin}
	results := []*Result{told(t, cause, "gpu-1", "other"), told(t, effect, "gpu-1")}
	found, ignored := Gather(results, []Ignore{{ID: "hw.*", Object: "Node gpu-*"}}, []Check{cause, effect})
	items, _ := Fold(found)
	if got := shape(items); ignored != 1 || got != "hw.ecc[other] error\ndp.x[gpu-1] error" {
		t.Errorf("%d ignored, left:\n%s", ignored, got)
	}
}
