package scenario

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// twoNodes returns what the guides' cluster is like.
func twoNodes() scenario.Facts {
	node := func(name string) scenario.NodeFacts {
		return scenario.NodeFacts{
			Name: name, Hostname: name, Architecture: "amd64", GPUs: 2, FreeGPUs: 2, Product: "Tesla-T4",
			MemoryMiB: 15360, Runtime: "containerd://2.3.7",
		}
	}
	return scenario.Facts{
		Nodes: []scenario.NodeFacts{node("gpu-node-1"), node("gpu-node-2")}, GPUNodes: 2, GPUsPerNode: 2, MostGPUs: 2,
		Architecture: "amd64",
		Kubernetes:   "v1.36.3",
	}
}

// The interviewers' guides in docs are those of the scenarios as they are: `go test ./plugin/scenario -run Guides
// -update` writes them.
func TestGuidesAreCurrent(t *testing.T) {
	t.Parallel()
	all, err := scenario.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range all {
		r, err := s.Resolve(1, nil, twoNodes())
		if err != nil {
			t.Errorf("%s: %v", s.Metadata.Name, err)
			continue
		}
		names = append(names, s.Metadata.Name)
		golden.Compare(t, "../../../docs/scenarios/"+s.Metadata.Name+".md", Guide(r))
	}
	files, _ := filepath.Glob("../../docs/scenarios/*.md")
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".md"); !slices.Contains(names, name) {
			t.Errorf("%s is of no scenario that there is: delete it", f)
		}
	}
}
