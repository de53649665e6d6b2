package cordon

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

const run = "remediation-abc234"

type recorder struct{}

func (recorder) Run() ledger.Run                                     { return ledger.Run{ID: run} }
func (recorder) Save(context.Context, func(step *ledger.Step)) error { return nil }
func (recorder) Progress(string)                                     {}

// set writes spec.unschedulable under a name, as a client would.
func set(t *testing.T, client *fake.Clientset, by string, value bool) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Spec.Unschedulable = value
	options := metav1.UpdateOptions{FieldManager: by}
	if _, err := client.CoreV1().Nodes().Update(t.Context(), node, options); err != nil {
		t.Fatal(err)
	}
}

func isCordoned(t *testing.T, client *fake.Clientset) bool {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node.Spec.Unschedulable
}

// The undo frees a node that only this run has cordoned, whatever the record says, and leaves all others alone.
func TestUndo(t *testing.T) {
	t.Parallel()
	step := ledger.Step{Target: ledger.Target{Kind: KindScheduling, Name: "a"}}
	for name, c := range map[string]struct {
		by       []string // who cordons, in this order
		step     ledger.Step
		state    ledger.State
		says     string
		cordoned bool
	}{
		"ours":            {[]string{Manager(run)}, step, ledger.StateReverted, "schedulable again", false},
		"freed by others": {nil, step, ledger.StateReverted, "the node is schedulable", false},
		"a person's":      {[]string{"kubectl-cordon"}, step, ledger.StateSuperseded, "by kubectl-cordon", true},
		"another run's": {
			[]string{Manager("remediation-other1")}, step, ledger.StateSuperseded, "remediation-other1", true,
		},
		"no such node": {
			nil, ledger.Step{Target: ledger.Target{Kind: KindScheduling, Name: "b"}}, ledger.StateReverted,
			"no longer exists", false,
		},
		"a forged target": {
			[]string{Manager(run)}, ledger.Step{Target: ledger.Target{Kind: "Node", Name: "a"}}, "", "rejected", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
			for _, by := range c.by {
				set(t, client, by, true)
			}
			state, said, err := Undoer{client}.Undo(t.Context(), ledger.Run{ID: run}, c.step)
			if err != nil {
				said = err.Error()
			}
			if state != c.state || !strings.Contains(said, c.says) || isCordoned(t, client) != c.cordoned {
				t.Errorf("%q, %q, cordoned: %t", state, said, isCordoned(t, client))
			}
		})
	}
}

// A node that is cordoned already is not taken over: its cordon would be lost with the undo.
func TestChange(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	evidence, err := Change(client, "a").Apply(t.Context(), recorder{})
	if err != nil || len(evidence) != 1 || !isCordoned(t, client) {
		t.Fatalf("%v, %+v", err, evidence)
	}
	if _, err := Change(client, "a").Apply(t.Context(), recorder{}); err == nil ||
		!strings.Contains(err.Error(), "already cordoned by "+Manager(run)) {
		t.Errorf("a second time: %v", err)
	}
}
