package doctor

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// custom returns a custom resource. spec and status may be nil.
func custom(kind, namespace, name string, spec, status map[string]any) unstructured.Unstructured {
	u := unstructured.Unstructured{
		Object: map[string]any{"kind": kind, "apiVersion": "v1", "spec": spec, "status": status},
	}
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// policyIs returns a ClusterPolicy with this state, and this reason in its Ready condition.
func policyIs(state, reason, message string, since time.Duration) unstructured.Unstructured {
	status := "False"
	if state == "ready" {
		status = "True"
	}
	return custom("ClusterPolicy", "", "cluster-policy", map[string]any{},
		map[string]any{"state": state, "conditions": []any{
			map[string]any{
				"type": "Ready", "status": status, "reason": reason, "message": message,
				"lastTransitionTime": operandNow().Add(-since).Format(time.RFC3339),
			},
			map[string]any{"type": "Error", "status": "False", "reason": "Ready"},
		}})
}

// slice returns a ResourceSlice of NVIDIA's driver with one device.
func slice(name, driver, node string, edits ...func(*resourcev1.ResourceSlice)) resourcev1.ResourceSlice {
	s := resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: operandAgo(24 * time.Hour)},
	}
	s.Spec = resourcev1.ResourceSliceSpec{
		Driver: driver, NodeName: &node,
		Pool:    resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0"}},
	}
	for _, edit := range edits {
		edit(&s)
	}
	return s
}

func draPod(edits ...podEdit) corev1.Pod {
	return operandPod("nvidia-dra-driver-gpu-kubelet-plugin", "gpus", nil, edits...)
}

// pluginSet returns the DaemonSet of a device plugin that selects nodes by NFD labels, as in its chart.
func pluginSet() appsv1.DaemonSet {
	d := appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "nvidia-device-plugin", Name: "nvidia-device-plugin"},
	}
	d.Spec.Template.Labels = map[string]string{"app.kubernetes.io/name": "nvidia-device-plugin"}
	d.Spec.Template.Spec.Containers = []corev1.Container{
		{Name: "nvidia-device-plugin-ctr", Image: "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"},
	}
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: "feature.node.kubernetes.io/pci-10de.present", Operator: corev1.NodeSelectorOpIn,
					Values: []string{"true"},
				}}},
				{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "nvidia.com/gpu.present", Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}},
				}},
			},
		},
	}}
	return d
}

// workerSet returns the DaemonSet of the NFD worker, with the toleration from its chart.
func workerSet() appsv1.DaemonSet {
	d := appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "gpu-operator-node-feature-discovery-worker"},
	}
	d.Spec.Template.Labels = map[string]string{"app.kubernetes.io/name": "node-feature-discovery", "role": "worker"}
	d.Spec.Template.Spec.Tolerations = []corev1.Toleration{
		{
			Key: "nvidia.com/gpu", Operator: corev1.TolerationOpEqual, Value: "present",
			Effect: corev1.TaintEffectNoSchedule,
		},
	}
	return d
}

func operatorRelease() snapshot.HelmRelease {
	return snapshot.HelmRelease{
		Namespace: "gpu-operator", Name: "gpu-operator-1758912452", Chart: "gpu-operator", ChartVersion: "v25.10.0",
		Revision: 3, Status: "deployed",
	}
}

func pluginRelease(values map[string]any) snapshot.HelmRelease {
	return snapshot.HelmRelease{
		Namespace: "gpu-operator", Name: "nvdp", Chart: "nvidia-device-plugin", ChartVersion: "0.17.0", Revision: 1,
		Status: "deployed", Values: values,
	}
}

// TestOperatorHealthy covers healthy configurations that are normal on some platforms and must not be reported.
func TestOperatorHealthy(t *testing.T) {
	t.Parallel()
	operatorPods := []corev1.Pod{driverPod(), toolkitPod(), pluginPod(), validatorPod(), discoveryPod(), exporterPod()}
	gke := operandPod("nvidia-gpu-device-plugin-small-cos", "nvidia-gpu-device-plugin", nil, func(pod *corev1.Pod) {
		pod.Namespace, pod.Labels = "kube-system", map[string]string{"k8s-app": "nvidia-gpu-device-plugin"}
	})
	ready := policyIs("ready", "Reconciled", "", time.Hour)
	timeSliced := snapshot.Snapshot{
		Nodes: []corev1.Node{gpuNode(offers("nvidia.com/gpu", 32, 32), nodeLabel("nvidia.com/gpu.replicas=4"))},
		Pods:  operatorPods,
		ClusterPolicies: []unstructured.Unstructured{custom("ClusterPolicy", "", "cluster-policy",
			map[string]any{
				"devicePlugin": map[string]any{"config": map[string]any{"name": "time-slicing", "default": "any"}},
			}, map[string]any{"state": "ready"})},
		ConfigMaps: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "time-slicing"},
			Data: map[string]string{
				"any": "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n"}}},
	}
	for name, s := range map[string]snapshot.Snapshot{
		"no GPUs at all": {
			Nodes: []corev1.Node{plainNode("cpu-1")},
			Pods:  []corev1.Pod{operandPod("coredns", "coredns", nil, podOn("cpu-1"))},
		},
		"the operator without any GPU node": {Nodes: []corev1.Node{plainNode("cpu-1")},
			ClusterPolicies: []unstructured.Unstructured{
				policyIs("ready", "NoGPUNodes", "No GPU nodes found", time.Hour),
			}},
		"the operator": {
			Nodes: []corev1.Node{gpuNode()}, Pods: operatorPods, ClusterPolicies: []unstructured.Unstructured{ready},
			HelmReleases: []snapshot.HelmRelease{operatorRelease()},
		},
		"GKE's own plugin": {Nodes: []corev1.Node{plainNode("gpu-1",
			nodeLabel("cloud.google.com/gke-accelerator=nvidia-l4", "cloud.google.com/gke-nodepool=p"),
			offers("nvidia.com/gpu", 1, 1))},
			Pods: []corev1.Pod{gke}},
		"EKS with the standalone plugin": {Nodes: []corev1.Node{plainNode("gpu-1",
			nodeLabel("k8s.amazonaws.com/accelerator=nvidia-tesla-t4", "eks.amazonaws.com/nodegroup=g"),
			offers("nvidia.com/gpu", 1, 1))},
			Pods: []corev1.Pod{standalonePlugin(podNamed("kube-system", "nvidia-device-plugin-daemonset-a"))}},
		"AKS": {Nodes: []corev1.Node{plainNode("gpu-1",
			nodeLabel("kubernetes.azure.com/accelerator=nvidia", "kubernetes.azure.com/cluster=c"),
			offers("nvidia.com/gpu", 4, 4))},
			Pods:           []corev1.Pod{standalonePlugin(podNamed("gpu-resources", "nvidia-device-plugin-a"))},
			RuntimeClasses: []nodev1.RuntimeClass{{Handler: "nvidia-container-runtime"}}},
		"the standalone plugin without NFD": {
			Nodes: []corev1.Node{plainNode("gpu-1", offers("nvidia.com/gpu", 2, 2))},
			Pods:  []corev1.Pod{standalonePlugin()},
		},
		"the standalone chart with a node labeled by hand": {Nodes: []corev1.Node{
			plainNode("gpu-1", nodeLabel("nvidia.com/gpu.present=true"), offers("nvidia.com/gpu", 2, 2)),
		}, Pods: []corev1.Pod{standalonePlugin()},
			DaemonSets: []appsv1.DaemonSet{pluginSet()}},
		"the standalone plugin on a node without GPUs": {Nodes: []corev1.Node{plainNode("cpu-1")},
			Pods: []corev1.Pod{standalonePlugin(podOn("cpu-1"))},
			Logs: []snapshot.Log{
				logOf(standalonePlugin(),
					"Incompatible strategy detected auto\nNo devices found. Waiting indefinitely.\n"),
			}},
		"DRA alone": {
			Nodes: []corev1.Node{gpuNode(withoutGPUs)}, Pods: []corev1.Pod{draPod()},
			ResourceSlices: []resourcev1.ResourceSlice{slice("s", facts.DRAForGPUs, "gpu-1")},
		},
		"a device plugin, and DRA for compute domains": {Nodes: []corev1.Node{gpuNode()},
			Pods:           []corev1.Pod{standalonePlugin(), draPod()},
			ResourceSlices: []resourcev1.ResourceSlice{slice("s", "compute-domain.nvidia.com", "gpu-1")},
			ComputeDomains: []unstructured.Unstructured{
				custom("ComputeDomain", "default", "d", nil, map[string]any{"status": "NotReady"}),
			}},
		"time slicing": timeSliced,
		"MIG single": {Nodes: []corev1.Node{gpuNode(offers("nvidia.com/gpu", 56, 56),
			nodeLabel("nvidia.com/mig.strategy=single", "nvidia.com/mig.capable=true",
				"nvidia.com/mig.config=all-1g.5gb",
				"nvidia.com/mig.config.state=success", "nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
				"nvidia.com/gpu.count=56"))}, Pods: operatorPods},
		"MIG mixed": {Nodes: []corev1.Node{gpuNode(offers("nvidia.com/gpu", 0, 0),
			offers("nvidia.com/mig-1g.5gb", 14, 14), offers("nvidia.com/mig-3g.20gb", 0, 0),
			nodeLabel("nvidia.com/mig.strategy=mixed", "nvidia.com/mig.capable=true",
				"nvidia.com/mig.config.state=success"))}, Pods: operatorPods},
		"a rolling update": {Nodes: []corev1.Node{gpuNode(offers("nvidia.com/gpu", 8, 0))},
			Pods: []corev1.Pod{driverPod(), toolkitPod(), validatorPod(), pluginPod(beingDeleted, unready),
				pluginPod(podNamed("gpu-operator", "nvidia-device-plugin-daemonset-new"), creating(20*time.Second))}},
		"two pods of one DaemonSet during an update": {
			Nodes: []corev1.Node{gpuNode()},
			Pods:  []corev1.Pod{standalonePlugin(), standalonePlugin(podNamed("gpu-operator", "b"))},
		},
		"GPUs for virtual machines": {Nodes: []corev1.Node{gpuNode(withoutGPUs,
			nodeLabel("nvidia.com/gpu.workload.config=vm-passthrough", "nvidia.com/gpu.product"),
			offers("nvidia.com/GA102GL_A10", 2, 2))}},
		"a node that has just come": {Nodes: []corev1.Node{
			gpuNode(withoutGPUs, func(n *corev1.Node) { n.CreationTimestamp = operandAgo(time.Minute) }),
		}},
		"operands switched off by label": {Nodes: []corev1.Node{gpuNode(), plainNode("gpu-2",
			nodeLabel("feature.node.kubernetes.io/pci-10de.present=true", "nvidia.com/gpu.deploy.operands=false"))},
			Pods: operatorPods, ClusterPolicies: []unstructured.Unstructured{ready}},
		"an upgrade of drivers": {Nodes: []corev1.Node{
			gpuNode(nodeLabel("nvidia.com/gpu-driver-upgrade-state=pod-restart-required")),
		}, Pods: operatorPods,
			ClusterPolicies: []unstructured.Unstructured{policyIs("notReady", "OperandNotReady",
				"ClusterPolicy is not ready, states not ready: [state-driver]", time.Hour)}},
		"the operator reconciles": {Nodes: []corev1.Node{gpuNode()}, Pods: operatorPods,
			ClusterPolicies: []unstructured.Unstructured{policyIs("notReady", "OperandNotReady",
				"ClusterPolicy is not ready, states not ready: [state-driver]", time.Minute)}},
		"another vendor's claims": {
			Nodes: []corev1.Node{plainNode("cpu-1")}, Pods: []corev1.Pod{claimPod("c")},
			ResourceClaims: []resourcev1.ResourceClaim{claimFor("c", "sriov.example.com")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, items := operatorTold(t, s)
			for _, f := range items {
				if f.Root && f.Severity != finding.Info {
					t.Errorf("a healthy cluster has a finding: %s %s about %s: %s %v", f.Severity, f.ID, f.Object,
						f.Title, f.Evidence)
				}
			}
			if text := strings.Join(got, "\n"); strings.Contains(text, "unknown") {
				t.Errorf("all evidence is there, and something is unknown:\n%s", text)
			}
		})
	}
}
