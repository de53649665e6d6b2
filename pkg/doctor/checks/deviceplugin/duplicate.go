package deviceplugin

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func duplicateCheck() engine.Check {
	return engine.Check{
		ID: "dp.duplicate", Symptom: engine.Precise, Layer: finding.LayerDevicePlugin,
		Title: "two device plugins advertise the same GPUs on one node",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "device plugin pods on each node and their owners; operating systems that have their own plugin",
		Why: "The kubelet uses one endpoint per resource: the plugin that registered last wins, and when it stops, " +
			"the capacity drops to 0 although the other is still running. Pods of the same DaemonSet during an " +
			"update, plugins for virtual machines, and the MPS daemon are not duplicates.",
		Explains: []string{"dp.capacity-zero", "dp.unhealthy", "share.timeslicing", "alloc.unexpected-admission"},
		ExplainsAs: map[string][]string{ofSystem: {
			"dp.capacity-zero", "dp.unhealthy", "share.timeslicing", "alloc.unexpected-admission", "wl.cuda-vs-driver",
			"wl.cpu-mode", "wl.cuda-error", "wl.probe-failing", "wl.pod-failing",
		}},
		Doc: "https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/",
		Sources: []string{"k8s-device-plugin#255", "k8s-device-plugin#455", "k8s-device-plugin#1435", "HAMi#2076",
			"bottlerocket#4309"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, n := range f.GPUNodes {
				checkDuplicate(r, n)
			}
		},
	}
}

// ofSystem is the kind (Finding.As) of findings about a device plugin that competes with the one built into the node's
// operating system.
const ofSystem = "system"

func checkDuplicate(r *engine.Result, n *facts.Node) {
	owners := map[string]*corev1.Pod{}
	for _, pod := range n.Pods {
		if !facts.Ended(pod) && pod.DeletionTimestamp == nil && podutils.IsPodReady(pod) && advertisesGPUs(pod) {
			owners[pod.Namespace+" "+facts.OwnerOf(pod)] = pod
		}
	}
	system := systemPlugin(n)
	if len(owners) == 0 || len(owners) < 2 && len(system) == 0 {
		r.Pass(n.Object())
		return
	}
	found := finding.Finding{
		Severity: finding.Warning, Object: n.Object(),
		Title: "two device plugins with different owners advertise GPUs on the node",
		Fix: finding.Fix{
			Text: "Keep one plugin, and remove the other the way it was installed: its chart, the operator " +
				"(devicePlugin.enabled=false) or the platform's add-on.",
		},
	}
	if found.Evidence = system; len(system) > 0 {
		found.As = ofSystem
	}
	for _, owner := range words.SortedKeys(owners) {
		pod := owners[owner]
		found.Evidence = append(found.Evidence,
			finding.FieldEvidence(
				facts.PodObject(pod), ".spec.containers[].image", "%s, owned by %s", images(pod), facts.OwnerOf(pod),
			))
		found.Fix.Commands = append(found.Fix.Commands,
			shell.Command("kubectl get %s -n %s -o yaml", facts.OwnerOf(pod), pod.Namespace))
	}
	r.Add(found)
}

// systemPlugin returns evidence that the node's operating system has a built-in device plugin.
func systemPlugin(n *facts.Node) []finding.Evidence {
	p, _ := platform.Of(string(n.Distribution))
	unit := ""
	if n.Host != nil {
		unit = n.Host.Journals["nvidia-k8s-device-plugin"] + n.Host.Journals["nvidia-k8s-device-plugin.service"]
	}
	if p.Plugin == "" || !strings.Contains(unit, "Registered device plugin") &&
		!strings.Contains(n.Status.NodeInfo.OSImage, "-nvidia") {
		return nil
	}
	return []finding.Evidence{finding.FieldEvidence(n.Object(), ".status.nodeInfo.osImage",
		"%s has a built-in device plugin: nvidia-k8s-device-plugin.service", n.Status.NodeInfo.OSImage)}
}

// advertisesGPUs reports whether a pod is a device plugin for nvidia.com/gpu from NVIDIA, a cloud provider, HAMi, or
// Volcano.
func advertisesGPUs(pod *corev1.Pod) bool {
	name := strings.ToLower(pod.Name)
	if strings.Contains(name, "sandbox") || strings.Contains(name, "kubevirt") {
		return false
	}
	if facts.ComponentOf(pod.Labels, &pod.Spec) == facts.DevicePlugin {
		return true
	}
	return strings.Contains(name, "hami-device-plugin")
}

func images(pod *corev1.Pod) string {
	var all []string
	for _, c := range pod.Spec.Containers {
		all = append(all, c.Image)
	}
	return words.Joined(all)
}
