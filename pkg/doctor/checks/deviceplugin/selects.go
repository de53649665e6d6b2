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
)

// ofDevices matches the names of DaemonSets that advertise or prepare devices.
var ofDevices = regexp.MustCompile(`plugin|driver|-dp\b|-ds\b`)

func selectsNoneCheck() engine.Check {
	return engine.Check{
		ID: "dp.selects-none", Layer: finding.LayerDevicePlugin,
		Title: "the DaemonSet of a device plugin runs on no node, because of a selector or a taint",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "DaemonSets of device plugins and drivers of all vendors that want no pod, their node selector and affinity, labels of nodes, " +
			"taints, tolerations, unscheduled pods that request the plugin's resource",
		Why: "Pods wait for a resource, and the plugin that advertises it runs on no node, because its DaemonSet selects labels that are " +
			"missing, or does not tolerate the nodes' taint. Without waiting pods, this is normal: the cluster may have no such device yet.",
		Explains: []string{
			"wl.other-accelerator", "sched.none-advertised", "sched.insufficient-other", "sched.all-in-use",
		},
		Sources: []string{"intel-device-plugins-for-kubernetes#1688", "k8s-device-plugin#1213"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/daemonsets") || r.Lacks(f, "api/nodes") {
				return
			}
			for i := range f.DaemonSets {
				d := &f.DaemonSets[i]
				resources := facts.Advertisers(d.Namespace + "/" + d.Name)
				if d.Status.DesiredNumberScheduled > 0 || !ofDevices.MatchString(d.Name) ||
					slices.Contains(resources, "nvidia.com/") { // dp.none and nfd.labels know more of these
					continue
				}
				if pods := f.WaitFor(resources); len(pods) > 0 && !autoscaled(f) {
					tellSelector(f, r, d, pods)
				}
			}
		},
	}
}

// autoscaled reports whether an autoscaler may add nodes that have the labels.
func autoscaled(f *facts.Facts) bool {
	for _, n := range f.Nodes {
		if n.Labels["karpenter.sh/nodepool"] != "" {
			return true
		}
	}
	return slices.ContainsFunc(f.Snapshot.Events, func(e corev1.Event) bool {
		return e.Reason == "TriggeredScaleUp" || e.Reason == "NotTriggerScaleUp" || e.Reason == "Nominated" ||
			strings.Contains(e.Source.Component+e.ReportingController, "karpenter")
	})
}

// tellSelector reports what the node that comes closest to the selector lacks.
func tellSelector(f *facts.Facts, r *engine.Result, d *appsv1.DaemonSet, pods []string) {
	var nearest, tainted *facts.Node
	var missing []string
	for _, n := range f.Nodes {
		if _, control := n.Labels["node-role.kubernetes.io/control-plane"]; control && len(f.Nodes) > 1 {
			continue
		}
		lacks := scheduler.WhyNot(d.Spec.Template.Spec, n)
		if nearest == nil || len(lacks) < len(missing) {
			nearest, missing = n, lacks
		}
		if _, kept := facts.KeptAway(n, d); kept && len(lacks) == 0 {
			tainted = n
		}
	}
	object := finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name}
	if tainted != nil {
		tellTaint(r, d, object, tainted, pods)
		return
	}
	if len(missing) == 0 {
		return // the DaemonSet does not run for another reason
	}
	found := finding.Finding{
		Object: object, Confidence: finding.Likely,
		Title: "the device plugin runs on no node, because no node has " + strings.Join(missing, " and "),
		Evidence: []finding.Evidence{
			finding.FieldEvidence(object, ".status.desiredNumberScheduled", "%d", d.Status.DesiredNumberScheduled),
			finding.FieldEvidence(
				object,
				".spec.template.spec.nodeSelector and .affinity",
				"%s",
				strings.Join(missing, " and "),
			),
		},
		Fix: finding.Fix{
			Text: "Let node feature discovery set the label (it must run, with the vendor's rules: releases before Intel's 0.30 do not " +
				"see a driver that is built into the kernel), or set it by hand on the nodes that have the device.",
		},
	}
	if key, value, ok := strings.Cut(missing[0], "="); ok && len(missing) == 1 {
		found.Fix.Commands = []string{shell.Command("kubectl label node %s %s", nearest.Name, key+"="+value)}
	}
	r.Add(found.ForPods(pods...))
}

// tellTaint reports a taint that the DaemonSet does not tolerate.
func tellTaint(r *engine.Result, d *appsv1.DaemonSet, object finding.Object, n *facts.Node, pods []string) {
	taint, _ := facts.KeptAway(n, d)
	r.Add(finding.Finding{
		Object: object, Confidence: finding.Likely,
		Title: "the device plugin runs on no node, because it does not tolerate the taint " + taint.ToString(),
		Evidence: []finding.Evidence{
			finding.FieldEvidence(object, ".status.desiredNumberScheduled", "%d", d.Status.DesiredNumberScheduled),
			finding.FieldEvidence(n.Object(), ".spec.taints", "%s", taint.ToString()),
		},
		Fix: finding.Fix{
			Text: "Let the plugin tolerate the taint: in the values of its chart, or in the custom resource of its operator (a release " +
				"that has no field for it must be upgraded).",
			Commands: []string{shell.Command("kubectl get daemonset %s -n %s -o yaml", d.Name, d.Namespace)},
		},
	}.ForPods(pods...))
}
