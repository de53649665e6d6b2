package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/fixes"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/dryrun"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/podflags"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/progress"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/session"
)

// fixing is doctor --fix with a cluster that allows all.
func fixing(
	t *testing.T, id string, objects ...runtime.Object,
) (*examination, *kube.Cluster, *fake.Clientset, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	var out, errOut bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}
	client := fake.NewClientset(append(objects, ledger.NamespaceObject(ledger.DefaultNamespace))...)
	client.PrependReactor("create", "selfsubjectaccessreviews",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			review := action.(clienttesting.CreateAction).
				GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
			review.Status.Allowed = true
			return true, review, nil
		})
	o := newOptions()
	o.fix, o.yes = id, true
	return &examination{options: o, streams: streams, connection: kube.NewConnection(streams)},
		&kube.Cluster{Client: client, Config: &rest.Config{Host: "https://localhost:1"}, Context: "test"}, client, &out,
		&errOut
}

func withNvidia(s *snapshot.Snapshot) *snapshot.Snapshot {
	n := gpuNode("gpu-1", corev1.ConditionTrue)
	n.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: "nvidia"}}
	s.Nodes = append(s.Nodes, n)
	return s
}

var noClass = finding.Finding{
	ID: fixHandler, Root: true, Severity: finding.Error, Title: "a RuntimeClass that pods name is not there",
	Object:  finding.Object{Kind: "ReplicaSet", Namespace: "team", Name: "train-abc"},
	Subject: finding.Object{Kind: "RuntimeClass", Name: "nvidia"},
	Fix:     finding.Fix{Text: "Create it.", Commands: []string{"kubectl apply -f -"}},
}

// A missing RuntimeClass is made only where a node has its handler, and through the ledger, so that revert takes it
// away again.
func TestMissingRuntimeClassIsMadeAndTakenBack(t *testing.T) {
	t.Parallel()
	e, cluster, client, _, errOut := fixing(t, fixHandler)
	fix, err := e.repair(t.Context(), cluster, withNvidia(&snapshot.Snapshot{}), noClass)
	if err != nil || len(fix.plan.Changes) != 1 || !strings.Contains(fix.diff, "+ handler: nvidia\n") ||
		fix.done[0] != "runtimeclass.node.k8s.io/nvidia created" {
		t.Fatalf("%+v, %v", fix, err)
	}
	engine := session.New(t.Context(), cluster, kube.NewConnection(e.streams), 1, podflags.New(), progress.New(errOut))
	if err := engine.Preflight(t.Context(), fix.plan); err != nil {
		t.Fatal(err)
	}
	run, err := engine.Run(t.Context(), fix.plan)
	if err != nil || run.Fault != fixes.Fault || len(run.Pending()) != 1 {
		t.Fatalf("run %+v, %v", run, err)
	}
	if _, err := client.NodeV1().RuntimeClasses().Get(t.Context(), "nvidia", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Revert(t.Context(), run.ID, false); err != nil {
		t.Fatal(err)
	}
	if _, err := client.NodeV1().RuntimeClasses().Get(
		t.Context(), "nvidia", metav1.GetOptions{},
	); !apierrors.IsNotFound(err) {
		t.Errorf("after the revert the RuntimeClass is there: %v", err)
	}
}

// What nobody can know is left to people, with the fix in the error, and nothing is changed.
func TestWhatIsMendedByHand(t *testing.T) {
	t.Parallel()
	e, cluster, client, _, _ := fixing(t, fixHandler, fixes.RuntimeClass("nvidia", "other"))
	if _, err := e.repair(t.Context(), cluster, withNvidia(&snapshot.Snapshot{}), noClass); err == nil ||
		!strings.Contains(err.Error(), `RuntimeClass "nvidia" names a handler`) {
		t.Errorf("a RuntimeClass that is there: %v", err)
	}
	other := noClass
	other.Subject.Name = "nvidia-cdi"
	if _, err := e.repair(t.Context(), cluster, withNvidia(&snapshot.Snapshot{}), other); err == nil ||
		!strings.Contains(err.Error(), `no known node has a handler "nvidia-cdi"`) {
		t.Errorf("a handler that no node has: %v", err)
	}
	plugin := noClass
	plugin.ID, plugin.Object, plugin.Subject = fixCapacity, finding.Object{
		Kind: "Node", Name: "gpu-1",
	}, finding.Object{}
	if _, err := e.repair(t.Context(), cluster, withNvidia(&snapshot.Snapshot{}), plugin); err == nil ||
		!strings.Contains(err.Error(), "no running pod of the device plugin") {
		t.Errorf("no device plugin: %v", err)
	}
	plugin.Subject = finding.Object{Kind: "Pod", Namespace: "gpu-operator", Name: "x"} // in the wrong folder
	if _, err := e.repair(t.Context(), cluster, withNvidia(&snapshot.Snapshot{}), plugin); err == nil ||
		!strings.Contains(err.Error(), "manually") {
		t.Errorf("a device plugin that no restart mends: %v", err)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "get" {
			t.Errorf("something was changed: %v", action)
		}
	}
	report := doctor.Report{Items: []finding.Finding{
		{
			ID: "drv.lib-mismatch", Root: true,
			Fix: finding.Fix{Text: "Reboot the node.", Commands: []string{"kubectl drain gpu-2"}},
		},
		{ID: "dp.capacity-zero", CausedBy: []string{"drv.lib-mismatch"}},
	}}
	for id, want := range map[string]string{
		"drv.lib-mismatch": "doctor cannot fix this safely; fix it manually.\nReboot the node.\n  kubectl drain gpu-2",
		"dp.capacity-zero": "not a root cause, but a consequence of drv.lib-mismatch",
		fixHandler:         "not found; root causes: drv.lib-mismatch",
	} {
		if _, err := rootToFix(report, id, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--fix %s: %v; wanted %q", id, err, want)
		}
	}
	if _, err := rootToFix(doctor.Report{}, fixHandler, ""); err == nil ||
		!strings.Contains(err.Error(), "there are no findings to fix") {
		t.Errorf("--fix on a healthy cluster: %v", err)
	}
}

func devicePlugin(phase corev1.PodPhase) corev1.Pod {
	yes := true
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "gpu-operator", Name: "nvidia-device-plugin-x", UID: "old",
			Labels: map[string]string{"app": "nvidia-device-plugin-daemonset"},
			OwnerReferences: []metav1.OwnerReference{
				{Kind: "DaemonSet", Name: "nvidia-device-plugin", UID: "ds", Controller: &yes},
			},
		},
		Spec: corev1.PodSpec{NodeName: "gpu-1"},
		Status: corev1.PodStatus{
			Phase: phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

// withoutGPUs returns the node of devicePlugin, and the DaemonSet.
func withoutGPUs() []runtime.Object {
	n := gpuNode("gpu-1", corev1.ConditionTrue)
	n.Status.Capacity, n.Status.Allocatable = nil, nil
	return []runtime.Object{
		&n,
		&appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "nvidia-device-plugin", UID: "ds"},
		},
	}
}

// Only a device plugin that runs, and is stuck now, not when it was read, is restarted.
func TestRestartOfTheDevicePlugin(t *testing.T) {
	t.Parallel()
	stuck := devicePlugin(corev1.PodRunning)
	root := finding.Finding{
		ID: fixCapacity, Root: true, Object: finding.Object{Kind: "Node", Name: "gpu-1"},
		Fix: finding.Fix{Text: "Look at it."},
	}
	s := &snapshot.Snapshot{Pods: []corev1.Pod{stuck}}
	e, cluster, _, _, _ := fixing(t, fixCapacity, append(withoutGPUs(), &stuck)...)
	fix, err := e.repair(t.Context(), cluster, s, root)
	if err != nil || len(fix.plan.Changes) != 1 || !fix.plan.Changes[0].Undo.IsPermanent() ||
		!strings.Contains(fix.summary[0], "cannot be undone") {
		t.Errorf("%+v, %v", fix, err)
	}
	pending := devicePlugin(corev1.PodPending)
	e, cluster, _, _, _ = fixing(t, fixCapacity, append(withoutGPUs(), &pending)...)
	if _, err := e.repair(t.Context(), cluster, s, root); err == nil ||
		!strings.Contains(err.Error(), "so recreating it would not help.\nLook at it.") {
		t.Errorf("a device plugin that does not run any more: %v", err)
	}
}

// What Examine finds is what --fix mends: from the event of a ReplicaSet whose pods are refused to the RuntimeClass.
func TestFindingOfAMissingRuntimeClassIsMended(t *testing.T) {
	t.Parallel()
	s := withNvidia(&snapshot.Snapshot{Meta: snapshot.Meta{Created: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}})
	for _, class := range []string{"nvidia", "nvidia-cdi"} {
		s.Events = append(s.Events, corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: class}, Reason: "FailedCreate", Type: "Warning",
			LastTimestamp:  metav1.NewTime(s.Meta.Created),
			InvolvedObject: corev1.ObjectReference{Kind: "ReplicaSet", Namespace: "team", Name: "train-" + class},
			Message: `Error creating: pods "train-x" is forbidden: pod rejected: RuntimeClass "` + class +
				`" not found`,
		})
	}
	report := doctor.Examine(s, doctor.Options{})
	_, err := rootToFix(report, fixHandler, "")
	if err == nil || !strings.Contains(err.Error(), "matches 2 root causes") ||
		!strings.Contains(err.Error(), "--fix rc.handler-mismatch=nvidia: ReplicaSet team/train-nvidia: ") {
		t.Fatalf("of two roots one is chosen: %v", err)
	}
	if _, err := rootToFix(report, fixHandler, "gvisor"); err == nil ||
		!strings.Contains(err.Error(), "no such root cause for this object") {
		t.Errorf("--fix rc.handler-mismatch=gvisor: %v", err)
	}
	root, err := rootToFix(report, fixHandler, "nvidia")
	if err != nil {
		t.Fatal(err)
	}
	e, cluster, _, _, _ := fixing(t, fixHandler)
	fix, err := e.repair(t.Context(), cluster, s, root)
	if err != nil || strings.Join(fix.done, " ") != "runtimeclass.node.k8s.io/nvidia created" {
		t.Errorf("%+v, %v", fix, err)
	}
	s.Events = s.Events[:1]
	if root, err := rootToFix(doctor.Examine(s, doctor.Options{}), fixHandler, ""); err != nil ||
		root.Subject.Name != "nvidia" {
		t.Errorf("the only root: %+v, %v", root.Subject, err)
	}
}

// Of a finding about many nodes one can be chosen.
func TestFixOfOneNode(t *testing.T) {
	t.Parallel()
	report := doctor.Report{Items: []finding.Finding{{
		ID: fixCapacity, Root: true, Object: finding.Object{Kind: "Node", Name: "gpu-1"},
		Objects: []finding.Object{{Kind: "Node", Name: "gpu-1"}, {Kind: "Node", Name: "gpu-2"}},
	}}}
	root, err := rootToFix(report, fixCapacity, "gpu-2")
	if err != nil || len(objectsOf(root)) != 1 || root.Object.Name != "gpu-2" {
		t.Errorf("%+v, %v", root, err)
	}
}

// A handler is known by what nodes say of themselves, and by what their runtime showed: kubelets before 1.31 do not say
// it.
func TestHandlersThatNodesHave(t *testing.T) {
	t.Parallel()
	s := &snapshot.Snapshot{Nodes: []corev1.Node{gpuNode("gpu-1", corev1.ConditionTrue)},
		Hosts: map[string]*api.Diagnosis{"gpu-1": {Runtime: api.Runtime{Instance: &api.Instance{
			CRI: &cri.Info{Config: json.RawMessage(
				`{"containerd":{"runtimes":{"nvidia-container-runtime":{"runtimeType":"io.containerd.runc.v2"}}}}`,
			)},
		}}}}}
	if handler, nodes := handlerFor(s, "nvidia"); handler != "nvidia-container-runtime" || len(nodes) != 1 {
		t.Errorf("handler %q on %v", handler, nodes)
	}
	if handler, nodes := handlerFor(s, "gvisor"); handler != "" || nodes != nil {
		t.Errorf("a class of gVisor gets handler %q", handler)
	}
}

// Only the runs that the finding names are reverted.
func TestRevertOfInjectedFaults(t *testing.T) {
	t.Parallel()
	s := &snapshot.Snapshot{
		Runs: []snapshot.Run{{ID: "xid-aaaaaa", Summary: "XID 79"}, {ID: "runtime-bbbbbb", Summary: "handler"}},
	}
	for _, root := range []finding.Finding{
		{ID: fixInjected, Object: finding.Object{Kind: "Run", Name: "runtime-bbbbbb"}},
		{
			ID: fixInjected, Object: finding.Object{Kind: "Node", Name: "gpu-1"},
			Fix: finding.Fix{Commands: []string{"kubectl gpu-fault revert runtime-bbbbbb"}},
		},
	} {
		fix, err := reverting(s, root)
		if err != nil || strings.Join(fix.revert, " ") != "runtime-bbbbbb" {
			t.Errorf("to be reverted: %v, %v", fix.revert, err)
		}
	}
	if _, err := reverting(s, finding.Finding{ID: fixInjected}); err == nil {
		t.Error("nobody knows which run, and one is reverted")
	}
}

// Without a terminal nothing is changed unless --yes is given, and with --dry-run nothing is asked.
func TestFixAsks(t *testing.T) {
	t.Parallel()
	root := devicePlugin(corev1.PodRunning)
	for _, dryRun := range []dryrun.Mode{dryrun.None, dryrun.Client} {
		e, cluster, client, out, _ := fixing(t, fixCapacity, append(withoutGPUs(), &root)...)
		e.yes, e.dryRun = false, dryRun
		fix, err := e.repair(context.Background(), cluster, &snapshot.Snapshot{Pods: []corev1.Pod{root}},
			finding.Finding{ID: fixCapacity, Object: finding.Object{Kind: "Node", Name: "gpu-1"}})
		if err != nil {
			t.Fatal(err)
		}
		err = e.carryOut(t.Context(), cluster, fix)
		if dryRun == "client" &&
			(err != nil || out.String() != "pod/nvidia-device-plugin-x deleted (client dry run)\n") {
			t.Errorf("client dry run: %v, %q", err, out.String())
		}
		if dryRun == "none" && (err == nil || !strings.Contains(err.Error(), "pass --yes")) {
			t.Errorf("without a terminal: %v", err)
		}
		for _, action := range client.Actions() {
			if action.GetVerb() == "delete" {
				t.Errorf("--dry-run=%s: %v", dryRun, action)
			}
		}
	}
}
