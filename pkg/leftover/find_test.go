package leftover

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cordon"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/kernellog"
)

func uid(kind, name string) types.UID { return types.UID(kind + "-" + name) }

// pod returns a debug pod of a run.
func pod(run string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: pod-%[1]s, namespace: gpu-fault, labels: {app.kubernetes.io/managed-by: kubectl-gpu-fault, gpufault.dev/run: %[1]s}}
spec: {nodeName: gpu-1, activeDeadlineSeconds: 7200}
status: {phase: Running}
`, run)
}

func lease(run string) string {
	return fmt.Sprintf(`
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: lock-%[1]s
  namespace: gpu-fault
  labels: {app.kubernetes.io/managed-by: kubectl-gpu-fault, gpufault.dev/run: %[1]s}
  annotations: {gpufault.dev/target: Node/gpu-1}
`, run)
}

// run returns a run with one step on node gpu-1 that has to be undone, as far as the state says.
func run(id string, phase ledger.Phase, state ledger.State, change func(*ledger.Run)) ledger.Run {
	kind, _, _ := strings.Cut(id, "-")
	r := ledger.Run{
		ID: id, Fault: kind, Summary: "containerd without a handler", Created: now.Add(-time.Hour),
		Deadline: now.Add(-30 * time.Minute), Phase: phase,
		Steps: []ledger.Step{
			{
				ID: "1", Target: ledger.Target{Kind: "Node", Name: "gpu-1"}, State: state,
				Undo: ledger.Undo{Kind: "files"},
			},
		},
	}
	if change != nil {
		change(&r)
	}
	return r
}

// What belongs to a run is judged by the run: in place, over, or overdue.
func TestWhatIsOurs(t *testing.T) {
	t.Parallel()
	until := func(d time.Duration) func(*ledger.Run) { return func(r *ledger.Run) { r.Until = now.Add(d) } }
	for name, tc := range map[string]struct {
		run    *ledger.Run
		damage bool // the record
		want   []string
		inUse  int
		nodes  []string
	}{
		"its record is gone": {want: []string{
			"gpu-fault lease.coordination.k8s.io/lock-runtime-22 | kubectl-gpu-fault runtime-22 | lock of Node/gpu-1, the run has no record | delete",
			"gpu-fault pod/pod-runtime-22 | kubectl-gpu-fault runtime-22 | debug pod on node gpu-1, Running, the run has no record | delete",
		}},
		"closed": {
			run: new(run("runtime-22", ledger.Reverted, ledger.StateReverted, func(r *ledger.Run) { r.Closed = now })),
			want: []string{
				"gpu-fault lease.coordination.k8s.io/lock-runtime-22 | kubectl-gpu-fault runtime-22 | lock of Node/gpu-1, the run is closed | delete",
				"gpu-fault pod/pod-runtime-22 | kubectl-gpu-fault runtime-22 | debug pod on node gpu-1, Running, the run is closed | delete",
			},
		},
		"closed, with files that were not put back": {
			run: new(
				run("runtime-22", ledger.Reverted, ledger.StateSuperseded, func(r *ledger.Run) { r.Closed = now }),
			),
			want: []string{
				"gpu-fault lease.coordination.k8s.io/lock-runtime-22 | kubectl-gpu-fault runtime-22 | lock of Node/gpu-1, the run is closed | delete",
				"gpu-fault pod/pod-runtime-22 | kubectl-gpu-fault runtime-22 | debug pod on node gpu-1, Running, the run is closed | delete",
			},
			nodes: []string{"gpu-1"},
		},
		"in place, without an end": {run: new(run("runtime-22", ledger.Proven, ledger.StateProven, nil)), inUse: 2},
		"in place, with an end": {
			run: new(run("runtime-22", ledger.Proven, ledger.StateProven, until(time.Minute))), inUse: 2,
		},
		"in its way": {
			run: new(run("runtime-22", ledger.Applying, ledger.StateApplying,
				func(r *ledger.Run) { r.Deadline = now.Add(time.Minute) })),
			inUse: 2,
		},
		"its time is up": {
			run: new(run("runtime-22", ledger.Proven, ledger.StateProven, until(-time.Minute))),
			want: []string{"gpu-fault fault/runtime-22 | kubectl-gpu-fault runtime-22 | containerd without a handler on node/gpu-1: " +
				"expired at 2026-05-04T11:59:00Z; not confirmed as reverted | none | kubectl gpu-fault revert runtime-22"},
			nodes: []string{"gpu-1"},
		},
		"its client died": {
			run: new(run("runtime-22", ledger.Applying, ledger.StateApplying, nil)),
			want: []string{"gpu-fault fault/runtime-22 | kubectl-gpu-fault runtime-22 | containerd without a handler on node/gpu-1: " +
				"the client crashed; not confirmed as reverted | none | kubectl gpu-fault revert runtime-22"},
			nodes: []string{"gpu-1"},
		},
		"nothing to undo, but not tidied up": {
			run: new(run("runtime-22", ledger.Proven, ledger.StateProven,
				func(r *ledger.Run) { r.Steps[0].Undo = ledger.Undo{Kind: ledger.UndoNone} })),
			want: []string{
				"gpu-fault lease.coordination.k8s.io/lock-runtime-22 | kubectl-gpu-fault runtime-22 | lock of Node/gpu-1, the client exited without cleaning up | none | kubectl gpu-fault revert runtime-22",
				"gpu-fault pod/pod-runtime-22 | kubectl-gpu-fault runtime-22 | debug pod on node gpu-1, Running, the client exited without cleaning up | none | kubectl gpu-fault revert runtime-22",
			},
			nodes: []string{"gpu-1"},
		},
		// A newer version may have written it: nothing of it may be deleted.
		"its record cannot be read": {
			run: new(run("runtime-22", ledger.Proven, ledger.StateProven, nil)), damage: true,
			want: []string{
				"gpu-fault lease.coordination.k8s.io/lock-runtime-22 | kubectl-gpu-fault runtime-22 | lock of Node/gpu-1, the record of the run cannot be read | none | kubectl get configmap runtime-22 -n gpu-fault -o yaml",
				"gpu-fault pod/pod-runtime-22 | kubectl-gpu-fault runtime-22 | debug pod on node gpu-1, Running, the record of the run cannot be read | none | kubectl get configmap runtime-22 -n gpu-fault -o yaml",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, pod("runtime-22")+"\n---\n"+lease("runtime-22"))
			if tc.run != nil {
				w.record(*tc.run)
			}
			if tc.damage {
				configMaps := w.client.CoreV1().ConfigMaps(ledger.DefaultNamespace)
				cm, err := configMaps.Get(t.Context(), "runtime-22", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				cm.Data["run.json"] += " "
				if _, err := configMaps.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			found := w.find()
			if tc.want == nil {
				tc.want = []string{}
			}
			if diff := cmp.Diff(tc.want, lines(found.Items)); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
			if found.InUse != tc.inUse || !slices.Equal(found.Nodes, tc.nodes) {
				t.Errorf("in use %d, wanted %d; nodes %v, wanted %v", found.InUse, tc.inUse, found.Nodes, tc.nodes)
			}
		})
	}
}

// TestObjectsOfChaosMesh holds that the object of a fault by Chaos Mesh is a leftover if its run has no record, and
// that an object without the label of this tool is not.
func TestObjectsOfChaosMesh(t *testing.T) {
	t.Parallel()
	const object = `
apiVersion: chaos-mesh.org/v1alpha1
kind: NetworkChaos
metadata: {name: %s, namespace: ml, labels: {app.kubernetes.io/managed-by: %s, gpufault.dev/run: network-22}}
`
	w := newWorld(t, fmt.Sprintf(object, "ours", "kubectl-gpu-fault")+"\n---\n"+fmt.Sprintf(object, "theirs", "helm"))
	want := []string{
		"ml networkchaos.chaos-mesh.org/ours | kubectl-gpu-fault network-22 | fault injected through Chaos Mesh, the run has no record | delete",
	}
	if diff := cmp.Diff(want, lines(w.find().Items)); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

// A command that only reads has no record: its pod is no leftover while it may be at work, and one when its deadline
// has passed.
func TestPodsOfReadersAreInUse(t *testing.T) {
	t.Parallel()
	young := newWorld(t, pod("leftovers-22")).find()
	if len(young.Items) != 0 {
		t.Errorf("at work: %v", lines(young.Items))
	}
	old := newWorld(t, strings.Replace(pod("leftovers-22"), "7200", "60", 1)).find()
	if len(old.Items) != 1 || old.Items[0].Remedy != Delete {
		t.Errorf("past its deadline: %v", lines(old.Items))
	}
}

// TestCopyOfADaemonSetsPod: it is not called a debug pod, because its deletion has another effect.
func TestCopyOfADaemonSetsPod(t *testing.T) {
	t.Parallel()
	copied := strings.Replace(pod("device-22"), "spec: {", "spec: {initContainers: [{name: gpu-fault-gate}], ", 1)
	items := lines(newWorld(t, copied).find().Items)
	if len(items) != 1 || !strings.Contains(items[0], "copy of a DaemonSet's pod on node") {
		t.Errorf("%q", items)
	}
}

// TestPodWithoutRunLabel: a pod that has lost the label of its run still belongs to the run in its name.
func TestPodWithoutRunLabel(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"gpu-fault-xid-ksk3mw-05c3b726": "xid-ksk3mw", "gpu-fault-xid-ksk3mw-05c3b726-x": "", "plugin-05c3b726": "",
	} {
		if got := runInName(name); got != want {
			t.Errorf("%s: run %q, want %q", name, got, want)
		}
	}
}

// A command that injects a fault writes its record first: its pod without a record is a leftover at once.
func TestPodsOfFaultsWithoutARecordAreLeft(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"xid", "cuda", "runtime", "network", "device", "fleet"} {
		if found := newWorld(t, pod(fault+"-22")).find(); len(found.Items) != 1 {
			t.Errorf("%s: %v", fault, lines(found.Items))
		}
	}
}

// Who may not read all records cannot know that a run has none.
func TestWithoutAllRecordsNothingOfOursIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, pod("xid-22"))
	forbidAll(&w.metadata.Fake, "configmaps", "")
	found := w.find()
	if len(found.Items) != 1 || found.Items[0].Remedy != Nobody {
		t.Errorf("found %v", lines(found.Items))
	}
	want := []Skipped{
		{
			What: "configmaps", Why: "you are not allowed to list these objects in all namespaces",
			Namespaces: []string{"gpu-fault"},
		},
	}
	if diff := cmp.Diff(want, found.Skipped); diff != "" {
		t.Errorf("not looked at (-want +got):\n%s", diff)
	}
}

// A record in a namespace that no administrator has marked may be anyone's: no command is suggested that would follow
// it.
func TestRecordsOfTenantsAreNotFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.record(ledger.Run{
		ID: "runtime-222222", Fault: "runtime", Phase: ledger.Proven, Created: now.Add(-time.Hour),
		Until: now.Add(-time.Minute),
		Steps: []ledger.Step{{
			ID: "1", Target: ledger.Target{Kind: "Node", Name: "gpu-1"}, State: ledger.StateProven,
			Undo: ledger.Undo{Kind: "node-files"},
		}},
	})
	if found := w.find(); len(found.Items) != 1 || !strings.Contains(found.Items[0].Todo, "revert") {
		t.Fatalf("in a ledger: %v", lines(found.Items))
	}
	w.add(parse(t, pod("runtime-222222")))
	tenant := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ledger.DefaultNamespace}}
	if _, err := w.client.CoreV1().Namespaces().Create(t.Context(), tenant, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	found := w.find()
	// Its pod is not a leftover either: an administrator's namespace may only lack the label.
	if len(found.Items) != 1 || found.Items[0].Remedy != Nobody || strings.Contains(found.Items[0].Todo, "kubectl") ||
		len(found.Nodes) != 0 {
		t.Errorf("in a namespace that is not marked: %v on %v", lines(found.Items), found.Nodes)
	}
	if len(found.Skipped) != 0 || !slices.Equal(found.Unmarked, []string{ledger.DefaultNamespace}) {
		t.Errorf("not marked %v, not looked at %v: a tenant must not make every look incomplete", found.Unmarked,
			found.Skipped)
	}
	if keep := found.Keep([]deadman.Leftover{{Run: "runtime-222222"}}); !slices.Contains(keep, "runtime-222222") {
		t.Errorf("the helper is told to keep %v", keep)
	}
}

// A kind that may not be read does not stop the others; the namespaces that may be read are.
func TestForbiddenKindsAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, pod("xid-22")+"\n---\n"+lease("xid-22"))
	forbidAll(&w.dynamic.Fake, "pods", "")
	found := w.find()
	if got := lines(found.Items); len(got) != 2 {
		t.Errorf("found %v, wanted the lease, and the pod in the ledger's namespace", got)
	}
	if len(found.Skipped) != 1 || found.Skipped[0].What != "pods" ||
		!slices.Equal(found.Skipped[0].Namespaces, []string{"gpu-fault"}) {
		t.Errorf("not looked at: %v", found.Skipped)
	}
}

// A cluster that does not answer is an error, not an empty list.
func TestErrorsAreNoAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.dynamic.PrependReactor("list", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(fmt.Errorf("etcd is away"))
	})
	if found, err := w.finder().Find(t.Context()); err == nil || !strings.Contains(err.Error(), "list jobs.batch") {
		t.Errorf("got %v, %v", found, err)
	}
}

// The helper's findings follow the ledger, too.
func TestOnNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.record(run("runtime-open", ledger.Proven, ledger.StateProven, nil))
	w.record(run("runtime-over", ledger.Reverted, ledger.StateReverted, func(r *ledger.Run) { r.Closed = now }))
	found := w.find()
	things := []deadman.Leftover{
		{Kind: deadman.LeftoverRecord, Path: "/var/lib/gpu-fault/runtime-open", Run: "runtime-open"},
		{
			Kind: deadman.LeftoverRecord, Path: "/var/lib/gpu-fault/runtime-over", Run: "runtime-over",
			Status: &deadman.Status{Phase: deadman.PhaseFailed},
		},
		{Kind: deadman.LeftoverDeadMan, Path: "pid 4711", Run: "runtime-gone"},
		{Kind: deadman.LeftoverModule, Path: "/sys/module/gpu_fault_xid", Run: "xid-gone"},
		{Kind: deadman.LeftoverDevices, Path: "/run/gpu-fault/devices/a", Run: "device-gone", Ended: true},
		{Kind: deadman.LeftoverForeign, Path: "/var/lib/cuda-fault-test"},
	}
	want := []string{
		"record/gpu-1:/var/lib/gpu-fault/runtime-over | kubectl-gpu-fault runtime-over | record of changed files, failed, the run is closed | onNode",
		"dead-man/gpu-1:pid 4711 | kubectl-gpu-fault runtime-gone | process that restores files, the run has no record | onNode",
		"kernel-module/gpu-1:/sys/module/gpu_fault_xid | kubectl-gpu-fault xid-gone | kernel module that writes driver log lines, the run has no record | onNode",
		"failed-devices/gpu-1:/run/gpu-fault/devices/a | kubectl-gpu-fault device-gone | record of devices that were reported as unhealthy; the fault has ended, the run has no record | onNode",
		"foreign/gpu-1:/var/lib/cuda-fault-test | Dynamo fault injection  | switch for the CUDA library | onNode",
	}
	if diff := cmp.Diff(want, lines(found.OnNode("gpu-1", things))); diff != "" {
		t.Errorf("on the node (-want +got):\n%s", diff)
	}
	if keep := found.Keep(things); !slices.Equal(keep, []string{"runtime-open"}) {
		t.Errorf("the helper may not touch %v, wanted the open run", keep)
	}
}

// A node is worth a look only where a kernel module may have stayed: lines in its log cannot be taken away.
func TestNodesWhereAModuleMayBe(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		undo  ledger.Undo
		nodes []string
	}{
		"lines":  {ledger.Undo{Kind: kernellog.UndoKind, Permanent: true}, nil},
		"module": {ledger.Undo{Kind: kernellog.ModuleUndoKind}, []string{"gpu-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			w.record(
				run("xid-22", ledger.Applying, ledger.StateApplying, func(r *ledger.Run) { r.Steps[0].Undo = tc.undo }),
			)
			if found := w.find(); !slices.Equal(found.Nodes, tc.nodes) || len(found.Items) != len(tc.nodes) {
				t.Errorf("nodes %v, %v; wanted %v", found.Nodes, lines(found.Items), tc.nodes)
			}
		})
	}
}

// forbidAll refuses to list a resource in all namespaces.
func forbidAll(fake *clienttesting.Fake, resource, namespace string) {
	fake.PrependReactor("list", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() != namespace {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", fmt.Errorf("no"))
	})
}

// A node that a run without a record has cordoned is found, and never deleted or changed: whether it may take pods
// again is the user's decision. A cordon of an open run, and one of somebody else, is none.
func TestCordonedNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	for name, manager := range map[string]string{
		"lost": cordon.Manager("remediation-lost12"), "open": cordon.Manager("remediation-open12"),
		"theirs": "kubectl-cordon",
	} {
		w.addMetadata(nodeResource, &metav1.ObjectMeta{
			Name: name, UID: uid("Node", name),
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: manager, FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`),
			}},
		})
	}
	open := run("remediation-open12", ledger.Proven, ledger.StateProven, nil)
	open.Deadline = now.Add(time.Hour)
	w.record(open)
	found := w.find()
	if len(found.Items) != 1 || found.Items[0].Name != "lost" || found.Items[0].Remedy != Nobody ||
		found.Items[0].Todo != "kubectl uncordon lost" {
		t.Errorf("%+v", found.Items)
	}
}
