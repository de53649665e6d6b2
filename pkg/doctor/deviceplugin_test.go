package doctor

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// TestDevicePlugin verifies that the cause is reported if a node advertises fewer GPUs than it has, or none, with the
// consequences grouped under it.
func TestDevicePlugin(t *testing.T) {
	t.Parallel()
	empty := gpuNode(withoutGPUs)
	class := func(pod *corev1.Pod) { name := "nvidia"; pod.Spec.RuntimeClassName = &name }
	noNVML :=
		"I1 factory.go:104] Detected non-NVML platform: could not load NVML library: libnvidia-ml.so.1: cannot open shared object file: No such file or directory\nE1 factory.go:112] Incompatible platform detected\n"
	xidLog :=
		"I0810 15:36:05.551834 1 health.go:169] XidCriticalError: Xid=48 on Device=GPU-455e672a; marking device as unhealthy.\n"
	k0s := plainNode("gpu-1", nodeLabel("nvidia.com/gpu.present=true"),
		func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "v1.34.1+k0s" })
	hostPath := func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/device-plugins"},
			}},
		}
	}
	registered := []snapshot.Log{
		logOf(standalonePlugin(), "I1 server.go:1] Registered device plugin for 'nvidia.com/gpu' with Kubelet\n"),
	}
	hami := operandPod("hami-device-plugin", "device-plugin", nil,
		func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "projecthami/hami:v2.6" })
	runOperandCases(t, map[string]operandCase{
		"the standalone plugin runs under runc": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{empty},
				Pods: []corev1.Pod{standalonePlugin(), gpuPod("nvidia.com/gpu")},
				Logs: []snapshot.Log{logOf(standalonePlugin(), noNVML)},
				RuntimeClasses: []nodev1.RuntimeClass{
					{ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: "nvidia"},
				},
				HelmReleases: []snapshot.HelmRelease{pluginRelease(nil)}},
			want: []string{"root dp.nvml-missing error Node gpu-1", "dp.capacity-zero Node gpu-1"},
			fix: []string{
				"helm upgrade nvdp nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin -n gpu-operator --version 0.17.0 --reuse-values --set runtimeClassName=nvidia",
			},
			evidence: []string{"could not load NVML library", "(none)"},
		},
		"the same without Helm": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{empty}, Pods: []corev1.Pod{standalonePlugin()},
				Logs: []snapshot.Log{logOf(standalonePlugin(), noNVML)},
				RuntimeClasses: []nodev1.RuntimeClass{
					{ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: "nvidia"},
				}},
			want: []string{"root dp.nvml-missing error Node gpu-1", "dp.capacity-zero Node gpu-1"},
			fix: []string{
				`kubectl patch daemonset/nvidia-device-plugin -n gpu-operator --type merge -p '{"spec":{"template":{"spec":{"runtimeClassName":"nvidia"}}}}'`,
			},
		},
		"it has its RuntimeClass and still no driver": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{empty}, Pods: []corev1.Pod{standalonePlugin(class, crashes("failed"))},
				Logs: []snapshot.Log{logOf(standalonePlugin(), noNVML)},
			},
			want: []string{
				"root dp.nvml-missing error Node gpu-1", "dp.capacity-zero Node gpu-1",
				"dp.not-running Pod gpu-operator/nvidia-device-plugin-x",
			}, fix: []string{"nvidiaDriverRoot"},
		},
		"an old line of a plugin that works": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{standalonePlugin()},
				Logs: []snapshot.Log{logOf(standalonePlugin(), noNVML)},
			},
		},
		"no GPU and no log": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{empty}, Pods: []corev1.Pod{standalonePlugin()}},
			want: []string{
				"root dp.capacity-zero error Node gpu-1",
				"unknown dp.nvml-missing Pod gpu-operator/nvidia-device-plugin-x",
			},
		},
		"the kubelet was restarted and the plugin did not notice": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{empty}, Pods: []corev1.Pod{standalonePlugin()}, Logs: registered,
				Hosts: map[string]*api.Diagnosis{"gpu-1": {Probe: api.Probe{
					DevicePlugins: []api.Socket{
						{Path: "/var/lib/kubelet/device-plugins/kubelet.sock", Modified: operandNow().Add(-time.Hour)},
					}}}}},
			want:     []string{"root dp.capacity-zero error Node gpu-1"},
			fix:      []string{"kubectl delete pod nvidia-device-plugin-x -n gpu-operator"},
			evidence: []string{"Registered device plugin", "kubelet.sock created 2026-01-01T11:00:00Z"},
		},
		"k0s keeps its kubelet elsewhere": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{k0s}, Pods: []corev1.Pod{standalonePlugin(hostPath)}, Logs: registered,
				HelmReleases: []snapshot.HelmRelease{operatorRelease()},
			},
			want: []string{"root dp.capacity-zero error Node gpu-1"},
			fix:  []string{"--version v25.10.0 --reuse-values --set hostPaths.kubeletRootDir=/var/lib/k0s/kubelet"},
		},
		"the plugin cannot get its image": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{empty},
				Pods: []corev1.Pod{standalonePlugin(func(pod *corev1.Pod) {
					unready(pod)
					pod.Status.ContainerStatuses[0].State = corev1.ContainerState{
						Waiting: &corev1.ContainerStateWaiting{
							Reason: "ImagePullBackOff", Message: "Back-off pulling image",
						},
					}
				})}},
			want: []string{
				"root dp.not-running error Pod gpu-operator/nvidia-device-plugin-x", "dp.capacity-zero Node gpu-1",
			},
			evidence: []string{"ImagePullBackOff: Back-off pulling image"},
		},
		"pods cannot be read": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Missing: []snapshot.Missing{{What: "api/pods", Why: "forbidden"}},
			},
			want: []string{"unknown dp.capacity-zero Cluster", "unknown dp.duplicate Cluster",
				"unknown dp.none Cluster", "unknown dp.not-running Cluster", "unknown dp.nvml-missing Cluster",
				"unknown dp.unhealthy-xid Cluster", "unknown dra.slice-stale Cluster", "unknown gfd.labels Cluster",
				"unknown imex.domain Cluster", "unknown mig.strategy-mismatch Cluster",
				"unknown obs.dcgm-crash Cluster", "unknown obs.dcgm-labels Cluster", "unknown obs.excluded Cluster",
				"unknown op.init-chain Cluster",
				"unknown op.operand-failing Cluster", "unknown op.restarts Cluster", "unknown rdma.peermem Cluster",
				"unknown share.mps Cluster", "unknown share.timeslicing Cluster"},
		},
		"nothing advertises the GPUs and nobody wants them": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{plainNode("gpu-1", nodeLabel("feature.node.kubernetes.io/pci-10de.present=true"))},
			},
			want: []string{"root dp.none info Node gpu-1"}, fix: []string{"helm install gpu-operator"},
		},
		"another node has a plugin": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{
				plainNode("gpu-1", nodeLabel("feature.node.kubernetes.io/pci-10de.present=true")),
				plainNode("gpu-2", offers("nvidia.com/gpu", 1, 1)),
			}, Pods: []corev1.Pod{standalonePlugin(podOn("gpu-2"))}},
			want: []string{"root dp.none warning Node gpu-1"},
		},
		"accelerators of others": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{
				plainNode("n", nodeLabel("karpenter.k8s.aws/instance-gpu-name=radeon-pro-v520")),
				plainNode("m", nodeLabel("k8s.amazonaws.com/accelerator=habana-gaudi")),
			}, Pods: []corev1.Pod{gpuPod("nvidia.com/gpu")}},
		},
		"nothing advertises the GPUs and a pod waits": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{plainNode("gpu-1", nodeLabel("feature.node.kubernetes.io/pci-10de.present=true"))},
				Pods:  []corev1.Pod{gpuPod("nvidia.com/gpu")},
			},
			want: []string{"root dp.none error Node gpu-1"},
		},
		"the operator's plugin is switched off": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{
				plainNode("gpu-1", nodeLabel("feature.node.kubernetes.io/pci-10de.present=true")),
			}, ClusterPolicies: []unstructured.Unstructured{
				custom("ClusterPolicy", "", "cluster-policy",
					map[string]any{"devicePlugin": map[string]any{"enabled": false}},
					map[string]any{"state": "ready"})}},
			want: []string{"root dp.none warning Node gpu-1"}, fix: []string{
				`kubectl patch clusterpolicy cluster-policy --type merge -p '{"spec":{"devicePlugin":{"enabled":true}}}'`,
			},
		},
		"the plugin is gone": {
			s:    snapshot.Snapshot{Nodes: []corev1.Node{gpuNode(offers("nvidia.com/gpu", 8, 0))}},
			want: []string{"root dp.none error Node gpu-1"}, evidence: []string{
				"capacity nvidia.com/gpu: 8, allocatable nvidia.com/gpu: 0", "(no device plugin pod)",
			},
			fix: []string{
				"helm upgrade --install nvdp nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin -n kube-system",
			},
		},
		"the plugin is there and calls all GPUs unhealthy": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode(offers("nvidia.com/gpu", 8, 0))}, Pods: []corev1.Pod{standalonePlugin()},
			},
			want: []string{
				"root dp.unhealthy error Node gpu-1", "unknown dp.nvml-missing Pod gpu-operator/nvidia-device-plugin-x",
				"unknown dp.unhealthy-xid Pod gpu-operator/nvidia-device-plugin-x",
			},
		},
		"no plugin is seen, and some GPUs are unhealthy": {
			s:    snapshot.Snapshot{Nodes: []corev1.Node{gpuNode(offers("nvidia.com/gpu", 8, 7))}},
			want: []string{"root dp.unhealthy error Node gpu-1"},
		},
		"a GPU is unhealthy after an XID": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode(offers("nvidia.com/gpu", 8, 7))}, Pods: []corev1.Pod{standalonePlugin()},
				Logs: []snapshot.Log{logOf(standalonePlugin(), xidLog)},
			},
			want:     []string{"root dp.unhealthy-xid error Node gpu-1", "dp.unhealthy Node gpu-1"},
			evidence: []string{"Xid=48", "capacity nvidia.com/gpu: 8, allocatable nvidia.com/gpu: 7"},
		},
		"a GPU is unhealthy and the log is gone": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode(offers("nvidia.com/gpu", 8, 7))}, Pods: []corev1.Pod{standalonePlugin()},
			},
			want: []string{
				"root dp.unhealthy error Node gpu-1",
				"unknown dp.unhealthy-xid Pod gpu-operator/nvidia-device-plugin-x",
			},
		},
		"an XID of the past": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{standalonePlugin()},
				Logs: []snapshot.Log{logOf(standalonePlugin(), xidLog)},
			},
		},
		"two plugins": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod(), standalonePlugin()},
			},
			want:     []string{"root dp.duplicate warning Node gpu-1"},
			evidence: []string{"owned by daemonset/nvidia-device-plugin-daemonset"},
		},
		"NVIDIA's plugin and HAMi's": {
			s:    snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{standalonePlugin(), hami}},
			want: []string{"root dp.duplicate warning Node gpu-1"},
		},
		"a plugin and its validator": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()},
				Pods: []corev1.Pod{
					pluginPod(), operandPod("nvidia-device-plugin-validator", "plugin-validation", nil),
				},
			},
		},
	})
}

// TestMIGStrategy covers MIG: requests for the strategy single, and resources of the strategy mixed.
func TestMIGStrategy(t *testing.T) {
	t.Parallel()
	invalid := gpuNode(withoutGPUs, nodeLabel("nvidia.com/mig.strategy=single", "nvidia.com/mig.capable=true",
		"nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB-MIG-INVALID", "nvidia.com/gpu.count=0",
		"nvidia.com/mig.config=custom"))
	mixed := gpuNode(offers("nvidia.com/gpu", 0, 0), offers("nvidia.com/mig-1g.5gb", 14, 14),
		nodeLabel("nvidia.com/mig.strategy=mixed", "nvidia.com/mig.capable=true"))
	single := gpuNode(offers("nvidia.com/gpu", 56, 56),
		nodeLabel("nvidia.com/mig.strategy=single", "nvidia.com/mig.capable=true"))
	failed := gpuNode(withoutGPUs, nodeLabel("nvidia.com/mig.config=all-1g.5gb", "nvidia.com/mig.config.state=failed"))
	manager := operandPod("nvidia-mig-manager", "nvidia-mig-manager", nil)
	runOperandCases(t, map[string]operandCase{
		"the division does not suit single": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{invalid}, Pods: []corev1.Pod{pluginPod(crashes("x"))},
				HelmReleases: []snapshot.HelmRelease{operatorRelease()},
				Logs: []snapshot.Log{logOf(
					pluginPod(),
					"E1 main.go:1] error starting plugins: invalid MIG configuration: At least one device with migEnabled=true was not configured correctly: more than one MIG device type present on node\n",
				)}},
			want: []string{
				"root mig.strategy-mismatch error Node gpu-1", "dp.capacity-zero Node gpu-1",
				"dp.not-running Pod gpu-operator/nvidia-device-plugin-daemonset-x",
			},
			fix:      []string{"--reuse-values --set mig.strategy=mixed"},
			evidence: []string{"MIG-INVALID", "migEnabled=true"},
		},
		"a GPU in MIG mode without instances, which no strategy accepts": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{invalid}, Pods: []corev1.Pod{pluginPod(crashes("x"))},
				HelmReleases: []snapshot.HelmRelease{operatorRelease()},
				Logs: []snapshot.Log{logOf(
					pluginPod(),
					"E1 main.go:1] error starting plugins: invalid MIG configuration: At least one device with migEnabled=true was not configured correctly: No MIG devices associated with 0\n",
				)}},
			want: []string{
				"root mig.strategy-mismatch error Node gpu-1", "dp.capacity-zero Node gpu-1",
				"dp.not-running Pod gpu-operator/nvidia-device-plugin-daemonset-x",
			},
			fix:      []string{"nvidia-smi mig -lgi", "its strategy need no change"},
			evidence: []string{"No MIG devices associated"},
		},
		"a pod asks for whole GPUs under mixed": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{mixed}, Pods: []corev1.Pod{pluginPod(), gpuPod("nvidia.com/gpu")},
			},
			want: []string{"root mig.strategy-mismatch error Pod default/train"},
			fix:  []string{"nvidia.com/mig-1g.5gb"},
		},
		"a pod asks for an instance under single": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{single}, Pods: []corev1.Pod{pluginPod(), gpuPod("nvidia.com/mig-1g.5gb")},
			},
			want: []string{"root mig.strategy-mismatch error Pod default/train"},
		},
		"a pod that is only late": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{mixed}, Pods: []corev1.Pod{pluginPod(), gpuPod("nvidia.com/mig-1g.5gb")},
			},
		},
		"the manager failed": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{failed}, Pods: []corev1.Pod{pluginPod(), manager},
				Logs: []snapshot.Log{
					logOf(manager, "level=fatal msg=\"error setting MIGConfig: In use by another client\"\n"),
					logOf(pluginPod(), "-\n"),
				}},
			want:     []string{"root mig.manager-failed error Node gpu-1", "dp.capacity-zero Node gpu-1"},
			fix:      []string{"kubectl label node gpu-1 nvidia.com/mig.config=all-1g.5gb"},
			evidence: []string{"In use by another client"},
		},
		"the manager failed and its log is gone": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode(nodeLabel("nvidia.com/mig.config.state=failed"))},
				Pods:  []corev1.Pod{pluginPod(), manager},
			},
			want: []string{
				"root mig.manager-failed warning Node gpu-1",
				"unknown mig.manager-failed Pod gpu-operator/nvidia-mig-manager-x",
			},
		},
		"the manager gave up and set no state": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{
				gpuNode(withoutGPUs,
					nodeLabel("nvidia.com/mig.config=all-1g.5gb", "nvidia.com/mig.config.state=pending")),
			}, Pods: []corev1.Pod{manager},
				Logs: []snapshot.Log{logOf(
					manager,
					"level=info msg=\"Updating to MIG config: all-1g.5gb\"\nlevel=error msg=\"Failed to apply MIG config: timed out waiting for the condition\"\nlevel=info msg=\"Waiting for change to 'nvidia.com/mig.config' label\"\n",
				)}},
			want:     []string{"root mig.manager-failed error Node gpu-1", "dp.none Node gpu-1"},
			evidence: []string{"timed out waiting"},
		},
		"the manager is at it": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode(nodeLabel("nvidia.com/mig.config.state=pending"))},
				Pods: []corev1.Pod{pluginPod(), manager},
				Logs: []snapshot.Log{logOf(
					manager,
					"level=error msg=\"Failed to apply MIG config\"\nlevel=info msg=\"Updating to MIG config: all-1g.5gb\"\n",
				)}},
		},
		"no manager": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{
				gpuNode(nodeLabel("nvidia.com/mig.config=all-1g.5gb", "nvidia.com/mig.config.state=pending")),
			}, Pods: []corev1.Pod{pluginPod()}},
			want: []string{"root mig.manager-failed warning Node gpu-1"},
		},
	})
}

// TestSharing covers shared GPUs: time slicing and MPS.
func TestSharing(t *testing.T) {
	t.Parallel()
	config := func(data map[string]string, fallback string) snapshot.Snapshot {
		return snapshot.Snapshot{
			Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod()},
			ClusterPolicies: []unstructured.Unstructured{custom("ClusterPolicy", "", "cluster-policy",
				map[string]any{
					"devicePlugin": map[string]any{"config": map[string]any{"name": "sharing", "default": fallback}},
				}, map[string]any{"state": "ready"})},
			ConfigMaps: []corev1.ConfigMap{
				{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "sharing"}, Data: data},
			},
		}
	}
	const four = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n"
	unknownName := config(map[string]string{"a": four}, "a")
	unknownName.Nodes = []corev1.Node{gpuNode(nodeLabel("nvidia.com/device-plugin.config=b"))}
	some := config(map[string]string{"a": four}, "")
	some.Nodes = append(some.Nodes,
		plainNode("gpu-2", nodeLabel("nvidia.com/device-plugin.config=a"), offers("nvidia.com/gpu", 4, 4)))
	some.Pods = append(some.Pods, pluginPod(podOn("gpu-2"), podNamed("gpu-operator", "p2")))
	forbidden := config(map[string]string{"a": four}, "")
	forbidden.ConfigMaps, forbidden.Missing = nil, []snapshot.Missing{{What: "api/configmaps", Why: "forbidden"}}
	refused := gpuPod("nvidia.com/gpu")
	refused.Spec.NodeName, refused.Status.Phase = "gpu-1", corev1.PodFailed
	refused.Status.Reason, refused.Status.Message = "UnexpectedAdmissionError",
		"Allocate failed due to rpc error: code = Unknown desc = request for 'nvidia.com/gpu: 2' too large: maximum request size for shared resources is 1; found 2, which is unexpected"
	const mps = "E0423 main.go:301] Failed to start plugin: error waiting for MPS daemon: error checking MPS daemon health: failed to send command to MPS daemon: exit status 1\n"
	runOperandCases(t, map[string]operandCase{
		"nobody uses the configuration": {
			s:    config(map[string]string{"a": four}, ""),
			want: []string{"root share.timeslicing warning ConfigMap gpu-operator/sharing"},
			fix: []string{
				`kubectl patch clusterpolicy cluster-policy --type merge -p '{"spec":{"devicePlugin":{"config":{"default":"a"}}}}'`,
			},
		},
		"only some nodes share, which is meant so": {s: some},
		"the capacity is not multiplied": {
			s: config(map[string]string{"a": four}, "a"), want: []string{"root share.timeslicing warning Node gpu-1"},
			fix:      []string{"kubectl delete pod nvidia-device-plugin-daemonset-x"},
			evidence: []string{"nvidia.com/gpu: 8", "replicas: 4"},
		},
		"the label names none that is there": {
			s: unknownName, want: []string{"root share.timeslicing error Node gpu-1"},
			fix: []string{"kubectl label node gpu-1 nvidia.com/device-plugin.config=a --overwrite"},
		},
		"renameByDefault stands at the wrong place": {
			s:    config(map[string]string{"a": "flags:\n  renameByDefault: true\n"}, "a"),
			want: []string{"root share.timeslicing warning ConfigMap gpu-operator/sharing"},
		},
		"a configuration that is no YAML": {
			s:    config(map[string]string{"a": "sharing: ["}, "a"),
			want: []string{"root share.timeslicing warning ConfigMap gpu-operator/sharing"},
		},
		"ConfigMaps cannot be read": {s: forbidden, want: []string{"unknown share.timeslicing Cluster"}},
		"a pod asks for two shares": {
			s:        snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod(), refused}},
			want:     []string{"root share.timeslicing error Pod default/train"},
			evidence: []string{"maximum request size"},
		},
		"MPS is not placed on the node": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode(withoutGPUs)}, Pods: []corev1.Pod{standalonePlugin()},
				Logs:         []snapshot.Log{logOf(standalonePlugin(), mps)},
				HelmReleases: []snapshot.HelmRelease{pluginRelease(nil)},
			},
			want: []string{"root share.mps error Node gpu-1", "dp.capacity-zero Node gpu-1"},
			fix:  []string{"gfd.enabled=true", "kubectl label node gpu-1 nvidia.com/mps.capable=true"},
		},
		"MPS runs and does not answer": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode(withoutGPUs, nodeLabel("nvidia.com/mps.capable=true"))},
				Pods: []corev1.Pod{standalonePlugin(), operandPod("nvidia-device-plugin-mps-control-daemon",
					"mps-control-daemon-ctr", nil)}, Logs: []snapshot.Log{logOf(standalonePlugin(), mps)}},
			want: []string{"root share.mps error Node gpu-1", "dp.capacity-zero Node gpu-1"},
			fix:  []string{"kubectl delete pod nvidia-device-plugin-mps-control-daemon-x"},
		},
		"MPS by hand": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode(withoutGPUs)}, Pods: []corev1.Pod{standalonePlugin()},
				Logs: []snapshot.Log{logOf(standalonePlugin(), "using MPS requires --mps-root to be specified\n")},
			},
			want: []string{"root share.mps error Node gpu-1", "dp.capacity-zero Node gpu-1"},
		},
		"MPS was slow once": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{standalonePlugin()},
				Logs: []snapshot.Log{logOf(standalonePlugin(), mps)},
			},
		},
	})
}
