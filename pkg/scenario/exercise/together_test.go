package exercise

import (
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// TestTogether: scenarios that would affect each other are refused before anything is changed.
func TestTogether(t *testing.T) {
	t.Parallel()
	one := func(name, namespace string, gpus int) *scenario.Resolved {
		r := &scenario.Resolved{Seed: 7}
		r.Metadata.Name, r.Requires.GPUs = name, gpus
		r.Public.Access.Namespaces = []string{namespace}
		r.Facts.Nodes = []scenario.NodeFacts{{Name: "a", FreeGPUs: 2}, {Name: "b", FreeGPUs: 1}}
		return r
	}
	a, b, big := one("a", "team-a", 1), one("b", "team-b", 2), one("big", "team-c", 3)
	node := one("node", "team-d", 0)
	node.Inject = []scenario.Step{{XID: &scenario.XID{Node: "gpu-1"}}}
	shell := one("shell", "team-e", 0)
	shell.Public.Access.NodeShell = true
	for name, test := range map[string]struct {
		all  []*scenario.Resolved
		want string
	}{
		"one":        {[]*scenario.Resolved{node}, ""},
		"fits":       {[]*scenario.Resolved{a, b}, ""},
		"GPUs":       {[]*scenario.Resolved{a, big}, "need 4 free GPUs in total, but only 3 are free"},
		"a node":     {[]*scenario.Resolved{a, node}, "scenario node with seed 7 changes nodes"},
		"root":       {[]*scenario.Resolved{shell, a}, "scenario shell with seed 7 changes nodes"},
		"namespaces": {[]*scenario.Resolved{a, one("c", "team-a", 0)}, "scenarios a and c both use namespace team-a"},
	} {
		err := Together(test.all)
		if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
