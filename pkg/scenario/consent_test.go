package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// TestHarmless holds that an ordinary scenario asks for nothing that needs consent: who is asked each time does not
// read any more.
func TestHarmless(t *testing.T) {
	t.Parallel()
	r, err := good(t).Resolve(1, nil, SampleFacts())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string(nil), r.NeedsConsent()); diff != "" {
		t.Error(diff)
	}
}

// TestMalicious holds that all that a scenario can do to a cluster is said, in a file that does it all.
func TestMalicious(t *testing.T) {
	t.Parallel()
	s, err := Load("testdata/malicious.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(1, nil, SampleFacts())
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "malicious.txt", strings.Join(r.NeedsConsent(), "\n")+"\n")
}

// TestHiddenByExpressions holds that an expression hides nothing: unresolved, it counts as the worst; resolved, as what
// it became.
func TestHiddenByExpressions(t *testing.T) {
	t.Parallel()
	for old, new := range map[string]string{
		"image: busybox:1.35\n":           "image: busybox:1.35\n                    securityContext: {privileged: \"${1 < 2}\"}\n",
		"        - &trainer\n":            "        - \"${{'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': 'x'}, 'spec': {'hostPID': true}}}\"\n        - &trainer\n",
		"namespaces: [\"${p.ns}\"]":       "namespaces: [\"${'kube-' + 'system'}\"]",
		"    namespaces: [\"${p.ns}\"]\n": "    namespaces: [\"${p.ns}\"]\n    rules: \"${[{'apiGroups': ['*'], 'resources': ['*'], 'verbs': ['*']}]}\"\n",
	} {
		s, err := edit(t, old, new)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.NeedsConsent()) == 0 {
			t.Errorf("unresolved, nothing of %s", new)
		}
		r, err := s.Resolve(1, nil, SampleFacts())
		if err != nil {
			t.Fatal(err)
		}
		if len(r.NeedsConsent()) == 0 {
			t.Errorf("resolved, nothing of %s", new)
		}
		data, err := yaml.Marshal(r) // as another machine gets it
		if err != nil {
			t.Fatal(err)
		}
		var back Resolved
		if err := yaml.Unmarshal(data, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r.NeedsConsent(), back.NeedsConsent()); diff != "" {
			t.Errorf("JSON changed it: %s", diff)
		}
	}
}
