package mend

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/ledger"
)

// recorder is a run that is under way.
type recorder struct{ run ledger.Run }

func (r recorder) Run() ledger.Run                                { return r.run }
func (r recorder) Save(context.Context, func(*ledger.Step)) error { return nil }
func (r recorder) Progress(string)                                {}

// What a repair created its undo deletes, and nothing that somebody else made or changed.
func TestRuntimeClassUndo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		meanwhile func(*testing.T, *fake.Clientset)
		run       string
		want      ledger.State
		left      int
	}{
		"unchanged": {nil, "fix-a", ledger.StateReverted, 0},
		"gone": {func(t *testing.T, c *fake.Clientset) {
			if err := c.NodeV1().RuntimeClasses().Delete(t.Context(), "nvidia", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, "fix-a", ledger.StateReverted, 0},
		"somebody else's": {nil, "fix-b", ledger.StateSuperseded, 1},
		"changed": {func(t *testing.T, c *fake.Clientset) {
			class, err := c.NodeV1().RuntimeClasses().Get(t.Context(), "nvidia", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			class.Handler = "nvidia-cdi"
			if _, err := c.NodeV1().RuntimeClasses().Update(t.Context(), class, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}, "fix-a", ledger.StateSuperseded, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset()
			change, err := CreateRuntimeClass(client, "nvidia", "nvidia")
			if err != nil {
				t.Fatal(err)
			}
			proof, err := change.Apply(t.Context(), recorder{ledger.Run{ID: "fix-a"}})
			if err != nil || len(proof) != 1 || !strings.Contains(proof[0].Text, "handler nvidia") {
				t.Fatalf("created without proof: %v %v", proof, err)
			}
			if test.meanwhile != nil {
				test.meanwhile(t, client)
			}
			state, said, err := Undoer{client}.Undo(t.Context(), ledger.Run{ID: test.run}, ledger.Step{Target: change.Target, Undo: change.Undo})
			if err != nil || state != test.want {
				t.Errorf("undone to %q (%s), %v; wanted %q", state, said, err, test.want)
			}
			left, err := client.NodeV1().RuntimeClasses().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(left.Items) != test.left {
				t.Errorf("%d RuntimeClasses are left, wanted %d (%v)", len(left.Items), test.left, err)
			}
		})
	}
}

// A record that is about something else than its target is no order to delete that.
func TestUndoIsBoundToItsTarget(t *testing.T) {
	t.Parallel()
	step := ledger.Step{Target: ledger.Target{Kind: "RuntimeClass", Name: "nvidia"}, Undo: ledger.Undo{Kind: UndoKind, Data: []byte(`{"name":"gvisor"}`)}}
	if _, _, err := (Undoer{fake.NewClientset()}).Undo(t.Context(), ledger.Run{}, step); err == nil || !strings.Contains(err.Error(), "not believed") {
		t.Errorf("a record about another RuntimeClass is believed: %v", err)
	}
}

func pluginPod(name string, phase corev1.PodPhase) *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "gpu-operator", Name: name,
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "nvidia-device-plugin", UID: "ds", Controller: &yes}},
		},
		Spec: corev1.PodSpec{NodeName: "gpu-1"}, Status: corev1.PodStatus{Phase: phase},
	}
}

// A restart is proven by the new pod that runs on the same node, and never by the old one.
func TestRestartPod(t *testing.T) {
	t.Parallel()
	was, next := pluginPod("plugin-a", corev1.PodRunning), pluginPod("plugin-b", corev1.PodRunning)
	was.UID, next.UID = "a", "b"
	client := fake.NewClientset(was, next)
	change, err := RestartPod(client, was, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if !change.Undo.IsPermanent() {
		t.Error("the deletion of a pod is recorded as if it could be undone")
	}
	proof, err := change.Apply(t.Context(), recorder{})
	if err != nil || len(proof) != 1 || !strings.Contains(proof[0].Text, "uid b") {
		t.Errorf("proof %v, %v", proof, err)
	}
	alone := fake.NewClientset(was)
	change, err = RestartPod(alone, was, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if proof, err := change.Apply(ctx, recorder{}); err == nil || !strings.Contains(err.Error(), "no new one runs") {
		t.Errorf("without a new pod the restart counts as proven: %v %v", proof, err)
	}
	was.OwnerReferences = nil
	if _, err := RestartPod(alone, was, time.Millisecond); err == nil {
		t.Error("a pod that nobody makes anew is to be deleted")
	}
}
