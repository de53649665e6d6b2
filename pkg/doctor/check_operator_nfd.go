package doctor

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// pciLabels returns the labels of node feature discovery by which the operator knows a node with a GPU.
func pciLabels() []string {
	return []string{
		"feature.node.kubernetes.io/pci-10de.present", "feature.node.kubernetes.io/pci-0302_10de.present",
		"feature.node.kubernetes.io/pci-0300_10de.present",
	}
}

func nfdCheck() Check {
	return Check{
		ID: "nfd.labels", Layer: LayerOperator,
		Title: "GPU nodes lack the labels of node feature discovery, by which the GPU software is placed",
		Needs: []Need{NeedAPI},
		Reads: "labels feature.node.kubernetes.io/pci-*10de.present of nodes that advertise no GPU, the ClusterPolicy's condition, the DaemonSets of node feature discovery and of the device plugin, " +
			"taints and tolerations",
		Why: "The operator, and the device plugin's chart, place their pods by these labels. A node whose GPUs are advertised, or given by DRA, needs none. NFD's worker tolerates " +
			"no taint for GPUs unless it is told to, so that a taint can keep away what makes the labels.",
		Explains: gpuLost("sched.node-selector", "op.clusterpolicy", "dp.none", "dp.capacity-zero", "gfd.labels"),
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html",
		Sources: []string{"gpu-operator#78", "gpu-operator#114", "gpu-operator#149", "gpu-operator#371",
			"gpu-operator#423", "gpu-operator#961", "gpu-operator#1274",
			"k8s-device-plugin#1934"},
		Run: func(f *Facts, r *Result) {
			if r.Lacks(f, "api/daemonsets") {
				return
			}
			known := false
			for _, n := range f.GPUNodes {
				if len(labelEvidence(n, pciLabels()...)) > 0 {
					r.Pass(n.Object())
					continue
				}
				waiting, who := placedByLabels(f, n)
				if !waiting || advertises(f, n) || f.Now.Sub(n.CreationTimestamp.Time) < operandGrace {
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

// placedByLabels reports whether GPU software of the cluster is placed by NFD's labels, and would be on the node if it
// had them.
func placedByLabels(f *Facts, n *Node) (bool, Evidence) {
	if p, ok := clusterPolicy(f); ok && n.Labels["nvidia.com/gpu.deploy.operands"] != "false" {
		state, _, _ := unstructured.NestedString(p.Object, "status", "state")
		return n.Labels["nvidia.com/gpu.present"] != "true",
			fieldEvidence(Object{Kind: "ClusterPolicy", Name: p.GetName()}, ".status.state", "%s", state)
	}
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		if ComponentOf(d.Spec.Template.Labels, d.Spec.Template.Spec) == DevicePlugin && wantsLabels(d) &&
			len(current(n, DevicePlugin)) == 0 && n.Labels["nvidia.com/gpu.present"] != "true" {
			return true, fieldEvidence(Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name},
				".status.desiredNumberScheduled", "%d", d.Status.DesiredNumberScheduled)
		}
	}
	return false, Evidence{}
}

// wantsLabels reports whether a DaemonSet runs only on nodes with NFD's labels of NVIDIA devices.
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

func nfdFinding(f *Facts, n *Node, who Evidence) Finding {
	found := Finding{
		Confidence: Likely, Object: n.Object(), Nodes: []string{n.Name},
		Title: "the node has no label of node feature discovery for NVIDIA devices, so that no GPU software is placed on it",
		Evidence: []Evidence{
			who, fieldEvidence(n.Object(), ".metadata.labels", "none of %s", strings.Join(pciLabels(), ", ")),
		},
	}
	workers := nfdWorkers(f)
	switch {
	case len(workers) == 0:
		found.Fix = Fix{
			Text:     "Node feature discovery does not run in this cluster: install it, or let the operator's chart do it (nfd.enabled=true).",
			Commands: installNFD(f),
		}
	case n.hasWorker():
		found.Fix = Fix{
			Text:     "NFD runs on the node and makes no such label: its log says why; its configuration may hide the class 03 or the vendor 10de, and its master may refuse the worker.",
			Commands: []string{command("kubectl logs -n %s daemonset/%s", workers[0].Namespace, workers[0].Name)},
		}
	default:
		taint, ok := keptAway(n, workers[0])
		if !ok {
			found.Fix = Fix{
				Text: "NFD's worker does not run on the node: see why its DaemonSet leaves the node out.",
				Commands: []string{
					command("kubectl describe daemonset %s -n %s", workers[0].Name, workers[0].Namespace),
				},
			}
			break
		}
		found.Confidence = Certain
		found.Title = "a taint keeps node feature discovery off the node, so that it gets no labels and no GPU software"
		found.Evidence = append(found.Evidence, fieldEvidence(n.Object(), ".spec.taints", "%s", taint.ToString()),
			fieldEvidence(Object{Kind: "DaemonSet", Namespace: workers[0].Namespace, Name: workers[0].Name},
				".spec.template.spec.tolerations", "%s", tolerationText(workers[0])))
		found.Fix = Fix{
			Text: "Let NFD's worker tolerate the taint whatever its value is (operator: Exists), and put the same into the values of its chart.",
			Commands: []string{command("kubectl patch daemonset %s -n %s --type json -p %s", workers[0].Name,
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

// tolerationsPath returns where a JSON patch adds a toleration: at the end of the list, or the list itself where there
// is none.
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

// installNFD are commands that install node feature discovery as this cluster installs the rest.
func installNFD(f *Facts) []string {
	if h, ok := releaseOf(f, chartOperator); ok {
		return []string{helmUpgrade(h, "nfd.enabled=true")}
	}
	return []string{command("helm install nfd %s --repo %s -n node-feature-discovery --create-namespace --set %s",
		chartNFD, chartRepository(chartNFD), "worker.tolerations[0].operator=Exists")}
}

// nfdWorkers returns the DaemonSets that look at the nodes.
func nfdWorkers(f *Facts) []*appsv1.DaemonSet {
	var all []*appsv1.DaemonSet
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		if ComponentOf(d.Spec.Template.Labels, d.Spec.Template.Spec) == NFD &&
			(strings.Contains(d.Name, "worker") || d.Spec.Template.Labels["role"] == "worker") {
			all = append(all, d)
		}
	}
	return all
}

// hasWorker reports whether NFD's worker runs on the node.
func (n *Node) hasWorker() bool {
	return slices.ContainsFunc(current(n, NFD), func(pod *corev1.Pod) bool {
		return strings.Contains(pod.Name, "worker") || pod.Labels["role"] == "worker"
	})
}

// keptAway returns the node's first taint that the DaemonSet's pods do not tolerate.
func keptAway(n *Node, d *appsv1.DaemonSet) (corev1.Taint, bool) {
	for _, taint := range n.Spec.Taints {
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			continue // DaemonSets tolerate those of the node's state
		}
		if !slices.ContainsFunc(
			d.Spec.Template.Spec.Tolerations, func(t corev1.Toleration) bool { return nfdTolerates(t, taint) },
		) {
			return taint, true
		}
	}
	return corev1.Taint{}, false
}

func nfdTolerates(t corev1.Toleration, taint corev1.Taint) bool {
	switch {
	case t.Effect != "" && t.Effect != taint.Effect, t.Key != "" && t.Key != taint.Key,
		t.Key == "" && t.Operator != corev1.TolerationOpExists:
		return false
	case t.Operator == corev1.TolerationOpExists:
		return true
	}
	return t.Value == taint.Value
}

// checkPolicyLabels reads what the operator itself says: that no node has a label of NFD, although pods wait for GPUs.
func checkPolicyLabels(f *Facts, r *Result) {
	p, ok := clusterPolicy(f)
	if !ok {
		return
	}
	waiting := slices.ContainsFunc(f.pending(), func(p pendingPod) bool { return p.id != "sched.waiting" })
	for _, c := range conditions(p) {
		if c.reason != "NFDLabelsMissing" && !(c.reason == "NoGPUNodes" && waiting) {
			continue
		}
		found := Finding{
			Severity: Info, Object: Object{Kind: "ClusterPolicy", Name: p.GetName()}, Confidence: Possible,
			Title:    "the GPU operator knows no node with a GPU",
			Evidence: []Evidence{c.evidence(p)},
			Fix: Fix{
				Text:     "If nodes have GPUs: let node feature discovery run on them. If they are still to come, all is well.",
				Commands: installNFD(f),
			},
		}
		if c.reason == "NFDLabelsMissing" {
			found.Confidence = Certain
			found.Title = "no node has a label of node feature discovery, so that the GPU operator finds no GPU"
			found.Severity = Warning
			if waiting {
				found.Severity = Error
			}
			if workers := nfdWorkers(f); len(workers) > 0 {
				found.Fix = Fix{
					Text: "Node feature discovery is installed and labels nothing: see what its pods say.",
					Commands: []string{
						command("kubectl logs -n %s daemonset/%s", workers[0].Namespace, workers[0].Name),
					},
				}
			}
		}
		r.Add(found)
		return
	}
}
