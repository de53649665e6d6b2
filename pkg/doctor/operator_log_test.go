package doctor

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func (b *bench) clusterPolicy(state string, spec map[string]any) *bench {
	b.ClusterPolicies = []unstructured.Unstructured{{Object: map[string]any{
		"kind": "ClusterPolicy", "metadata": map[string]any{"name": "cluster-policy"}, "spec": spec,
		"status": map[string]any{"state": state},
	}}}
	return b
}

func component(app string) podChange {
	return func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": app}
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: app, Controller: new(true)}}
	}
}

// examined runs all checks, and compares the root causes and a text.
func examined(t *testing.T, cases map[string]benchCase) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Examine(&c.bench.Snapshot, Options{})
			text := fmt.Sprintf("%+v", report.Items)
			if got := strings.Join(fieldRoots(report), " "); got != c.want || !strings.Contains(text, c.text) {
				t.Errorf("the roots are %q, want %q with %q\n%s", got, c.want, c.text, describe(report))
			}
		})
	}
}

// TestOperatorLog verifies that the log of a running operator explains why the operator applies nothing, but not with
// errors that it retries.
func TestOperatorLog(t *testing.T) {
	t.Parallel()
	with := func(reason string) *bench {
		return newBench().node("a", 0).pod("p", "", 1).pod("o", "a", 0, component("gpu-operator")).
			clusterPolicy("notReady", nil).log("o", `{"level":"info","msg":"Reconciling"}`+"\n"+
			`{"level":"error","msg":"Reconciler error","controller":"clusterpolicy-controller","error":"`+reason+`"}`)
	}
	examined(t, map[string]benchCase{
		"unknown": {
			with(`the widget \"x\" is broken`), "op.clusterpolicy",
			`cannot apply its configuration: the widget "x" is broken`,
		},
		"privileged": {
			with(`DaemonSet.apps \"d\" is invalid: spec.template.spec.containers[0].securityContext.privileged: ` +
				`Forbidden: disallowed by cluster policy`), "op.clusterpolicy/operator-privileged-not-allowed",
			"--allow-privileged=true",
		},
		"labels of the system": {
			with(`unable to retrieve OS name from label feature.node.kubernetes.io/system-os_release.ID`),
			"op.clusterpolicy/operator-os-labels-missing", "NFD's worker",
		},
		"conflict": {
			with(`Operation cannot be fulfilled: the object has been modified`), "dp.none op.clusterpolicy",
			"reports that it is not ready",
		},
	})
}

// TestOperandImage verifies that an image is corrected in the ClusterPolicy or by an upgrade, because the operator
// reverts changes to its DaemonSets.
func TestOperandImage(t *testing.T) {
	t.Parallel()
	for image, text := range map[string]string{
		"nvcr.io/nvidia/cuda:11.2.1-base-ubi8": ".spec.operator.initContainer",
		"nvcr.io/nvidia/cuda@sha256:ed72":      "Upgrade the operator",
	} {
		runs := func(p *corev1.Pod) { p.Spec.Containers[0].Image = image }
		b := newBench().node("a", 0).pod("t", "a", 0, component("nvidia-container-toolkit-daemonset"),
			cannotPull("ErrImagePull", image+": not found"), runs).
			clusterPolicy("notReady", map[string]any{"operator": map[string]any{"initContainer": map[string]any{
				"image": "cuda", "version": "11.2.1-base-ubi8",
			}}})
		runBench(t, map[string]benchCase{image: {b, "img.not-found error", text}})
	}
}

// TestOtherPlugin verifies that another vendor's failing plugin explains the pods that are waiting for its resource,
// regardless of whether its message is known.
func TestOtherPlugin(t *testing.T) {
	t.Parallel()
	plugin := func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"},
		}}}
	}
	with := func(text string) *bench {
		return newBench().node("a", 0, func(n *corev1.Node) { n.Labels = nil }).
			pod("p", "", 0, wants("gpu.intel.com/i915", 1)).pod("intel-gpu-plugin-x", "a", 0, plugin).
			event("Pod", "intel-gpu-plugin-x", "FailedMount", text)
	}
	examined(t, map[string]benchCase{
		"unknown": {with("the mount is odd"), "wl.other-accelerator", "a pod of the software that advertises it is " +
			"not running"},
		"known": {
			with(`MountVolume.SetUp failed for volume "kubeletcrt" : open /var/lib/kubelet/pki/kubelet.crt: ` +
				"no such file or directory"),
			"wl.message/intel-gpu-plugin-resource-manager-kubelet-crt", "resourceManager: false",
		},
	})
}

// TestInstallReachesTaints verifies that the commands that install a plugin tolerate the nodes' own taints.
func TestInstallReachesTaints(t *testing.T) {
	t.Parallel()
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "ml", Effect: corev1.TaintEffectNoSchedule}}
		delete(n.Status.Capacity, "nvidia.com/gpu")
		delete(n.Status.Allocatable, "nvidia.com/gpu")
	}
	tolerates := func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}} }
	examined(t, map[string]benchCase{
		"operator": {
			newBench().node("a", 0, taint).pod("p", "", 1, tolerates), "dp.none", "daemonsets.tolerations[0].key=team",
		},
		"plugin": {
			newBench().node("a", 0, taint, on("eks.amazonaws.com/nodegroup")).pod("p", "", 1, tolerates), "dp.none",
			"'tolerations[0].key=team'",
		},
	})
}
