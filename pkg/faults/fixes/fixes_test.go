package fixes

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
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
			state, said, err := Undoer{client}.Undo(t.Context(), ledger.Run{ID: test.run},
				ledger.Step{Target: change.Target, Undo: change.Undo})
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
	step := ledger.Step{
		Target: ledger.Target{Kind: "RuntimeClass", Name: "nvidia"},
		Undo:   ledger.Undo{Kind: UndoKind, Data: []byte(`{"name":"gvisor"}`)},
	}
	if _, _, err := (Undoer{fake.NewClientset()}).Undo(t.Context(), ledger.Run{}, step); err == nil ||
		!strings.Contains(err.Error(), "rejected") {
		t.Errorf("a record about another RuntimeClass is believed: %v", err)
	}
}

func pluginPod(name string, phase corev1.PodPhase) *corev1.Pod {
	yes := true
	ready := corev1.ConditionFalse
	if phase == corev1.PodRunning {
		ready = corev1.ConditionTrue
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "gpu-operator", Name: name, UID: types.UID(name),
			OwnerReferences: []metav1.OwnerReference{
				{Kind: "DaemonSet", Name: "nvidia-device-plugin", UID: "ds", Controller: &yes},
			},
		},
		Spec: corev1.PodSpec{NodeName: "gpu-1"}, Status: corev1.PodStatus{
			Phase: phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		},
	}
}

func pluginSet() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "nvidia-device-plugin", UID: "ds"},
		Spec: appsv1.DaemonSetSpec{
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: map[string]string{"gpu": "yes"}}},
		},
	}
}

func nodeWith(gpus string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: map[string]string{"gpu": "yes"}},
		Status: corev1.NodeStatus{Capacity: corev1.ResourceList{
			"nvidia.com/gpu": resource.MustParse(gpus), "nvidia.com/other": resource.MustParse("3"),
		}},
	}
}

// reactsToDelete lets a cluster do something when a pod is deleted.
func reactsToDelete(client *fake.Clientset, do func()) {
	client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		do()
		return false, nil, nil
	})
}

// A restart is proven by a new pod that is ready on the same node, and by GPUs that the node advertises again; never by
// the old pod.
func TestRestartPod(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		next  corev1.PodPhase // of the new pod; empty for none
		gpus  string          // after the restart
		wrong string
	}{
		"mended":                  {corev1.PodRunning, "8", ""},
		"no new pod":              {"", "8", "no new pod is ready"},
		"a new pod that fails":    {corev1.PodPending, "8", "no new pod is ready"},
		"a new pod of no account": {corev1.PodRunning, "0", "still advertises no GPU"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			was := pluginPod("plugin-a", corev1.PodRunning)
			client := fake.NewClientset(was, pluginSet(), nodeWith("0"))
			change, err := RestartPod(t.Context(), client, was, time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			if !change.Undo.IsPermanent() {
				t.Error("the deletion of a pod is recorded as if it could be undone")
			}
			reactsToDelete(client, func() {
				if test.next != "" {
					err = client.Tracker().Add(pluginPod("plugin-b", test.next))
				}
				err = errors.Join(err,
					client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), nodeWith(test.gpus), ""))
				if err != nil {
					t.Error(err)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			proof, err := change.Apply(ctx, recorder{})
			switch {
			case test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)):
				t.Errorf("the restart counts as proven: %v %v; wanted %q", proof, err, test.wrong)
			case test.wrong == "" && (err != nil || len(proof) != 2 ||
				!strings.Contains(proof[0].Text, "uid plugin-b") || proof[1].Text != "8 GPUs"):
				t.Errorf("proof %v, %v", proof, err)
			}
		})
	}
}

// Between the report and the answer to the question minutes may pass: what became well, or is another pod's, is left
// alone.
func TestRestartPodLooksAgain(t *testing.T) {
	t.Parallel()
	for wrong, change := range map[string]func(*corev1.Node, *corev1.Pod, *appsv1.DaemonSet){
		"now advertises 8 GPUs":       func(n *corev1.Node, _ *corev1.Pod, _ *appsv1.DaemonSet) { *n = *nodeWith("8") },
		"was deleted in the meantime": func(_ *corev1.Node, p *corev1.Pod, _ *appsv1.DaemonSet) { p.UID = "another" },
		"not ready": func(_ *corev1.Node, p *corev1.Pod, _ *appsv1.DaemonSet) {
			p.Status.Conditions = nil
		},
		"no longer create a pod on node": func(n *corev1.Node, _ *corev1.Pod, _ *appsv1.DaemonSet) { n.Labels = nil },
		"has a pending update": func(_ *corev1.Node, _ *corev1.Pod, ds *appsv1.DaemonSet) {
			ds.Spec.UpdateStrategy.Type, ds.Status.DesiredNumberScheduled = "OnDelete", 2
		},
		"would not recreate the pod": func(_ *corev1.Node, _ *corev1.Pod, ds *appsv1.DaemonSet) { ds.UID = "another" },
		"was deleted in the meantime: run": func(_ *corev1.Node, p *corev1.Pod, _ *appsv1.DaemonSet) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Now()}, []string{"x/y"}
		},
	} {
		was := pluginPod("plugin-a", corev1.PodRunning)
		client := fake.NewClientset(was, pluginSet(), nodeWith("0"))
		restart, err := RestartPod(t.Context(), client, was, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		n, p, ds := nodeWith("0"), was.DeepCopy(), pluginSet()
		change(n, p, ds)
		later := fake.NewClientset(n, p, ds)
		if _, err := RestartPod(t.Context(), later, was, time.Millisecond); err == nil ||
			!strings.Contains(err.Error(), wrong) {
			t.Errorf("it is offered: %v, wanted %q", err, wrong)
		}
		for _, err := range []error{
			client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), n, ""),
			client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace),
			client.Tracker().Update(appsv1.SchemeGroupVersion.WithResource("daemonsets"), ds, ds.Namespace),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := restart.Apply(t.Context(), recorder{}); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("it is done: %v, wanted %q", err, wrong)
		}
		for _, action := range client.Actions() {
			if action.GetVerb() == "delete" {
				t.Errorf("%s: the pod was deleted", wrong)
			}
		}
	}
	alone := pluginPod("plugin-a", corev1.PodRunning)
	alone.OwnerReferences = nil
	if _, err := RestartPod(t.Context(), fake.NewClientset(alone, nodeWith("0")), alone, time.Millisecond); err == nil {
		t.Error("a pod that nobody makes anew is to be deleted")
	}
}

// In a cluster of 5,000 nodes kube-system has ten thousands of pods: only those of the node are asked for, twice a
// second.
func TestRestartPodAsksForOneNode(t *testing.T) {
	t.Parallel()
	was := pluginPod("plugin-a", corev1.PodRunning)
	client := fake.NewClientset(was, pluginSet(), nodeWith("0"))
	change, err := RestartPod(t.Context(), client, was, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, _ = change.Apply(ctx, recorder{}) // there is no new pod
	asked := 0
	for _, action := range client.Actions() {
		if list, ok := action.(clienttesting.ListAction); ok {
			asked++
			if got := list.GetListRestrictions().Fields.String(); got != "spec.nodeName=gpu-1" {
				t.Fatalf("pods are listed with %q", got)
			}
		}
	}
	if asked == 0 {
		t.Error("nobody looked for the new pod")
	}
}
