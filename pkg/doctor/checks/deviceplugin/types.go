package deviceplugin

import (
	"regexp"
	"slices"
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
	// ofNetworks matches the names of DaemonSets that advertise devices for RDMA.
	ofNetworks = regexp.MustCompile(`\befa\b|rdma|sriov-device-plugin|roce`)
	// looked matches a line in which NCCL or libibverbs finds no RDMA device although it looked for one.
	looked = []string{
		"ibv_open_device failed", "NET/OFI OFI fi_getinfo() call failed", "No eligible providers were found",
	}
	// fellBack matches the line in which NCCL then takes TCP.
	fellBack = []string{"Using network Socket"}
)

// checkTypes reports a plugin of RDMA devices whose list of instance types lacks that of nodes whose pods need it: they
// wait for its resource, or NCCL falls back to TCP there.
func checkTypes(f *facts.Facts, r *engine.Result, d *appsv1.DaemonSet) (reported bool) {
	if !ofNetworks.MatchString(d.Name) {
		return false
	}
	byType := map[string][]string{}
	missing := map[string]*facts.Node{}
	quotes := map[string][]finding.Evidence{}
	for _, n := range f.GPUNodes {
		kind := n.Labels[corev1.LabelInstanceTypeStable]
		if kind == "" || !lacksType(d, n, kind) || advertises(n, facts.ResourcesOf(d.Name)) {
			continue
		}
		for _, pod := range n.Pods {
			fell, ok := facts.LogEvidence(f, pod, fellBack...)
			sought, also := facts.LogEvidence(f, pod, looked...)
			if ok && also && !facts.Ended(pod) {
				missing[kind] = n
				byType[kind] = append(byType[kind], pod.Namespace+"/"+pod.Name)
				quotes[kind] = []finding.Evidence{sought, fell}
			}
		}
	}
	for _, kind := range words.SortedKeys(byType) {
		object := finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name}
		r.Add(finding.Finding{
			Object: object, Confidence: finding.Likely, Nodes: []string{missing[kind].Name},
			Title: "the DaemonSet " + d.Name + " does not run on the nodes of type " + kind +
				": its node affinity lists other instance types",
			Cause: "Without the plugin, these nodes advertise no RDMA device and the containers get none, so that NCCL " +
				"falls back to TCP sockets.",
			Evidence: append([]finding.Evidence{
				finding.FieldEvidence(object, ".spec.template.spec.affinity", "instance-type In %s, without %s",
					words.Cut(strings.Join(typesOf(d), ",")), kind),
				finding.FieldEvidence(missing[kind].Object(), ".metadata.labels", "%s=%s",
					corev1.LabelInstanceTypeStable, kind),
				finding.FieldEvidence(object, ".status.desiredNumberScheduled", "%d", d.Status.DesiredNumberScheduled),
			}, quotes[kind]...),
			Fix: finding.Fix{
				Text: "See whether the instance type has such devices (EFA: first command). If it has, add " + kind +
					" to each list of instance types in the DaemonSet's node affinity, in the values or the manifest it " +
					"comes from, or update the chart. When the nodes advertise the devices, let the pods request them " +
					"(EFA: vpc.amazonaws.com/efa in the limits). Do not mount /dev/infiniband by hostPath.",
				Commands: []string{
					shell.Command("aws ec2 describe-instance-types --instance-types %s --query %s",
						strings.TrimPrefix(kind, "ml."), "InstanceTypes[].NetworkInfo.EfaSupported"),
					shell.Command("kubectl -n %s edit daemonset %s", d.Namespace, d.Name),
					shell.Command("kubectl get node %s -o jsonpath='{.status.allocatable}'", missing[kind].Name),
				},
			},
		}.ForPods(byType[kind]...))
		reported = true
	}
	return reported
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

// lacksType reports whether a DaemonSet does not select a node, and a list of instance types without that of the node
// is the only reason.
func lacksType(d *appsv1.DaemonSet, n *facts.Node, kind string) bool {
	spec := d.Spec.Template.Spec
	if _, kept := facts.KeptAway(n, d); kept {
		return false
	}
	lacks := scheduler.MissingLabels(spec, n)
	return len(lacks) == 1 && strings.Contains(lacks[0], "instance-type In ") && !slices.Contains(typesOf(d), kind)
}

// typesOf returns the instance types that a DaemonSet's required node affinity lists.
func typesOf(d *appsv1.DaemonSet) (all []string) {
	a := d.Spec.Template.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range t.MatchExpressions {
			if strings.HasSuffix(e.Key, "instance-type") && e.Operator == corev1.NodeSelectorOpIn {
				for _, v := range e.Values {
					if !slices.Contains(all, v) {
						all = append(all, v)
					}
				}
			}
		}
	}
	return all
}
