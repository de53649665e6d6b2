package deviceplugin

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

func unhealthyCheck() engine.Check {
	return engine.Check{
		ID: "dp.unhealthy", Layer: finding.LayerDevicePlugin,
		Title: "a node offers fewer GPUs than it has",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "status.capacity and status.allocatable of GPU nodes",
		Why: "The kubelet removes a device that its plugin marks unhealthy from allocatable, and keeps it in capacity. While a plugin restarts, all its devices are missing from allocatable; this is ignored " +
			"while its pod is younger than 2 minutes.",
		Explains: facts.GPULost("op.operand-failing", "op.clusterpolicy"),
		Doc:      "https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#device-plugin-implementation",
		Sources:  []string{"k8s-device-plugin#189", "k8s-device-plugin#231", "k8s-device-plugin#2038"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/nodes") {
				return
			}
			for _, n := range f.GPUNodes {
				checkUnhealthy(f, r, n)
			}
		},
	}
}

func checkUnhealthy(f *facts.Facts, r *engine.Result, n *facts.Node) {
	lost := lostGPUs(n)
	plugins := n.Component(facts.DevicePlugin)
	switch {
	case !facts.Alive(n):
		r.Unknown(n.Object(), "the node is not Ready: its status is out of date")
		return
	case len(lost) == 0:
		r.Pass(n.Object())
		return
	case facts.GPUsOf(n.Status.Allocatable) == 0 && slices.ContainsFunc(plugins, func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || starting(f, []*corev1.Pod{pod})
	}):
		return // the plugin is restarting
	case f.Missing("api/pods") == "" && pluginGone(n):
		return // reported by dp.none
	}
	r.Add(finding.Finding{
		Object:   n.Object(),
		Title:    "the node has GPUs that are not allocatable: its device plugin has stopped, or marks them unhealthy",
		Evidence: lost,
		Fix: finding.Fix{
			Text: "If the device plugin runs on the node, find out what is wrong with the GPU (nvidia-smi, kernel " +
				"log), repair or reset it, and restart the plugin's pod: a device stays unhealthy until then.",
			Commands: restartPlugins(n),
		},
	})
}

// restartPlugins returns the commands that restart the node's device plugins.
func restartPlugins(n *facts.Node) []string {
	var all []string
	for _, pod := range facts.Current(n, facts.DevicePlugin) {
		all = append(all, facts.RestartPod(pod.Namespace, pod.Name))
	}
	return all
}

// lostGPUs quotes the resources with an allocatable quantity below the node's capacity.
func lostGPUs(n *facts.Node) []finding.Evidence {
	var all []finding.Evidence
	for _, name := range words.SortedKeys(resourceNames(n.Status.Capacity)) {
		has, offers := n.Status.Capacity[corev1.ResourceName(name)], n.Status.Allocatable[corev1.ResourceName(name)]
		if has.Cmp(offers) > 0 {
			all = append(all, finding.FieldEvidence(n.Object(), ".status", "capacity %s: %s, allocatable %s: %s", name,
				has.String(), name, offers.String()))
		}
	}
	return all
}

func resourceNames(resources corev1.ResourceList) map[string]bool {
	names := map[string]bool{}
	for name := range resources {
		if facts.IsGPUResource(name) {
			names[string(name)] = true
		}
	}
	return names
}

func unhealthyXIDCheck() engine.Check {
	return engine.Check{
		ID: "dp.unhealthy-xid", Layer: finding.LayerDevicePlugin,
		Title: "the device plugin marked a GPU unhealthy after an XID",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "logs of device plugin pods on nodes that offer fewer GPUs than they have",
		Why: "The plugin marks a GPU unhealthy after an XID, except for XIDs that applications cause (13, 31, 43, 45, 68, 109). The GPU stays unhealthy until the plugin's pod restarts. " +
			"Log lines on a node that offers all its GPUs are out of date and ignored.",
		Explains: facts.GPULost("dp.unhealthy", "op.operand-failing", "op.clusterpolicy"),
		Doc:      "https://docs.nvidia.com/deploy/xid-errors/index.html",
		Sources: []string{
			"k8s-device-plugin#189", "k8s-device-plugin#231", "k8s-device-plugin#234", "k8s-device-plugin#1974",
			"k8s-device-plugin#2038", "container-engine-accelerators#188",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/nodes") || r.Lacks(f, "api/pods") {
				return
			}
			for _, n := range f.GPUNodes {
				lost := lostGPUs(n)
				if len(lost) == 0 || !facts.Alive(n) {
					continue
				}
				for _, pod := range facts.Current(n, facts.DevicePlugin) {
					e,
						ok := facts.LogEvidence(f, pod, "XidCriticalError:", "XidCriticalError",
						"device marked unhealthy",
						"got unhealthy", "marking device as unhealthy")
					if !ok {
						if podutils.IsPodReady(pod) {
							engine.LacksLog(f, r, pod)
						}
						continue
					}
					r.Add(xidFinding(n, e, lost))
					break
				}
			}
		},
	}
}

func xidFinding(n *facts.Node, e finding.Evidence, lost []finding.Evidence) finding.Finding {
	found := finding.Finding{
		Object: n.Object(), Title: "the device plugin marked a GPU unhealthy",
		Evidence: append([]finding.Evidence{e}, lost...),
		Fix: finding.Fix{
			Text:     "Repair or reset the GPU, then restart the device plugin pod: the GPU stays unhealthy until then. If an application causes the XID, make the plugin ignore it (DP_DISABLE_HEALTHCHECKS=CODE).",
			Commands: restartPlugins(n),
		},
	}
	m := regexp.MustCompile(`Xid=(\d+)`).FindStringSubmatch(e.Text)
	if m == nil {
		found.Fix.Text = "Run nvidia-smi on the node, and look for XIDs in its kernel log. Repair or reset the GPU " +
			"only if they show an error. Then restart the device plugin pod: the GPU stays unhealthy until then."
		return found
	}
	code, err := strconv.Atoi(m[1])
	if err != nil {
		return found // the number is out of range
	}
	found.Title = fmt.Sprintf("the device plugin marked a GPU unhealthy after XID %d", code)
	if known, ok := xid.Lookup(code); ok {
		found.Title += " (" + known.Name + ")"
	}
	return found
}
