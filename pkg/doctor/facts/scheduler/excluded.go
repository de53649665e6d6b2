package scheduler

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// DaemonSetOf returns the component's DaemonSet that comes closest to running on the node, or nil if the cluster has
// none. In clouds, there are several DaemonSets, each for some of the nodes. If n is nil, DaemonSetOf returns the first
// one.
func DaemonSetOf(f *facts.Facts, n *facts.Node, c facts.Component) *appsv1.DaemonSet {
	var nearest *appsv1.DaemonSet
	least := 0
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		if facts.ComponentOf(d.Spec.Template.Labels, &d.Spec.Template.Spec) != c || strings.Contains(d.Name, "mps") {
			continue
		}
		if n == nil {
			return d
		}
		lacks := len(facts.Untolerated(n, d)) + len(MissingLabels(d.Spec.Template.Spec, n))
		if nearest == nil || lacks < least {
			nearest, least = d, lacks
		}
	}
	return nearest
}

// Excludes returns the reason why a DaemonSet has no pod on a node, and its evidence: taints that the DaemonSet does
// not tolerate, or labels that the node lacks.
func Excludes(d *appsv1.DaemonSet, n *facts.Node) (why string, e finding.Evidence) {
	object := finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name}
	if taints := facts.Untolerated(n, d); len(taints) > 0 {
		text := facts.TaintsText(taints)
		return "its DaemonSet does not tolerate the taint " + text,
			finding.FieldEvidence(n.Object(), ".spec.taints", "%s", text)
	}
	if missing := MissingLabels(d.Spec.Template.Spec, n); len(missing) > 0 {
		text := strings.Join(missing, " and ")
		return "its DaemonSet selects nodes with " + text, finding.FieldEvidence(object,
			".spec.template.spec.nodeSelector and .affinity", "%s", text)
	}
	return "", e
}

// LetIn returns a fix that allows a component's DaemonSet to run on a node that the DaemonSet excludes. The what
// parameter is how the text refers to the component.
func LetIn(what string, d *appsv1.DaemonSet, n *facts.Node) finding.Fix {
	fix := finding.Fix{
		Text: "A " + what + " is installed but is not running on the node: the node selector, affinity, or " +
			"tolerations of its DaemonSet exclude the node.",
		Commands: []string{
			shell.Command("kubectl get daemonset %s -n %s -o yaml", d.Name, d.Namespace),
			shell.Command("kubectl get node %s --show-labels", n.Name),
		},
	}
	if taints := facts.Untolerated(n, d); len(taints) > 0 {
		fix.Text = "The " + what + "'s DaemonSet does not tolerate the node's taint " + facts.TaintsText(taints) +
			": unless a controller removes the taint soon, add a toleration where the DaemonSet is defined (in a " +
			"ClusterPolicy: daemonsets.tolerations)."
	} else if missing := MissingLabels(d.Spec.Template.Spec, n); len(missing) > 0 {
		text := strings.Join(missing, " and ")
		fix.Text = "The " + what + "'s DaemonSet selects nodes with " + text + ", which this node does not have." +
			Near(n, missing)
		if strings.Contains(text, gkeAccelerator) {
			fix.Commands = append(fix.Commands, shell.Command("kubectl label node %s %s %s=default", n.Name,
				gkeAccelerator+"="+gkeType(n), gkeDriver))
		} else if strings.Contains(fix.Text, "label "+present+"=true") {
			fix.Commands = append(fix.Commands, shell.Command("kubectl label node %s %s=true", n.Name, present))
		}
	}
	return fix
}

// present is the node label that is also in the node selectors of the charts for the device plugin and the DRA driver.
const present = "nvidia.com/gpu.present"

// gkeAccelerator is the label by which Google's DaemonSets select GPU nodes.
const gkeAccelerator = "cloud.google.com/gke-accelerator"

// gkeDriver is the label of nodes on which GKE installs a driver.
const gkeDriver = "cloud.google.com/gke-gpu-driver-version"

// gkeType returns GKE's name for the node's GPU type, based on labels that Karpenter sets.
func gkeType(n *facts.Node) string {
	for key, value := range n.Labels {
		if strings.HasSuffix(key, "/instance-gpu-name") && strings.HasPrefix(value, "nvidia-") {
			return value
		}
	}
	return "nvidia-TYPE"
}

// Near explains a node selector of a known chart if the node's labels almost match it.
func Near(n *facts.Node, missing []string) string {
	text := strings.Join(missing, " ")
	if strings.Contains(text, gkeAccelerator) {
		return " GKE sets the label on nodes in its own node pools with accelerators. For nodes that are created in " +
			"another way, for example by Karpenter, the node class must " +
			"set " + gkeAccelerator + " (here " + gkeType(n) +
			") and, so that GKE installs the driver, " + gkeDriver + "=default: set both in the kube-labels of its " +
			"metadata, or upgrade Karpenter's provider to a release that sets them, and replace the node. " +
			"Labeling the node manually (last command) fixes only this node."
	}
	if !strings.Contains(text, "pci-10de.present") {
		return ""
	}
	for _, key := range words.SortedKeys(n.Labels) {
		if key == facts.OtherPCILabel(n) ||
			strings.HasPrefix(key, "feature.node.kubernetes.io/pci-") && strings.HasSuffix(key, "_10de.present") {
			return " Node feature discovery labels devices in a different format (" + key + "): set " +
				"sources.pci.deviceLabelFields: [vendor] in its worker's configuration. Alternatively, set the label " +
				"nvidia.com/gpu.present=true on all nodes with GPUs: the DaemonSet also selects nodes with this label."
		}
	}
	return " Node feature discovery (NFD) sets this label. Without NFD, set the label nvidia.com/gpu.present=true on " +
		"the node: the DaemonSet also selects nodes with that label."
}
