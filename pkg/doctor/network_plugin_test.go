package doctor

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestNetworkPluginFails protects that a node without a network names the pod that should set it up.
func TestNetworkPluginFails(t *testing.T) {
	t.Parallel()
	b := newBench().node("n", 1, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "NetworkReady=false",
		}}
	}).pod("cni", "n", 0, func(p *corev1.Pod) {
		p.Spec.HostNetwork = true
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  "main",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		}}
	})
	_, all := b.tell(t)
	for _, found := range all {
		if found.ID != "node.not-ready" {
			continue
		}
		for _, e := range found.Evidence {
			if strings.Contains(e.Source, "/cni") {
				return
			}
		}
	}
	t.Errorf("the network plugin's pod is not in the evidence: %+v", all)
}
