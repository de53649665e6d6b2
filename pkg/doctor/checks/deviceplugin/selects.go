package deviceplugin

import (
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
			"Helm values, failed build pods of KMM, and pods whose logs show that NCCL found no RDMA device",
		Why: "Pods are waiting for a resource, but the plugin that advertises it runs on no node, because its " +
			"DaemonSet selects labels or instance types that are missing or does not tolerate the nodes' taint. " +
			"Without waiting pods, or if an autoscaler may add nodes, this is normal. A plugin that runs on other " +
			"nodes is reported if a pod selects a node that the plugin's selector excludes, although feature " +
			"discovery labels its device like that of a node with the plugin.",
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
				if d.Status.DesiredNumberScheduled > 0 {
					checkTwin(f, r, d, resources)
					continue
				}
				if !ofDevices.MatchString(d.Name) ||
					slices.Contains(resources, "nvidia.com/") && !unseen(f, d) {
					continue
				}
				pods := f.PodsWaitingFor(resources)
				if facts.Autoscaled(f) || len(pods) == 0 && !unseen(f, d) {
					continue
				}
				reportSelector(f, r, d, pods)
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
func reportSelector(f *facts.Facts, r *engine.Result, d *appsv1.DaemonSet, pods []string) {
	var nearest, tainted *facts.Node
	var missing []string
	for _, n := range f.Nodes {
		if _, control := n.Labels["node-role.kubernetes.io/control-plane"]; control && len(f.Nodes) > 1 {
			continue
		}
		lacks := scheduler.MissingLabels(d.Spec.Template.Spec, n)
		if nearest == nil || len(lacks) < len(missing) {
			nearest, missing = n, lacks
		}
		if _, kept := facts.KeptAway(n, d); kept && len(lacks) == 0 {
			tainted = n
		}
	}
	object := finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name}
	if tainted != nil {
		reportTaint(f, r, d, object, tainted, pods)
		return
	}
	if len(missing) == 0 {
		return // the DaemonSet has no pods for another reason
	}
	if module, is := facts.KMMReady(strings.TrimSuffix(missing[0], "=")); is {
		reportUnbuilt(r, d, object, module, pods)
		return
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
	if unseen(f, d) {
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
	} else if strings.Contains(missing[0], "instance-type In ") {
		found.Fix.Text = "Check whether the nodes that need the plugin have such devices. If they do, add their " +
			"instance types to the list in the DaemonSet's node affinity, in the values or manifest that define it. " +
			"The cloud provider sets the label: do not set it manually."
		found.Fix.Commands = []string{"kubectl get nodes -L node.kubernetes.io/instance-type"}
	} else if key, value, ok := strings.Cut(missing[0], "="); ok && len(missing) == 1 {
		found.Fix.Commands = []string{shell.Command("kubectl label node %s %s", nearest.Name, key+"="+value)}
	}
	if len(pods) == 0 { // no pod is waiting for GPUs, so this may be intentional
		found.Severity, found.Confidence = finding.Info, finding.Possible
	}
	r.Add(found.ForPods(pods...))
}

// reportUnbuilt reports a DaemonSet that selects a label which KMM sets when it has loaded a kernel module.
func reportUnbuilt(r *engine.Result, d *appsv1.DaemonSet, object finding.Object, module string, pods []string) {
	r.Add(finding.Finding{
		Object: object, Confidence: finding.Likely,
		Title: "the device plugin runs on no node, because KMM has loaded the kernel module " + module + " on none",
		Cause: "The DaemonSet selects the label kmm.node.kubernetes.io/" + module + ".ready, which KMM (Kernel Module " +
			"Management) sets on a node when it has loaded the module there.",
		Evidence: []finding.Evidence{
			finding.FieldEvidence(object, ".status.desiredNumberScheduled", "%d", d.Status.DesiredNumberScheduled),
			finding.FieldEvidence(object, ".spec.template.spec.nodeSelector", "kmm.node.kubernetes.io/%s.ready",
				module),
		},
		Fix: finding.Fix{
			Text: "Find out why KMM does not load the module: check the logs of its build pods and kmm-worker pods, and " +
				"the events of the Module. Do not set the label manually: the driver would still be missing.",
			Commands: []string{
				shell.Command("kubectl get pods -n %s -o wide", d.Namespace),
				shell.Command("kubectl get events -n %s --field-selector involvedObject.kind=Module", d.Namespace),
			},
		},
	}.ForPods(pods...))
}

// ofDevice matches the labels by which feature discovery shows a display controller, an accelerator or a device of AMD.
var ofDevice = regexp.MustCompile(
	`^feature\.node\.kubernetes\.io/(?:pci-(?:03|12)\d\d_[0-9a-f]{4}|pci-1002|amd-gpu)|^intel\.feature\.node\.kubernetes\.io/gpu$`,
)

// checkTwin reports a node that a waiting pod selects and the plugin's DaemonSet does not, although feature discovery
// shows the same device as on a node where the plugin offers it.
func checkTwin(f *facts.Facts, r *engine.Result, d *appsv1.DaemonSet, resources []string) {
	if !ofDevices.MatchString(d.Name) || slices.Contains(resources, "nvidia.com/") {
		return
	}
	for _, name := range f.PodsWaitingFor(resources) {
		i := slices.IndexFunc(f.Snapshot.Pods, func(p corev1.Pod) bool { return p.Namespace+"/"+p.Name == name })
		pod := &f.Snapshot.Pods[i]
		resource := facts.OtherAccelerator(pod)
		if resource == "" || !words.ContainsAny(string(resource), resources) {
			continue
		}
		var without, with *facts.Node
		offered := false
		for _, n := range f.Nodes {
			switch selects := scheduler.Selects(pod, n); {
			case selects && n.Allocatable(resource) > 0:
				offered = true
			case selects && without == nil && len(scheduler.MissingLabels(d.Spec.Template.Spec, n)) > 0:
				without = n
			case n.Allocatable(resource) > 0 && len(scheduler.MissingLabels(d.Spec.Template.Spec, n)) == 0:
				with = n
			}
		}
		if !offered && without != nil && with != nil && reportTwin(r, d, without, with, resource, name) {
			return
		}
	}
}

// reportTwin adds the finding of checkTwin unless the nodes share no label of a device.
func reportTwin(
	r *engine.Result, d *appsv1.DaemonSet, without, with *facts.Node, resource corev1.ResourceName, pod string,
) bool {
	missing := scheduler.MissingLabels(d.Spec.Template.Spec, without)
	for _, label := range words.SortedKeys(without.Labels) {
		if !ofDevice.MatchString(label) || with.Labels[label] != without.Labels[label] {
			continue
		}
		object := finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name}
		found := finding.Finding{
			Object: object, Confidence: finding.Likely,
			Title: "the device plugin does not run on " + without.Name + ", because the node does not have " +
				strings.Join(missing, " and "),
			Cause: "Feature discovery shows the same device on " + without.Name + " and on " + with.Name + ", where " +
				"the plugin runs and offers " + string(resource) + ".",
			Evidence: []finding.Evidence{
				finding.FieldEvidence(object, ".spec.template.spec.nodeSelector and .affinity", "%s",
					strings.Join(missing, " and ")),
				finding.FieldEvidence(without.Object(), ".metadata.labels", "%s=%s", label, without.Labels[label]),
				finding.FieldEvidence(with.Object(), ".metadata.labels", "%s=%s", label, with.Labels[label]),
				finding.FieldEvidence(with.Object(), ".status.allocatable", "%s: %d", resource,
					with.Allocatable(resource)),
			},
			Fix: finding.Fix{
				Text: "Let the DaemonSet select " + label + ", which feature discovery sets on both nodes, in the values " +
					"or the manifest of the plugin. The pod, the driver and the running plugin need no change.",
				Commands: []string{shell.Command("kubectl get daemonset %s -n %s -o yaml", d.Name, d.Namespace)},
			},
		}
		if _, module := facts.KMMReady(strings.TrimSuffix(missing[0], "=")); module {
			found.Fix.Text = "Find out why KMM does not load the driver on " + without.Name + ": see the logs of its " +
				"build and kmm-worker pods. KMM sets the label afterwards."
		} else if key, value, ok := strings.Cut(missing[0], "="); ok && len(missing) == 1 {
			found.Fix.Text = "Label the node (first command). Or let" + strings.TrimPrefix(found.Fix.Text, "Let")
			found.Fix.Commands = append(
				[]string{shell.Command("kubectl label node %s %s", without.Name, key+"="+value)}, found.Fix.Commands...,
			)
		}
		r.Add(found.ForPods(pod))
		return true
	}
	return false
}

// reportTaint reports a taint that the DaemonSet does not tolerate.
func reportTaint(
	f *facts.Facts, r *engine.Result, d *appsv1.DaemonSet, object finding.Object, n *facts.Node, pods []string,
) {
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
				"If the installed release has no field for tolerations, upgrade it.",
			Commands: []string{shell.Command("kubectl get daemonset %s -n %s -o yaml", d.Name, d.Namespace)},
		},
	}
	if owner := metav1.GetControllerOf(d); owner != nil {
		describeOwner(f, d, owner, taint, &found)
	}
	r.Add(found.ForPods(pods...))
}

// describeOwner describes a DaemonSet that an operator creates from a custom resource. If Helm values contain the
// toleration, the API server has dropped it from the custom resource, because the CRD is too old.
func describeOwner(
	f *facts.Facts, d *appsv1.DaemonSet, owner *metav1.OwnerReference, taint corev1.Taint, found *finding.Finding,
) {
	kind := strings.ToLower(owner.Kind)
	found.Fix.Commands = []string{
		shell.Command("kubectl get %s %s -n %s -o yaml", kind, owner.Name, d.Namespace),
		shell.Command("kubectl explain %s.spec", kind),
	}
	for _, h := range f.HelmReleases {
		if h.Namespace != d.Namespace || strings.Contains(h.Chart, "operator") || !tolerates(h.Values, taint) {
			continue
		}
		found.Title += ", although the values of the Helm release " + h.Name + " contain the toleration"
		found.Cause = "An operator creates the DaemonSet from " + owner.Kind + " " + owner.Name + ". The API server " +
			"drops fields that a CRD does not define, and helm upgrade does not update CRDs: that of " + owner.Kind +
			" is most likely older than the chart, and has no field for tolerations."
		found.Evidence = append(found.Evidence, finding.Evidence{
			Source: "values of Helm release " + h.Namespace + "/" + h.Name + " (" + h.Chart + ") .tolerations",
			Text:   taint.ToString(),
		})
		found.Fix.Text = "Check whether the fields that the last command lists include tolerations. If not, apply the " +
			"CRDs of the operator's installed release (helm show crds CHART --version VERSION | kubectl apply " +
			"--server-side -f -), then uninstall and install the release " + h.Name + " again: an upgrade with the " +
			"same values changes nothing. Changes to the values or to the DaemonSet do not help."
		return
	}
	found.Fix.Text = "Add the toleration to " + owner.Kind + " " + owner.Name + ", from which an operator creates " +
		"the DaemonSet, or to the values of the chart that creates it. If the field is not there afterwards, the CRD is " +
		"older than the operator (helm upgrade does not update CRDs): apply the CRDs of the operator's release first."
}

// tolerates reports whether the value tolerations in the values of a Helm release tolerates the taint.
func tolerates(values map[string]any, taint corev1.Taint) bool {
	list, _, _ := unstructured.NestedSlice(values, "tolerations")
	return slices.ContainsFunc(list, func(item any) bool {
		fields, _ := item.(map[string]any)
		get := func(key string) string { text, _ := fields[key].(string); return text }
		if fields == nil || get("effect") != "" && get("effect") != string(taint.Effect) {
			return false
		}
		if get("operator") == string(corev1.TolerationOpExists) {
			return get("key") == "" || get("key") == taint.Key
		}
		return get("key") == taint.Key && get("value") == taint.Value
	})
}
