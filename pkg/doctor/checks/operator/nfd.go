package operator

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// pciLabels returns the node feature discovery labels by which the operator recognizes GPU nodes.
func pciLabels() []string {
	return []string{
		"feature.node.kubernetes.io/pci-10de.present", "feature.node.kubernetes.io/pci-0302_10de.present",
		"feature.node.kubernetes.io/pci-0300_10de.present",
	}
}

func nfdCheck() engine.Check {
	return engine.Check{
		ID: "nfd.labels", Layer: finding.LayerOperator,
		Title: "GPU nodes lack the node feature discovery labels that GPU software selects",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "the feature.node.kubernetes.io/pci-*10de.present labels of nodes that advertise no GPU, the " +
			"ClusterPolicy's condition, the DaemonSets of node feature discovery and of the device plugin, taints " +
			"and tolerations",
		Why: "The operator and the device plugin's chart select nodes by these labels. A node whose GPUs are advertised or allocated by DRA needs no labels. By default, NFD's worker does not " +
			"tolerate GPU taints, so a taint can keep the worker, which creates the labels, off the node.",
		Explains: facts.GPULost(
			"sched.node-selector", "op.clusterpolicy", "dp.none", "dp.capacity-zero", "gfd.labels", "drv.not-loaded"),
		Doc: "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html",
		Sources: []string{"gpu-operator#78", "gpu-operator#114", "gpu-operator#149", "gpu-operator#371",
			"gpu-operator#423", "gpu-operator#961", "gpu-operator#1274", "gpu-operator#1469",
			"k8s-device-plugin#1934"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/daemonsets") {
				return
			}
			known := false
			for _, n := range f.GPUNodes {
				waiting, who := placedByLabels(f, n)
				if len(facts.LabelEvidence(n, pciLabels()...)) > 0 {
					old, e := selectsVendor(f)
					if !waiting || !old || n.Labels[pciLabels()[0]] != "" {
						r.Pass(n.Object())
						continue
					}
					who = e
				}
				if !waiting || facts.Advertises(f, n) || f.Now.Sub(n.CreationTimestamp.Time) < facts.OperandGrace {
					continue
				}
				known = true
				r.Add(nfdFinding(f, n, who))
			}
			if !known {
				checkPolicyLabels(f, r)
			}
		},
	}
}

// selectsVendor reports whether the operator's log shows that it recognizes GPU nodes only by the label that contains
// just the vendor, as releases before 1.2 do. The label in the log message may be a different one.
func selectsVendor(f *facts.Facts) (old bool, e finding.Evidence) {
	for _, pod := range f.Component(facts.Operator) {
		if e, old = facts.LogEvidence(f, pod, "Could not get any nodes to match pci-"); old {
			break
		}
	}
	return old, e
}

// placedByLabels reports whether GPU software selects nodes by NFD's labels and is missing on the node because the node
// lacks these labels.
func placedByLabels(f *facts.Facts, n *facts.Node) (bool, finding.Evidence) {
	if p, ok := facts.ClusterPolicy(f); ok && n.Labels["nvidia.com/gpu.deploy.operands"] != "false" {
		state, _, _ := unstructured.NestedString(p.Object, "status", "state")
		return n.Labels["nvidia.com/gpu.present"] != "true",
			finding.FieldEvidence(
				finding.Object{Kind: "ClusterPolicy", Name: p.GetName()}, ".status.state", "%s", state,
			)
	}
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		if facts.ComponentOf(d.Spec.Template.Labels, &d.Spec.Template.Spec) == facts.DevicePlugin && wantsLabels(d) &&
			len(facts.Current(n, facts.DevicePlugin)) == 0 && n.Labels["nvidia.com/gpu.present"] != "true" {
			return true, finding.FieldEvidence(finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name},
				".status.desiredNumberScheduled", "%d", d.Status.DesiredNumberScheduled)
		}
	}
	return false, finding.Evidence{}
}

// wantsLabels reports whether a DaemonSet runs only on nodes with NFD's labels for NVIDIA devices.
func wantsLabels(d *appsv1.DaemonSet) bool {
	spec := d.Spec.Template.Spec
	for label := range spec.NodeSelector {
		if slices.Contains(pciLabels(), label) {
			return true
		}
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	for _, term := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if slices.Contains(pciLabels(), e.Key) {
				return true
			}
		}
	}
	return false
}

func nfdFinding(f *facts.Facts, n *facts.Node, who finding.Evidence) finding.Finding {
	found := finding.Finding{
		Confidence: finding.Likely, Object: n.Object(), Nodes: []string{n.Name},
		Title: "the node has no label from node feature discovery for NVIDIA devices, so GPU software does not run " +
			"on it",
		Evidence: []finding.Evidence{
			who, finding.FieldEvidence(n.Object(), ".metadata.labels", "missing: %s", strings.Join(pciLabels(), ", ")),
		},
	}
	workers := nfdWorkers(f)
	other := facts.OtherPCILabel(n)
	known := facts.LabelEvidence(n, pciLabels()[1:]...)
	if len(known) > 0 {
		other, _, _ = strings.Cut(known[0].Text, "=")
		found.Evidence[1].Text = "missing: " + pciLabels()[0]
	}
	switch {
	case other != "":
		describeOtherForm(n, other, workers, &found)
		if len(known) > 0 {
			found.Cause = "This release of the GPU operator finds GPU nodes only by a label with the vendor alone; " +
				"since release 1.2, a label with class and vendor also works. sources.pci.deviceLabelFields in the " +
				"configuration of NFD's worker determines which fields the labels contain (by default, class and " +
				"vendor)."
		}
	case len(workers) == 0:
		found.Fix = finding.Fix{
			Text:     "Node feature discovery does not run in this cluster: install it, or enable it in the operator's chart (nfd.enabled=true).",
			Commands: installNFD(f),
		}
		if _, operator := facts.ClusterPolicy(f); !operator {
			found.Fix = finding.Fix{
				Text: "Node feature discovery, which sets the labels, does not run in this cluster. The chart of the " +
					"device plugin installs it with gfd.enabled=true. Alternatively, set the label " +
					"nvidia.com/gpu.present=true on the GPU nodes: the DaemonSet also selects nodes with this label.",
				Commands: []string{shell.Command("kubectl label node %s nvidia.com/gpu.present=true", n.Name)},
			}
		}
	case hasWorker(n):
		found.Fix = finding.Fix{
			Text:     "NFD runs on the node but does not create the label: check its log. Its configuration may exclude class 03 or vendor 10de, or its master may reject the worker.",
			Commands: []string{shell.Command("kubectl logs -n %s daemonset/%s", workers[0].Namespace, workers[0].Name)},
		}
	default:
		taint, ok := facts.KeptAway(n, workers[0])
		if !ok {
			found.Fix = finding.Fix{
				Text: "NFD's worker does not run on the node: check why its DaemonSet skips the node.",
				Commands: []string{
					shell.Command("kubectl describe daemonset %s -n %s", workers[0].Name, workers[0].Namespace),
				},
			}
			break
		}
		found.Confidence = finding.Certain
		found.Title = "a taint keeps node feature discovery off the node, so the node gets no labels and no GPU software"
		found.Evidence = append(found.Evidence,
			finding.FieldEvidence(n.Object(), ".spec.taints", "%s", taint.ToString()),
			finding.FieldEvidence(finding.Object{
				Kind: "DaemonSet", Namespace: workers[0].Namespace, Name: workers[0].Name,
			},
				".spec.template.spec.tolerations", "%s", tolerationText(workers[0])))
		found.Fix = finding.Fix{
			Text: "Let NFD's worker tolerate the taint with any value (operator: Exists), and add the toleration to the values of its chart.",
			Commands: []string{shell.Command("kubectl patch daemonset %s -n %s --type json -p %s", workers[0].Name,
				workers[0].Namespace,
				fmt.Sprintf(`[{"op":"add","path":"/spec/template/spec/tolerations%s","value":%s}]`,
					tolerationsPath(workers[0]), tolerationsValue(workers[0], taint)))},
			Values: fmt.Sprintf(
				"node-feature-discovery:\n  worker:\n    tolerations:\n    - key: %s\n      operator: Exists\n      effect: %s\n",
				taint.Key, taint.Effect,
			),
		}
	}
	return found
}

// describeOtherForm describes a node whose GPU label consists of different fields than the labels by which GPU software
// selects nodes.
func describeOtherForm(n *facts.Node, label string, workers []*appsv1.DaemonSet, found *finding.Finding) {
	found.Title = "node feature discovery labels the node's GPU in a form that GPU software does not select, so no " +
		"GPU software runs on the node"
	found.Evidence = append(found.Evidence, finding.FieldEvidence(n.Object(), ".metadata.labels", "%s=%s", label,
		n.Labels[label]))
	found.Cause = "sources.pci.deviceLabelFields in the configuration of NFD's worker determines which fields the " +
		"labels of PCI devices contain. The GPU operator looks for the vendor alone, or for class and vendor."
	found.Fix = finding.Fix{
		Text: "Set sources.pci.deviceLabelFields to [vendor] in the configuration of NFD's worker (with the NFD " +
			"operator, in .spec.workerConfig of the NodeFeatureDiscovery resource). If other software, such as " +
			"another vendor's GPU operator, needs the labels as they are, keep them and add the missing label with a " +
			"NodeFeatureRule or manually (last command). Nothing else has to be installed or changed.",
	}
	for _, d := range workers {
		if n.Distribution == facts.OpenShift {
			found.Fix.Commands = []string{shell.Command("kubectl edit nodefeaturediscoveries -n %s", d.Namespace)}
		} else if pod := (&corev1.Pod{Spec: d.Spec.Template.Spec}); len(found.Fix.Commands) == 0 {
			pod.Namespace = d.Namespace
			found.Fix.Commands = editConfigMaps(pod)
		}
	}
	found.Fix.Commands = append(found.Fix.Commands,
		shell.Command("kubectl label node %s %s=true", n.Name, pciLabels()[0]))
}

// tolerationsPath returns the last part of the JSON patch path that adds a toleration: "/-" appends to the list, and an
// empty string creates the list if the DaemonSet has none.
func tolerationsPath(d *appsv1.DaemonSet) string {
	if len(d.Spec.Template.Spec.Tolerations) == 0 {
		return ""
	}
	return "/-"
}

func tolerationsValue(d *appsv1.DaemonSet, taint corev1.Taint) string {
	one := fmt.Sprintf(`{"key":%q,"operator":"Exists","effect":%q}`, taint.Key, taint.Effect)
	if len(d.Spec.Template.Spec.Tolerations) == 0 {
		return "[" + one + "]"
	}
	return one
}

func tolerationText(d *appsv1.DaemonSet) string {
	var all []string
	for _, t := range d.Spec.Template.Spec.Tolerations {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s:%s", t.Key, t.Operator, t.Value, t.Effect)))
	}
	if len(all) == 0 {
		return "(none)"
	}
	return strings.Join(all, ", ")
}

// installNFD returns the commands that install node feature discovery, with the GPU operator's chart if it is
// installed.
func installNFD(f *facts.Facts) []string {
	if h, ok := facts.ReleaseOf(f, facts.ChartOperator); ok {
		return []string{facts.HelmUpgrade(h, "nfd.enabled=true")}
	}
	return []string{shell.Command("helm install nfd %s --repo %s -n node-feature-discovery --create-namespace --set %s",
		facts.ChartNFD, facts.ChartRepository(facts.ChartNFD), "worker.tolerations[0].operator=Exists")}
}

// nfdWorkers returns the DaemonSets that run NFD's worker.
func nfdWorkers(f *facts.Facts) []*appsv1.DaemonSet {
	var all []*appsv1.DaemonSet
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		if facts.ComponentOf(d.Spec.Template.Labels, &d.Spec.Template.Spec) == facts.NFD &&
			(strings.Contains(d.Name, "worker") || d.Spec.Template.Labels["role"] == "worker") {
			all = append(all, d)
		}
	}
	return all
}

// hasWorker reports whether NFD's worker runs on the node.
func hasWorker(n *facts.Node) bool {
	return slices.ContainsFunc(facts.Current(n, facts.NFD), func(pod *corev1.Pod) bool {
		return strings.Contains(pod.Name, "worker") || pod.Labels["role"] == "worker"
	})
}

// checkPolicyLabels reports a ClusterPolicy whose conditions state that no node has NFD's labels, or that there is no
// GPU node although pods are waiting for GPUs.
func checkPolicyLabels(f *facts.Facts, r *engine.Result) {
	p, ok := facts.ClusterPolicy(f)
	if !ok {
		return
	}
	waiting := slices.ContainsFunc(scheduler.Pending(f),
		func(p scheduler.PendingPod) bool { return p.Id != "sched.waiting" })
	for _, c := range conditions(p) {
		if c.reason != "NFDLabelsMissing" && !(c.reason == "NoGPUNodes" && waiting) {
			continue
		}
		found := finding.Finding{
			Severity: finding.Info, Object: finding.Object{Kind: "ClusterPolicy", Name: p.GetName()},
			Confidence: finding.Possible,
			Title:      "the GPU operator finds no node with a GPU",
			Evidence:   []finding.Evidence{c.evidence(p)},
			Fix: finding.Fix{
				Text:     "If nodes have GPUs, run node feature discovery on them. If GPU nodes are yet to be added, no action is required.",
				Commands: installNFD(f),
			},
		}
		if c.reason == "NFDLabelsMissing" {
			found.Confidence = finding.Certain
			found.Title = "no node has a label from node feature discovery, so the GPU operator finds no GPU"
			found.Severity = finding.Warning
			if waiting {
				found.Severity = finding.Error
			}
			if workers := nfdWorkers(f); len(workers) > 0 {
				found.Fix = finding.Fix{
					Text: "Node feature discovery is installed but does not label nodes: check the logs of its pods.",
					Commands: []string{
						shell.Command("kubectl logs -n %s daemonset/%s", workers[0].Namespace, workers[0].Name),
					},
				}
			}
		}
		r.Add(found)
		return
	}
}
