//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/test/cluster"
)

// reader is a DaemonSet that reads the driver on both nodes, as device plugins do.
type reader struct {
	*cuda
	get    func() *unstructured.Unstructured
	before string
	other  corev1.Pod // that of the node without the fault
}

func setupReader(t *testing.T) *reader {
	r := &reader{cuda: setupCUDA(t)}
	d := r.deployment("reader")
	r.get = r.create(&appsv1.DaemonSet{
		ObjectMeta: d.ObjectMeta, Spec: appsv1.DaemonSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
	})
	for _, pod := range r.healthy("reader", 2) {
		if pod.Spec.NodeName != r.worker.Name {
			r.other = pod
		}
	}
	r.before = asUserSees(t, r.get())
	return r
}

func (r *reader) xid(code string, more ...string) []string {
	return append([]string{
		"xid", code, r.worker.Name, "--layers", "kernel,nvml", "--allow-last-gpu-node", "--allow-majority", "--yes",
	}, more...)
}

func (r *reader) itself() string { return r.namespace + "/reader" }

// own waits until the DaemonSet has a ready pod of its own on the node, and the same one on the other node.
func (r *reader) own(when string) {
	r.t.Helper()
	cluster.Eventually(r.t, patience, "pods of the DaemonSet's own "+when, func() (bool, string) {
		pods := r.pods("reader")
		same := false
		for _, pod := range pods {
			if pod.Labels[ledger.LabelRun] != "" || !isUp(&pod) || metav1.GetControllerOf(&pod) == nil {
				return false, fmt.Sprintf("%s: %s, %v", pod.Name, pod.Status.Phase, pod.Labels)
			}
			same = same || pod.UID == r.other.UID && restartsOf(&pod) == restartsOf(&r.other)
		}
		return len(pods) == 2 && same, fmt.Sprintf("%d pods; the other node has the same: %t", len(pods), same)
	})
	r.same(r.before, r.get())
}

func isUp(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && podutils.IsPodReady(pod) }

func restartsOf(pod *corev1.Pod) int {
	all := 0
	for _, s := range pod.Status.ContainerStatuses {
		all += int(s.RestartCount)
	}
	return all
}

// TestLayerNVML is a fault in the program of a DaemonSet on one node: it sees it, that of the other node is not even
// restarted, the DaemonSet is never changed, and the revert leaves a pod of its own.
func TestLayerNVML(t *testing.T) {
	r := setupReader(t)
	var got oneFault
	r.decode(r.ok(r.xid("79", "--daemonset", r.itself(), "-o", "json")...).stdout, &got)
	if len(got.Layers) != 2 || got.Layers[0].Layer != "nvml" || got.Layers[0].State != "proven" {
		t.Errorf("the layers are %+v", got.Layers)
	}
	var ours corev1.Pod
	for _, pod := range r.pods("reader") {
		if pod.Labels[ledger.LabelRun] == got.ID {
			ours = pod
		}
	}
	owner := metav1.GetControllerOf(&ours)
	if ours.Spec.NodeName != r.worker.Name || owner == nil || owner.UID != r.get().GetUID() {
		t.Errorf("pod %s on node %q belongs to %v", ours.Name, ours.Spec.NodeName, owner)
	}
	cluster.Eventually(t, soon, "the program's error", func() (bool, string) {
		text := r.log(ours, 0) + r.logBefore(ours)
		// A running process gets 999, and one that starts later 100.
		return strings.Contains(text, "injected CUDA error"), text
	})
	r.mustSay(r.plugin(r.xid("48", "--daemonset", r.itself())...), 1, got.ID)
	r.ok("revert", got.ID, "--yes")
	r.own("after the revert")
	r.nothingLeft()
}

// TestLayerNVMLExpires: nobody reverts, and the DaemonSet has its own pod again all the same.
func TestLayerNVMLExpires(t *testing.T) {
	r := setupReader(t)
	r.ok(r.xid("48", "--daemonset", r.itself(), "--ttl", "30s")...)
	r.own("when the time is up")
	r.ok("revert", "--all", "--yes")
	r.nothingLeft()
}

// TestLayerNVMLOfAStaticProgram: the simulated device plugin loads no library. Nothing of the fault remains.
func TestLayerNVMLOfAStaticProgram(t *testing.T) {
	r := setupReader(t)
	r.mustSay(r.plugin(r.xid("48")...), 1, "specify another program with --daemonset NAMESPACE/NAME")
	cluster.Eventually(t, patience, "both GPUs are allocatable", func() (bool, string) {
		n := r.allocatable()
		return n == 2, fmt.Sprint(n)
	})
	r.nothingLeft()
	r.noPods()
}

// TestLayerNVMLOfAKilledClient kills the client at each of its writes to the pods and the ConfigMap. The node keeps a
// pod of the DaemonSet, or gets one within a minute, and another client restores all.
func TestLayerNVMLOfAKilledClient(t *testing.T) {
	r := setupReader(t)
	changes := func(q *http.Request) bool { return q.URL.Query().Get("dryRun") == "" }
	pods, maps := "/namespaces/"+r.namespace+"/pods", "/namespaces/"+r.namespace+"/configmaps"
	nth := func(method, path string, n int) func(*http.Request) bool {
		return func(q *http.Request) bool {
			other := q.Method != method || !strings.Contains(q.URL.Path, path) || strings.Contains(q.URL.Path, "/exec")
			if other || !changes(q) {
				return false
			}
			n--
			return n == 0
		}
	}
	for _, step := range []struct {
		name  string
		match func(*http.Request) bool
	}{
		{"the copy is created", nth(http.MethodPost, pods, 1)},
		{"its ConfigMap is created", nth(http.MethodPost, maps, 1)},
		{"the original is deleted", nth(http.MethodDelete, pods, 1)},
		{"the copy is the DaemonSet's", nth(http.MethodPatch, pods, 1)},
		{"the copy may start", nth(http.MethodPatch, pods, 2)},
		{"the shim is armed", nth(http.MethodPatch, maps, 1)},
	} {
		out := r.killedAt(step.match, true, r.xid("48", "--daemonset", r.itself(), "--ttl", "3m")...)
		cluster.Eventually(t, 2*time.Minute, "ready pods on both nodes after the client was killed when "+step.name,
			func() (bool, string) {
				ready := map[string]bool{}
				for _, pod := range r.pods("reader") {
					ready[pod.Spec.NodeName] = ready[pod.Spec.NodeName] || isUp(&pod)
				}
				return len(ready) == 2 && ready[r.worker.Name], fmt.Sprint(ready)
			})
		if runs := r.runs(); len(runs) != 1 {
			t.Fatalf("%s: open runs %+v; the client had said:\n%s", step.name, runs, out)
		}
		r.ok("revert", "--all", "--yes", "--force")
		r.own("after a revert of what was killed when " + step.name)
		r.nothingLeft()
	}
}
