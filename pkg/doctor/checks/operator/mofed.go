package operator

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// awaitsMOFED is the driver pod's init container that waits for the network driver (MOFED, also called DOCA-OFED) if
// GPUDirect RDMA is enabled.
const awaitsMOFED = "mofed-validation"

// describeMOFED describes a GPU driver pod that has been waiting for the network driver longer than a driver needs to
// start.
func describeMOFED(f *facts.Facts, n *facts.Node, found *finding.Finding) {
	found.Title = "the GPU driver is waiting for the network driver (MOFED), because GPUDirect RDMA is enabled"
	found.Cause = "With driver.rdma.enabled, the GPU driver's pod first waits for /run/mellanox/drivers/.driver-ready, " +
		"which the network driver of the Network Operator creates. The operator's other pods wait for the GPU driver."
	if policy, ok := facts.ClusterPolicy(f); ok {
		if on, _, _ := unstructured.NestedBool(policy.Object, "spec", "driver", "rdma", "enabled"); on {
			found.Evidence = append(found.Evidence, finding.Evidence{
				Source: "ClusterPolicy " + policy.GetName() + " .spec.driver.rdma.enabled", Text: "true",
			})
		}
	}
	found.Fix.Commands = append([]string{"kubectl get nicclusterpolicies.mellanox.com -o yaml"}, found.Fix.Commands...)
	if pod := mofedOn(n); pod != nil {
		found.Evidence = append(found.Evidence,
			finding.FieldEvidence(facts.PodObject(pod), ".status.phase", "%s", pod.Status.Phase))
		found.Fix.Text = "Find out why the network driver's pod " + pod.Name + " is not ready: its log and events " +
			"show the reason. The GPU driver then continues by itself. If the cluster needs no GPUDirect RDMA, set " +
			"driver.rdma.enabled=false."
		found.Fix.Commands = append(found.Fix.Commands,
			shell.Command("kubectl describe pod %s -n %s", pod.Name, pod.Namespace))
		return
	}
	found.Title += ", but nothing installs that driver on the node"
	found.Evidence = append(found.Evidence,
		finding.FieldEvidence(n.Object(), "pods", "no pod of the network driver (mofed)"))
	found.Fix.Text = "Create a NicClusterPolicy with ofedDriver, so that the Network Operator installs the driver: " +
		"since 24.10, its chart creates none. If one exists, its nodeAffinity and status show why the node has no " +
		"mofed pod. If the node's own system has MOFED installed, set driver.rdma.useHostMofed=true instead. If the " +
		"cluster needs no GPUDirect RDMA, set driver.rdma.enabled=false (last command)."
	found.Fix.Commands = append(found.Fix.Commands, facts.ChangeOperator(f, "driver.rdma.enabled", false)...)
}

// mofedOn returns the pod of the Network Operator that installs the network driver on the node, or nil.
func mofedOn(n *facts.Node) *corev1.Pod {
	for _, pod := range n.Pods {
		if pod.DeletionTimestamp == nil && (strings.HasPrefix(pod.Name, "mofed-") ||
			strings.Contains(pod.Labels["nvidia.com/ofed-driver"]+pod.Name, "ofed-driver")) {
			return pod
		}
	}
	return nil
}
