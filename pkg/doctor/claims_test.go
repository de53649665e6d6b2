package doctor

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestClaimsAboutPods verifies that findings about pods claim no more than the cluster shows, and that their fixes are
// possible there.
func TestClaimsAboutPods(t *testing.T) {
	t.Parallel()
	untolerated := toldByScheduler("0/1 nodes are available: 1 node(s) had untolerated taint.")
	env := func(name, value string) podChange {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: name, Value: value}} }
	}
	mounted := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{
			Name: "shm", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory"}},
		}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "shm", MountPath: "/dev/shm"}}
	}
	gke := func(n *corev1.Node) { n.Labels["cloud.google.com/gke-nodepool"] = "gpus" }
	tied := func(other ...nodeChange) *bench {
		return newBench().node("a", 1).node("b", 1, other...).pod("h", "a", 1, selector("kubernetes.io/hostname", "a")).
			pod("p", "", 1, selector("kubernetes.io/hostname", "a"))
	}
	runBench(t, map[string]benchCase{
		"a taint of a node that is starting": {
			newBench().node("a", 2, tainted("node.cilium.io/agent-not-ready", "")).pod("p", "", 1, untolerated),
			"sched.nodes-unavailable error", "starting or being removed",
		},
		"a cordoned node is not uncordoned blindly": {
			newBench().node("a", 1).pod("h", "a", 1).node("b", 1, cordoned).pod("p", "", 1),
			"sched.all-in-use warning, sched.node-state info", "cordoned: find out why before you uncordon it",
		},
		"an autoscaler may add a bigger node": {
			newBench().node("a", 1).pod("p", "", 8).pod("karpenter-x", "a", 0), "sched.bigger-than-any-node error",
			"than exist on any node",
		},
		"tied to a full node":       {tied(), "sched.all-in-use warning, sched.unbalanced warning", ""},
		"the idle node is reserved": {tied(tainted("team", "other")), "sched.all-in-use warning", ""},
		"a program that also runs without a GPU": {
			newBench().node("a", 2).pod("p", "a", 0, crashing(1, "Error")).
				log("p", "Could not find cuda drivers on your machine, GPU will not be used.\nKeyError: 'x'"), "", "",
		},
		"GKE ignores NVIDIA_VISIBLE_DEVICES": {
			newBench().node("a", 2, gke).pod("p", "a", 1, env("NVIDIA_VISIBLE_DEVICES", "void")), "", "",
		},
		"hidden GPUs do not explain every crash": {
			newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error"), env("CUDA_VISIBLE_DEVICES", "")).
				log("p", "ModuleNotFoundError: No module named 'x'"),
			"wl.cpu-mode info, wl.pod-failing error", "",
		},
		"exec format error": {
			newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error")).log("p", "exec /run.sh: exec format error"),
			"wl.exec-format error, wl.pod-failing error", "a script without an interpreter line.",
		},
		"killed without a limit": {
			newBench().node("a", 2).pod("p", "a", 1, crashing(137, "OOMKilled")).log("p", "step 1"),
			"wl.oom-killed error, wl.pod-failing error", "Without a limit, the node ran out",
		},
		"/dev/shm is mounted": {
			newBench().node("a", 2).pod("p", "a", 1, crashing(1, "Error"), mounted).
				log("p", "Error while creating shared memory segment /dev/shm/nccl-1 (size 9637892)"),
			"wl.pod-failing error, wl.shm error", "Raise the volume's sizeLimit",
		},
	})
}

// TestClaimsAboutSoftware does the same for findings about the GPU software.
func TestClaimsAboutSoftware(t *testing.T) {
	t.Parallel()
	other := podNamed("plugins", "nvidia-device-plugin-y")
	class := deviceClass("hami-gpu")
	class.Spec.Selectors = []resourcev1.DeviceSelector{
		{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "hami-core-gpu.project-hami.io"`}},
	}
	failed := gpuNode(withoutGPUs, nodeLabel("nvidia.com/mig.config=all-9g", "nvidia.com/mig.config.state=failed"))
	migManager := operandPod("nvidia-mig-manager", "nvidia-mig-manager", nil)
	runOperandCases(t, map[string]operandCase{
		"two plugins, which other software may manage": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()},
				Pods: []corev1.Pod{standalonePlugin(), standalonePlugin(other)}},
			want: []string{"root dp.duplicate warning Node gpu-1"},
			fix: []string{
				"kubectl get daemonset/nvidia-device-plugin -n gpu-operator -o yaml",
				"kubectl get daemonset/nvidia-device-plugin -n plugins -o yaml",
			},
		},
		"no GPU is allocatable": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode(offers("nvidia.com/gpu", 8, 0))}, Pods: []corev1.Pod{standalonePlugin()},
			},
			want: []string{
				"root dp.unhealthy error Node gpu-1", "unknown dp.nvml-missing Pod gpu-operator/nvidia-device-plugin-x",
				"unknown dp.unhealthy-xid Pod gpu-operator/nvidia-device-plugin-x",
			},
			fix: []string{"If the device plugin runs on the node"},
		},
		"the MIG manager fails, but no process uses the GPUs": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{failed}, Pods: []corev1.Pod{migManager, standalonePlugin()},
				Logs: []snapshot.Log{logOf(migManager, "level=error msg=\"the GPU is odd\"\n")}},
			want: []string{
				"root mig.manager-failed error Node gpu-1", "dp.capacity-zero Node gpu-1",
				"unknown dp.nvml-missing Pod gpu-operator/nvidia-device-plugin-x",
			},
			fix: []string{"request the configuration again. [kubectl label node gpu-1 nvidia.com/mig.config-"},
		},
		"a class of another vendor's driver": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{standalonePlugin(), claimPod("c")},
				ResourceClaims: []resourcev1.ResourceClaim{claimFor("c", "hami-gpu")},
				DeviceClasses:  []resourcev1.DeviceClass{class}},
			want:     []string{"root dra.unallocatable error Pod default/train"},
			evidence: []string{"no slice of the driver hami-core-gpu.project-hami.io has a device"},
		},
	})
}
