package exercise

import (
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// An exercise that was read has the seal of the one that was stored, also one that has nothing for itself, as on
// somebody's own Deployment; what is changed in between is seen.
func TestSealSurvivesTheLedger(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]Exercise{
		"all there is": {
			ID: "scenario-1", Namespaces: []string{"harbour"}, Owned: []scenario.Ref{{Kind: "Node", Name: "a"}},
			Nodes:   []string{"a"},
			Account: Account{ID: "x", Namespace: "harbour", Name: "worker"}, Probe: "word",
		},
		"none":        {ID: "scenario-1"},
		"empty lists": {ID: "scenario-1", Namespaces: []string{}, Owned: []scenario.Ref{}, Nodes: []string{}},
	} {
		secret, err := encode(&e, nil)
		if err != nil {
			t.Fatal(err)
		}
		read, err := decode(secret)
		if err != nil {
			t.Fatal(err)
		}
		if read.seals[sealExercise] != e.seal() {
			t.Errorf("%s: another seal after it was read", name)
		}
		read.Namespaces = append(read.Namespaces, "kube-system")
		if read.seal() == e.seal() {
			t.Errorf("%s: another namespace does not show", name)
		}
	}
}
