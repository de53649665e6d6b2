package doctor

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

func gpuTainted(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Value: "true", Effect: corev1.TaintEffectNoSchedule}}
}

// TestOperatorPlacement covers the placement of the operator's pods, and the operator's own status.
func TestOperatorPlacement(t *testing.T) {
	t.Parallel()
	bare := plainNode("gpu-1", nodeLabel("cloud.google.com/gke-accelerator=nvidia-l4"))
	ready := policyIs("ready", "Reconciled", "", time.Hour)
	policies := []unstructured.Unstructured{ready}
	worker := operandPod("nfd-worker", "worker", nil, func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app.kubernetes.io/name": "node-feature-discovery", "role": "worker"}
	})
	master := operandPod("nfd-master", "master", nil, podOn("cpu-1"), func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app.kubernetes.io/name": "node-feature-discovery", "role": "master"}
	})
	off := plainNode("gpu-1",
		nodeLabel("feature.node.kubernetes.io/pci-10de.present=true", "nvidia.com/gpu.deploy.operands=false"))
	unlabeled := gpuNode(nodeLabel("nvidia.com/gpu.product"))
	runOperandCases(t, map[string]operandCase{
		"a taint keeps NFD away": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{
					plainNode("gpu-1", nodeLabel("cloud.google.com/gke-accelerator=nvidia-l4"), gpuTainted),
				},
				ClusterPolicies: policies, DaemonSets: []appsv1.DaemonSet{workerSet()},
			},
			want:     []string{"root nfd.labels error Node gpu-1", "dp.none Node gpu-1"},
			evidence: []string{"nvidia.com/gpu=true:NoSchedule", "nvidia.com/gpu Equal present:NoSchedule"},
			fix: []string{
				`"path":"/spec/template/spec/tolerations/-","value":{"key":"nvidia.com/gpu","operator":"Exists","effect":"NoSchedule"}`,
			},
		},
		"there is no NFD": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{bare}, ClusterPolicies: policies,
				HelmReleases: []snapshot.HelmRelease{operatorRelease()},
			},
			want: []string{"root nfd.labels error Node gpu-1", "dp.none Node gpu-1"},
			fix:  []string{"--version v25.10.0 --reuse-values --set nfd.enabled=true"},
		},
		"NFD runs and makes no label": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{bare}, Pods: []corev1.Pod{worker}, ClusterPolicies: policies,
				DaemonSets: []appsv1.DaemonSet{workerSet()},
			},
			want: []string{"root nfd.labels error Node gpu-1", "dp.none Node gpu-1"},
			fix:  []string{"kubectl logs -n gpu-operator daemonset/gpu-operator-node-feature-discovery-worker"},
		},
		"the chart of the device plugin wants labels": {
			s:        snapshot.Snapshot{Nodes: []corev1.Node{bare}, DaemonSets: []appsv1.DaemonSet{pluginSet()}},
			want:     []string{"root nfd.labels error Node gpu-1", "dp.none Node gpu-1"},
			evidence: []string{"DaemonSet nvidia-device-plugin/nvidia-device-plugin .status.desiredNumberScheduled"},
		},
		"no node is known to have a GPU": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{plainNode("n")}, Pods: []corev1.Pod{gpuPod("nvidia.com/gpu")},
				ClusterPolicies: []unstructured.Unstructured{
					policyIs("ready", "NFDLabelsMissing", "No NFD labels found", time.Hour),
				},
			},
			want:     []string{"root nfd.labels error ClusterPolicy cluster-policy"},
			evidence: []string{"No NFD labels found"},
		},
		"DaemonSets cannot be read": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{bare}, ClusterPolicies: policies,
				Missing: []snapshot.Missing{{What: "api/daemonsets", Why: "forbidden"}},
			},
			want: []string{
				"root dp.none warning Node gpu-1", "unknown dp.selects-none Cluster", "unknown nfd.labels Cluster",
				"unknown obs.excluded Cluster",
			},
		},
		"the operator cannot reconcile": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod()},
				ClusterPolicies: []unstructured.Unstructured{
					policyIs("notReady", "ReconcileFailed", "failed to create DaemonSet", time.Hour),
				},
			},
			want:     []string{"root op.clusterpolicy error ClusterPolicy cluster-policy"},
			evidence: []string{"failed to create DaemonSet"},
		},
		"an operand is not ready, and why": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod(), discoveryPod(crashes("x"))},
				ClusterPolicies: []unstructured.Unstructured{
					policyIs("notReady", "OperandNotReady", "states not ready: [gpu-feature-discovery]", time.Hour),
				},
			},
			want: []string{
				"root op.operand-failing warning Pod gpu-operator/gpu-feature-discovery-x",
				"op.clusterpolicy ClusterPolicy cluster-policy",
			},
		},
		"two policies": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod()},
				ClusterPolicies: []unstructured.Unstructured{
					ready, custom("ClusterPolicy", "", "second", nil, map[string]any{"state": "ignored"}),
				},
			},
			want: []string{"root op.clusterpolicy warning ClusterPolicy second"},
			fix:  []string{"kubectl delete clusterpolicy second"},
		},
		"two drivers for one node": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod()},
				NVIDIADrivers: []unstructured.Unstructured{custom("NVIDIADriver", "", "demo", nil,
					map[string]any{"state": "notReady",
						"conditions": []any{map[string]any{
							"type": "Error", "status": "True", "reason": "ConflictingNodeSelector",
							"message": "conflicting NVIDIADriver NodeSelectors found",
						}, "nonsense"}})}},
			want: []string{"root op.clusterpolicy error NVIDIADriver demo"},
		},
		"policies cannot be read": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod()},
				Missing: []snapshot.Missing{{What: "api/clusterpolicies", Why: "forbidden"}},
			},
			want: []string{"unknown op.clusterpolicy Cluster"},
		},
		"every node is switched off while pods wait": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{off}, Pods: []corev1.Pod{gpuPod("nvidia.com/gpu")}, ClusterPolicies: policies,
			},
			want: []string{"root op.deploy-label-off error Node gpu-1", "dp.none Node gpu-1"},
			fix:  []string{"kubectl label node gpu-1 nvidia.com/gpu.deploy.operands-"},
		},
		"one node is switched off while pods wait": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{off, plainNode("gpu-2", offers("nvidia.com/gpu", 1, 1))},
				Pods:  []corev1.Pod{gpuPod("nvidia.com/gpu"), standalonePlugin(podOn("gpu-2"))},
			},
			want: []string{"root op.deploy-label-off info Node gpu-1", "dp.none Node gpu-1"}, // the other has room
		},
		"a node is switched off": {
			s:    snapshot.Snapshot{Nodes: []corev1.Node{off}, ClusterPolicies: policies},
			want: []string{"root op.deploy-label-off info Node gpu-1", "dp.none Node gpu-1"},
		},
		"nodes cannot be read": {
			s: snapshot.Snapshot{Missing: []snapshot.Missing{{What: "api/nodes", Why: "forbidden"}}},
			want: []string{"unknown dp.capacity-zero Cluster", "unknown dp.selects-none Cluster",
				"unknown dp.unhealthy Cluster",
				"unknown dp.unhealthy-xid Cluster", "unknown dra.double-advertise Cluster",
				"unknown dra.slice-stale Cluster",
				"unknown mig.manager-failed Cluster", "unknown mig.strategy-mismatch Cluster",
				"unknown obs.excluded Cluster", "unknown op.deploy-label-off Cluster",
				"unknown share.timeslicing Cluster"},
		},
		"an upgrade of the release failed": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod()},
				HelmReleases: []snapshot.HelmRelease{{
					Namespace: "gpu-operator", Name: "op", Chart: facts.ChartOperator, ChartVersion: "v25.10.0",
					Revision: 4,
					Status:   "failed",
				}}},
			want: []string{"root op.versions warning HelmRelease gpu-operator/op"},
			fix:  []string{"helm rollback op 3 -n gpu-operator"},
		},
		"the CRDs are older than the operator": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()},
				Pods:         []corev1.Pod{pluginPod(), operandPod("gpu-operator", "gpu-operator", nil, crashes("x"))},
				HelmReleases: []snapshot.HelmRelease{operatorRelease()},
				CRDs:         []string{"clusterpolicies.nvidia.com"}, Logs: []snapshot.Log{logOf(
					operandPod("gpu-operator", "gpu-operator", nil),
					"no matches for kind \"NVIDIADriver\" in version \"nvidia.com/v1alpha1\"\n",
				)}},
			want: []string{
				"root op.versions error Pod gpu-operator/gpu-operator-x",
				"op.operand-failing Pod gpu-operator/gpu-operator-x",
			}, fix: []string{"--set operator.upgradeCRD=true"}, evidence: []string{"clusterpolicies.nvidia.com"},
		},
		"operator and validator are of different releases": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{validatorPod(), operandPod(
				"gpu-operator", "gpu-operator", nil,
				func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "nvcr.io/nvidia/gpu-operator:v2.0.0-ubi9" },
			)}},
			want: []string{"root op.versions info Pod gpu-operator/nvidia-operator-validator-x"},
		},
		"Helm's releases cannot be read": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{pluginPod()},
				Missing: []snapshot.Missing{{What: "helm", Why: "forbidden"}},
			}, want: []string{"unknown op.versions Cluster"},
		},
		"GFD made no labels": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{unlabeled}, Pods: []corev1.Pod{pluginPod(), discoveryPod()},
				Logs: []snapshot.Log{
					logOf(discoveryPod(), "I1 Detected non-NVML platform: could not load NVML library\n"),
				},
			},
			want: []string{"root gfd.labels warning Node gpu-1"},
			fix:  []string{"kubectl delete pod gpu-feature-discovery-x -n gpu-operator"},
		},
		"GFD made no labels, and its log is gone": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{unlabeled}, Pods: []corev1.Pod{pluginPod(), discoveryPod()}},
			want: []string{
				"root gfd.labels warning Node gpu-1", "unknown gfd.labels Pod gpu-operator/gpu-feature-discovery-x",
			},
		},
		"NFD refuses GFD's labels": {
			s: snapshot.Snapshot{
				Nodes: []corev1.Node{unlabeled}, Pods: []corev1.Pod{pluginPod(), discoveryPod(), master},
				Logs: []snapshot.Log{
					logOf(master,
						"E1 Namespace 'nvidia.com' is not allowed. Ignoring label 'nvidia.com/gpu.product'\n"),
				},
			},
			want: []string{"root gfd.labels warning Node gpu-1"}, evidence: []string{"Ignoring label"},
			fix: []string{"extraLabelNs"},
		},
		"a workload says that peer memory is off": {
			s: snapshot.Snapshot{Nodes: []corev1.Node{gpuNode()}, Pods: []corev1.Pod{
				pluginPod(), runningGPUPod(),
			}, Logs: []snapshot.Log{{
				Namespace: "default", Pod: "train", Container: "main",
				Text: "NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n",
			}}},
			want: []string{"root rdma.peermem warning Node gpu-1"},
		},
	})
}

func runningGPUPod() corev1.Pod {
	pod := gpuPod("nvidia.com/gpu")
	pod.Spec.NodeName, pod.Status.Phase = "gpu-1", corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return pod
}
