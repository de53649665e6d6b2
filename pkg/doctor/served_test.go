package doctor

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// daemonSet adds a DaemonSet with no desired pods, because of its selector or its tolerations.
func (b *bench) daemonSet(name string, selects map[string]string) *bench {
	d := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "plugins", Name: name}}
	d.Spec.Template.Spec.NodeSelector = selects
	b.DaemonSets = append(b.DaemonSets, d)
	return b
}

func elsewhere(p *corev1.Pod) { p.Namespace = "kube-system" }

func wants(name string, count int64) podChange {
	return needs(corev1.ResourceList{corev1.ResourceName(name): pieces(count)})
}

func on(platform string) nodeChange {
	return func(n *corev1.Node) { n.Labels[platform] = "x" }
}

func labelled(key string) podChange {
	return func(p *corev1.Pod) { p.Labels = map[string]string{key: "launcher"} }
}

// TestWhoServesPods verifies that a missing component explains the pods that depend on it: a scheduler that is not
// running, or any vendor's plugin that runs on no node. The fix must work on the platform.
func TestWhoServesPods(t *testing.T) {
	t.Parallel()
	hami := func(p *corev1.Pod) {
		p.Spec.SchedulerName = "hami-scheduler"
		p.Spec.Containers[0].Resources.Limits["nvidia.com/gpumem"] = resource.MustParse("3000")
		p.Status.Conditions = nil
	}
	empty := func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES"}}
	}
	const blind = "RuntimeError: Found no NVIDIA driver on your system.\n"
	gke, eks := on("cloud.google.com/gke-nodepool"), on("eks.amazonaws.com/nodegroup")
	runBench(t, map[string]benchCase{
		"a scheduler that does not run": {
			newBench().node("a", 2).pod("p", "", 1, hami).
				pod("hami-scheduler-5c-x", "a", 0, elsewhere, cannotPull("ImagePullBackOff", "dial tcp: i/o timeout")),
			"img.pull-network info, sched.no-scheduler error", "Pod kube-system/hami-scheduler-5c-x is failing",
		},
		"an extender accounts for what no node advertises": {
			newBench().node("a", 2).pod("p", "", 1, hami, toldByAnother("no available node")),
			"sched.unschedulable error", "",
		},
		"other pods hold all of it": {
			newBench().node("a", 2, gives("gpu.intel.com/i915", 5, 5)).
				pod("server", "a", 0, wants("gpu.intel.com/i915", 5)).
				pod("p", "", 0, wants("gpu.intel.com/i915", 1)),
			"wl.other-accelerator error", "other pods hold the entire capacity of gpu.intel.com/i915: 5",
		},
		"what the nodes lack is named": {
			newBench().node("a", 2, gives("rdma/hca", 1, 0)).pod("p", "", 1, func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Limits["rdma/hca"] = resource.MustParse("1")
			}),
			"sched.insufficient-other error", "enough free rdma/hca for the pod",
		},
		"a label that the cloud sets": {
			newBench().node("a", 2, gke).pod("p", "", 1, selector("cloud.google.com/gke-accelerator", "nvidia-l4")),
			"sched.node-selector error", "The platform or feature discovery sets cloud.google.com/gke-accelerator",
		},
		"nothing adds nodes": {
			newBench().node("a", 2, eks).pod("h", "a", 2).pod("p", "", 1), "sched.all-in-use warning",
			"neither cluster-autoscaler nor Karpenter, which could add nodes, was found",
		},
		"a program that ends": {
			newBench().node("a", 2).pod("p", "a", 1, crashing(0, "Completed")).log("p", "done\n"),
			"wl.completes error, wl.pod-failing error",
			"exits without an error",
		},
		"a launcher without GPUs": {
			newBench().node("a", 2).
				pod("p", "a", 1, empty, crashing(1, "Error"), labelled("training.kubeflow.org/job-role")).
				log("p", blind), "wl.cpu-mode error, wl.pod-failing error", "runLauncherAsWorker",
		},
		"an image that does not know GKE's libraries": {
			newBench().node("a", 2, gke).pod("p", "a", 1, crashing(1, "Error")).log("p", blind),
			"wl.cpu-mode error, wl.pod-failing error", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64",
		},
		"a driver that comes with the image": {
			newBench().node("a", 2, gke).pod("p", "a", 1, crashing(1, "Error")).
				log("p", "CUDA driver version is insufficient for CUDA runtime version\n"),
			"wl.cuda-vs-driver error, wl.pod-failing error", "Upgrade the node pool",
		},
	})
}

// TestPluginsThatRunNowhere verifies that another vendor's plugin DaemonSet that runs on no node because of a label or
// a taint is reported, unless an autoscaler may add its nodes.
func TestPluginsThatRunNowhere(t *testing.T) {
	t.Parallel()
	intel := map[string]string{"intel.feature.node.kubernetes.io/gpu": "true"}
	for name, test := range map[string]struct {
		bench *bench
		says  string
	}{
		"no such label": {
			newBench().node("a", 2).pod("p", "", 0, wants("gpu.intel.com/i915", 1)).
				daemonSet("intel-gpu-plugin", intel),
			"no node has intel.feature.node.kubernetes.io/gpu=true",
		},
		"a taint": {
			newBench().node("a", 2, tainted("amd.com/gpu", "present")).pod("p", "", 0, wants("amd.com/gpu", 1)).
				daemonSet("amdgpu-device-plugin", nil),
			"does not tolerate the taint amd.com/gpu=present:NoSchedule",
		},
		"nobody waits": {newBench().node("a", 2).daemonSet("intel-gpu-plugin", intel), ""},
		"an autoscaler": {
			newBench().node("a", 2).pod("p", "", 0, wants("gpu.intel.com/i915", 1)).
				daemonSet("intel-gpu-plugin", intel).
				event("Pod", "p", "NotTriggerScaleUp", "pod didn't trigger scale-up"), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			for _, f := range Examine(&test.bench.Snapshot, Options{}).Roots() {
				if f.ID == "dp.selects-none" {
					got = f.Title
				}
				if f.ID == "sched.wrong-resource-name" {
					t.Errorf("the resource is right: %+v", f)
				}
			}
			if test.says == "" && got != "" || !strings.Contains(got, test.says) {
				t.Errorf("doctor says %q, want %q", got, test.says)
			}
		})
	}
}

func toldByAnother(text string) podChange {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: text,
		}}
	}
}
