package deviceplugin

import (
	"cmp"
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

// ofDevices matches the names of DaemonSets that advertise or prepare devices.
var ofDevices = regexp.MustCompile(`plugin|driver|-dp\b|-ds\b`)

func selectsNoneCheck() engine.Check {
	return engine.Check{
		ID: "dp.selects-none", Layer: finding.LayerDevicePlugin,
		Title: "the DaemonSet of a device plugin does not run on nodes that need it, because of a selector or a taint",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "DaemonSets of device plugins and drivers of all vendors, their number of desired pods, node selector, " +
			"affinity and tolerations, node labels and taints, unscheduled pods that request the plugin's resource, " +
			"and pods whose logs show that NCCL found no RDMA device",
		Why: "Pods are waiting for a resource, but the plugin that advertises it runs on no node, because its " +
			"DaemonSet selects labels or instance types that no node has, or does not tolerate the nodes' taint. " +
			"Without waiting pods, or if an autoscaler may add nodes, this is normal. A plugin that runs on other " +
			"nodes is reported if a pod selects a node that the plugin's selector excludes, although feature " +
			"discovery gives that node the same device label as a node that runs the plugin.",
		Explains: []string{
			"wl.other-accelerator", "sched.none-advertised", "sched.insufficient-other", "sched.all-in-use",
			"wl.pod-failing", "sched.node-selector",
		},
		Sources: []string{"intel-device-plugins-for-kubernetes#1688", "k8s-device-plugin#1213",
			"intel-device-plugins-for-kubernetes#1921", "gpu-operator#550 (ROCm)", "projectbluefin lab#595"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/daemonsets") || r.Lacks(f, "api/nodes") {
				return
			}
			for i := range f.DaemonSets {
				d := &f.DaemonSets[i]
				if checkTypes(f, r, d) {
					continue
				}
				resources := facts.ResourcesOf(d.Namespace + "/" + d.Name)
				if n, pod := twin(f, resources); d.Status.DesiredNumberScheduled > 0 && n != nil &&
					ofDevices.MatchString(d.Name) && !slices.Contains(resources, "nvidia.com/") &&
					len(scheduler.MissingLabels(d.Spec.Template.Spec, n)) > 0 {
					reportSelector(f, r, d, []*facts.Node{n}, []string{pod})
				}
				if d.Status.DesiredNumberScheduled > 0 || !ofDevices.MatchString(d.Name) ||
					slices.Contains(resources, "nvidia.com/") && !unseen(f, d) {
					continue
				}
				pods := f.PodsWaitingFor(resources)
				if facts.Autoscaled(f) || len(pods) == 0 && !unseen(f, d) {
					continue
				}
				reportSelector(f, r, d, f.Nodes, pods)
			}
		},
	}
}

// unseen reports whether no other check reports this DaemonSet of NVIDIA's device plugin: dp.none covers only
// recognized GPU nodes, and nfd.labels only the operator's DaemonSets.
func unseen(f *facts.Facts, d *appsv1.DaemonSet) bool {
	_, operator := facts.ClusterPolicy(f)
	return len(f.GPUNodes) == 0 && !operator &&
		facts.ComponentOf(d.Spec.Template.Labels, &d.Spec.Template.Spec) == facts.DevicePlugin
}

// reportSelector reports what keeps the DaemonSet off the node that comes closest to matching: a taint or missing
// labels.
func reportSelector(f *facts.Facts, r *engine.Result, d *appsv1.DaemonSet, nodes []*facts.Node, pods []string) {
	var nearest, tainted *facts.Node
	var missing, kinds []string
	for _, n := range nodes {
		if _, control := n.Labels["node-role.kubernetes.io/control-plane"]; control && len(nodes) > 1 {
			continue
		}
		lacks := scheduler.MissingLabels(d.Spec.Template.Spec, n)
		if nearest == nil || len(lacks) < len(missing) {
			nearest, missing = n, lacks
		}
		if kind := n.Labels[corev1.LabelInstanceTypeStable]; slices.ContainsFunc(pods, func(name string) bool {
			namespace, name, _ := strings.Cut(name, "/")
			pod := f.Pod(namespace, name)
			return pod != nil && scheduler.Selects(pod, n) && !slices.Contains(kinds, kind)
		}) {
			kinds = append(kinds, kind)
		}
		if _, kept := facts.KeptAway(n, d); kept && len(lacks) == 0 {
			tainted = n
		}
	}
	object := finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name}
	if tainted != nil {
		reportTaint(r, d, object, tainted, pods)
		return
	}
	if len(missing) == 0 {
		return // the DaemonSet has no pods for another reason
	}
	found := finding.Finding{
		Object: object, Confidence: finding.Likely,
		Title: "the device plugin runs on no node, because no node has " + strings.Join(missing, " and "),
		Evidence: []finding.Evidence{
			finding.FieldEvidence(object, ".status.desiredNumberScheduled", "%d", d.Status.DesiredNumberScheduled),
			finding.FieldEvidence(object, ".spec.template.spec.nodeSelector and .affinity", "%s",
				strings.Join(missing, " and ")),
		},
		Fix: finding.Fix{
			Text: "Run node feature discovery with the vendor's rules, which set the label (Intel's rules before " +
				"0.30 do not detect a driver that is built into the kernel), or set the label manually on the nodes " +
				"that have the device.",
		},
	}
	if len(nodes) < len(f.Nodes) {
		found.Title = "the device plugin does not run on " + nearest.Name + ", because the node does not have " +
			strings.Join(missing, " and ") + ", although it has the same kind of device as a node with the plugin"
	}
	if strings.Contains(missing[0], "instance-type In ") {
		types := cmp.Or(strings.Join(kinds, ", "), nearest.Labels[corev1.LabelInstanceTypeStable])
		if len(nodes) == len(f.Nodes) {
			found.Title = "the device plugin runs on no node, because the instance types in its node affinity do not " +
				"include " + types
		}
		found.Fix.Text = "Check whether nodes of type " + types + " have such devices. If they do, add the type to " +
			"the list in the DaemonSet's node affinity, in the values or manifest that define it, and to the lists " +
			"of the other plugins there (such as EFA's). The cloud provider sets the label: do not set it manually."
		found.Fix.Commands = []string{"kubectl get nodes -L node.kubernetes.io/instance-type"}
	} else if unseen(f, d) {
		near := scheduler.Near(nearest, missing)
		found.Fix.Text = "Check which nodes have NVIDIA GPUs." + near
		found.Fix.Commands = []string{
			shell.Command("kubectl get daemonset %s -n %s -o yaml", d.Name, d.Namespace),
			"kubectl get nodes --show-labels",
		}
		if key, value, ok := strings.Cut(missing[0], "="); ok && len(missing) == 1 && near == "" {
			found.Fix.Text += " Label them (last command), or set the node selector in the plugin's chart to a label " +
				"that they have. The plugin is already installed: a second one would conflict with it."
			found.Fix.Commands = append(found.Fix.Commands,
				shell.Command("kubectl label node %s %s # each node with GPUs", nearest.Name, key+"="+value))
		}
	} else if strings.HasPrefix(missing[0], "kmm.node.kubernetes.io/") {
		found.Fix.Text = "KMM sets this label when it has loaded the driver's module on the node: its build and " +
			"kmm-worker pods show why it has not. Do not set the label manually."
		found.Fix.Commands = []string{shell.Command("kubectl get pods -n %s -o wide", d.Namespace)}
	} else if key, value, ok := strings.Cut(missing[0], "="); ok && len(missing) == 1 {
		found.Fix.Commands = []string{shell.Command("kubectl label node %s %s", nearest.Name, key+"="+value)}
	}
	if len(pods) == 0 { // no pod is waiting for GPUs, so this may be intentional
		found.Severity, found.Confidence = finding.Info, finding.Possible
	}
	r.Add(found.ForPods(pods...))
}

// ofDevice matches the labels by which feature discovery shows a display controller, an accelerator or an AMD device.
var ofDevice = regexp.MustCompile(
	`^feature\.node\.kubernetes\.io/(?:pci-(?:03|12)\d\d_|pci-1002|amd-gpu)|^intel\.feature\.node\.kubernetes\.io/gpu$`,
)

// twin returns a node that a waiting pod selects but that offers none of the resource that the pod requests, although
// feature discovery shows the same device on this node as on a node that offers the resource.
func twin(f *facts.Facts, resources []string) (without *facts.Node, waiting string) {
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		resource := facts.OtherAccelerator(pod)
		if !facts.Unscheduled(pod) || !words.ContainsAny(string(resource), resources) {
			continue
		}
		offers := func(n *facts.Node) bool { return n.Allocatable(resource) > 0 }
		selected := scheduler.Keep(f.Nodes, func(n *facts.Node) bool { return scheduler.Selects(pod, n) })
		if slices.ContainsFunc(selected, offers) {
			continue // the pod waits for another reason
		}
		for _, with := range scheduler.Keep(f.Nodes, offers) {
			for _, n := range selected {
				for label, value := range n.Labels {
					if ofDevice.MatchString(label) && with.Labels[label] == value {
						return n, pod.Namespace + "/" + pod.Name
					}
				}
			}
		}
	}
	return nil, ""
}

// reportTaint reports a taint that the DaemonSet does not tolerate.
func reportTaint(r *engine.Result, d *appsv1.DaemonSet, object finding.Object, n *facts.Node, pods []string) {
	taint, _ := facts.KeptAway(n, d)
	found := finding.Finding{
		Object: object, Confidence: finding.Likely,
		Title: "the device plugin runs on no node, because it does not tolerate the taint " + taint.ToString(),
		Evidence: []finding.Evidence{
			finding.FieldEvidence(object, ".status.desiredNumberScheduled", "%d", d.Status.DesiredNumberScheduled),
			finding.FieldEvidence(n.Object(), ".spec.taints", "%s", taint.ToString()),
		},
		Fix: finding.Fix{
			Text: "Add the toleration in the values of the plugin's chart or in the custom resource of its operator. " +
				"If the resource already contains the toleration, its CRD is too old and drops it, because helm " +
				"upgrade does not update CRDs: apply the CRDs of the operator's release (helm show crds), then " +
				"uninstall and reinstall the chart that contains the resource. If the release has no field for " +
				"tolerations, upgrade it.",
			Commands: []string{shell.Command("kubectl get daemonset %s -n %s -o yaml", d.Name, d.Namespace)},
		},
	}
	r.Add(found.ForPods(pods...))
}
