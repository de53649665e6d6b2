package doctor

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestClusterChecks covers the state of nodes as reported by the kubelet and agents, and who set it. Conditions with an
// unknown meaning are ignored.
func TestClusterChecks(t *testing.T) {
	t.Parallel()
	young := func(n *corev1.Node) { n.CreationTimestamp = benchAgo(time.Minute) }
	kubelet := func(v string) nodeChange { return func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = v } }
	plain := func(n *corev1.Node) {
		n.Labels = nil
		delete(n.Status.Capacity, "nvidia.com/gpu")
	}
	const xid79 = "NVRM: Xid (PCI:0000:17:00): 79, pid=1, name=python3, GPU has fallen off the bus."
	runBench(t, map[string]benchCase{
		"ready": {newBench().node("a", 2), "", ""},
		"runtime": {
			newBench().node("a", 2, readiness(corev1.ConditionFalse, "KubeletNotReady", "container runtime is down")),
			"node.not-ready error", "gets no response from the container runtime",
		},
		"PLEG": {newBench().node("a", 2, readiness(corev1.ConditionFalse, "KubeletNotReady",
			"PLEG is not healthy: pleg was last seen active 3m ago")), "node.not-ready error", "PLEG"},
		"server of k3s": {newBench().node("a", 2, kubelet("v1.34.1+k3s1"), func(n *corev1.Node) {
			n.Labels["node-role.kubernetes.io/control-plane"] = "true"
		}, readiness(corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")),
			"node.not-ready error", "journalctl -u k3s -n"},
		"silent": {newBench().node("a", 2, readiness(corev1.ConditionUnknown, "NodeStatusUnknown",
			"Kubelet stopped posting node status.")), "node.not-ready error", "stopped reporting"},
		"CNI": {newBench().node("a", 2, readiness(
			corev1.ConditionFalse, "KubeletNotReady",
			"container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized",
		)), "node.not-ready error", "(CNI) is not set up"},
		"joining": {
			newBench().node("a", 2, young,
				readiness(corev1.ConditionFalse, "KubeletNotReady", "cni plugin not initialized")),
			"node.not-ready info", "",
		},
		"no GPUs there": {
			newBench().node("a", 2).node("b", 0, plain, readiness(corev1.ConditionUnknown, "NodeStatusUnknown", "")),
			"", "",
		},
		"no condition": {
			newBench().node("a", 2, func(n *corev1.Node) { n.Status.Conditions = nil }), "node.not-ready unknown", "",
		},
		"NPD": {
			newBench().node("a", 2, reports("GPUXid", "XidFatal", xid79, corev1.ConditionTrue)), "node.condition error",
			"for XID 79",
		},
		"NVSentinel": {newBench().node("a", 2, reports("SysLogsXIDError", "SysLogsXIDErrorIsNotHealthy",
			"ErrorCode:79 PCI:0002:00:00", corev1.ConditionTrue)), "node.condition error", "for XID 79"},
		"NVSentinel, ok": {newBench().node("a", 2,
			reports("SysLogsXIDError", "SysLogsXIDErrorIsHealthy", "No Health Failures", corev1.ConditionFalse)), "",
			""},
		"EKS": {
			newBench().node("a", 2, reports("AcceleratedHardwareReady", "NvidiaXID79Error", "", corev1.ConditionFalse)),
			"node.condition error", "",
		},
		"EKS, ok": {
			newBench().node("a", 2, reports("AcceleratedHardwareReady", "Ready", "", corev1.ConditionTrue)), "", "",
		},
		"program's XID": {
			newBench().node("a", 2,
				reports("GPUXid", "Xid", "NVRM: Xid (PCI:0000:17:00): 31, pid=1", corev1.ConditionTrue)),
			"node.condition info", "",
		},
		"deadlock": {newBench().node("a", 2, reports("KernelDeadlock", "DockerHung",
			"task docker:20744 blocked for more than 120 seconds.",
			corev1.ConditionTrue)), "node.condition warning", ""},
		"deadlock and not ready": {newBench().node("a", 2, readiness(corev1.ConditionFalse, "KubeletNotReady", "PLEG"),
			reports("KernelDeadlock", "DockerHung", "blocked", corev1.ConditionTrue)),
			"node.not-ready error", "KernelDeadlock"},
		"foreign condition": {
			newBench().node("a", 2, reports("EtcdIsVoter", "MemberNotLearner", "", corev1.ConditionTrue)), "", "",
		},
		"disk": {newBench().node("a", 2, reports("DiskPressure", "KubeletHasDiskPressure",
			"kubelet has disk pressure", corev1.ConditionTrue)), "node.pressure warning", "crictl images"},
		"no pressure": {newBench().node(
			"a", 2,
			reports("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure", corev1.ConditionFalse),
		), "", ""},
		"kubelet too new": {newBench().node("a", 2, kubelet("v1.37.0")), "sched.node-state warning", ""},
		"kubelet of GKE":  {newBench().node("a", 2, kubelet("v1.34.1-gke.1829001")), "", ""},
		"cordoned by a controller": {
			newBench().node("a", 2, func(n *corev1.Node) {
				n.Spec.Unschedulable = true
				n.Labels["dgxc.nvidia.com/nvsentinel-state"] = "quarantined"
			}), "sched.node-state info", "Do not uncordon the node before",
		},
		"no rights": {
			newBench().missing("api/nodes"),
			"node.condition unknown, node.not-ready unknown, node.pressure unknown, sched.all-in-use unknown, sched.bigger-than-any-node unknown, sched.fragmented unknown, sched.insufficient-gpu unknown, sched.insufficient-other unknown, sched.no-scheduler unknown, sched.node-selector unknown, sched.node-state unknown, sched.nodes-unavailable unknown, sched.none-advertised unknown, sched.taint unknown, sched.unbalanced unknown, sched.unschedulable unknown, sched.volume unknown, sched.waiting unknown, sched.wrong-resource-name unknown",
			"",
		},
	})
}
