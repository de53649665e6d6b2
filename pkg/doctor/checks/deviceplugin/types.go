package deviceplugin

import (
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

var (
	// ofNetworks matches the names of DaemonSets that advertise RDMA devices.
	ofNetworks = regexp.MustCompile(`\befa\b|rdma|sriov-device-plugin|roce`)
	// noRDMA contains messages in which NCCL or libibverbs reports that it found no RDMA device.
	noRDMA = []string{
		"ibv_open_device failed", "NET/OFI OFI fi_getinfo() call failed", "No eligible providers were found",
	}
)

// checkTypes reports an RDMA device plugin whose list of instance types omits the type of nodes on which pods need
// RDMA: on these nodes, NCCL falls back to TCP.
func checkTypes(f *facts.Facts, r *engine.Result, d *appsv1.DaemonSet) (reported bool) {
	if !ofNetworks.MatchString(d.Name) {
		return false
	}
	for _, n := range f.GPUNodes {
		kind := n.Labels[corev1.LabelInstanceTypeStable]
		types := lackedType(d, n)
		if kind == "" || types == "" || advertises(n, facts.ResourcesOf(d.Name)) {
			continue
		}
		for _, pod := range n.Pods {
			fell, ok := facts.LogEvidence(f, pod, "Using network Socket")
			sought, also := facts.LogEvidence(f, pod, noRDMA...)
			if ok && also && !facts.Ended(pod) {
				reportType(r, d, n, pod, []finding.Evidence{
					{Source: "DaemonSet " + d.Namespace + "/" + d.Name, Text: words.Clip(types)},
					finding.FieldEvidence(n.Object(), ".metadata.labels", "instance-type=%s", kind), sought, fell,
				})
				reported = true
			}
		}
	}
	return reported
}

func reportType(r *engine.Result, d *appsv1.DaemonSet, n *facts.Node, pod *corev1.Pod, evidence []finding.Evidence) {
	kind := n.Labels[corev1.LabelInstanceTypeStable]
	r.Add(finding.Finding{
		Object:     finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name},
		Confidence: finding.Likely, Nodes: []string{n.Name}, Evidence: evidence,
		Title: "the plugin " + d.Name + " does not run on nodes of type " + kind +
			", which its node affinity does not list, and NCCL falls back to TCP",
		Fix: finding.Fix{
			Text: "Check whether the instance type has such devices (for EFA, run the first command). If it does, " +
				"add " + kind +
				" to each list of types in the DaemonSet's node affinity, in the values or manifest that define it, " +
				"and let the pods request the device (for EFA, vpc.amazonaws.com/efa). Do not mount " +
				"/dev/infiniband as a hostPath volume.",
			Commands: []string{
				shell.Command("aws ec2 describe-instance-types --instance-types %s --query %s",
					strings.TrimPrefix(kind, "ml."), "InstanceTypes[].NetworkInfo.EfaSupported"),
				shell.Command("kubectl -n %s edit daemonset %s", d.Namespace, d.Name),
			},
		},
	}.ForPods(pod.Namespace + "/" + pod.Name))
}

// advertises reports whether a node has one of the resources.
func advertises(n *facts.Node, resources []string) bool {
	for name := range n.Status.Capacity {
		if words.ContainsAny(string(name), resources) {
			return true
		}
	}
	return false
}

// lackedType returns the list of instance types in a DaemonSet's node affinity if this list alone excludes the node, or
// "" otherwise.
func lackedType(d *appsv1.DaemonSet, n *facts.Node) string {
	lacks := scheduler.MissingLabels(d.Spec.Template.Spec, n)
	if _, kept := facts.KeptAway(n, d); kept || len(lacks) != 1 || !strings.Contains(lacks[0], "instance-type In ") {
		return ""
	}
	return lacks[0]
}
