package facts

import (
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// This file compares a pod with the GPU drivers on its node.

// smiWorks reports that nvidia-smi works on the pod's node and that another pod of the GPU software there is ready. The
// node's libraries and kernel module then have the same version.
func (f *Facts) smiWorks(pod *corev1.Pod, n *Node) (source, text string) {
	smi := n.GPUs().SMI
	if smi == nil || smi.Driver == "" || len(smi.GPUs) == 0 {
		return "", ""
	}
	for _, c := range []Component{DevicePlugin, FeatureDiscovery, DCGMExporter, MIGManager} {
		for _, other := range Current(n, c) {
			if other != pod && RunsReady(other) {
				return "nvidia-smi -q -x on node " + n.Name + ", and " + PodObject(other).String() + " .status",
					"nvidia-smi works on the node with driver " + smi.Driver + ", Pod " + other.Name + " is ready"
			}
		}
	}
	return "", ""
}

// amdLabel matches the labels with which feature discovery marks a node that has an AMD GPU.
var amdLabel = regexp.MustCompile(`^feature\.node\.kubernetes\.io/(?:amd-gpu|pci-(?:03\d\d_|12\d\d_)?1002\.present)$`)

// lostAMD reports a node that has an AMD GPU but offers none, while pods are waiting for one. If KMM replaced the
// driver on the node without a reboot, lostAMD reports this instead.
func (f *Facts) lostAMD(_ *corev1.Pod, n *Node) (source, text string) {
	if n.Allocatable("amd.com/gpu") > 0 || len(f.PodsWaitingFor([]string{"amd.com/"})) == 0 {
		return "", ""
	}
	newest := map[string]time.Time{}
	for _, e := range f.EventsOf("Node", "", n.Name) {
		if EventTime(e).After(newest[e.Reason]) {
			newest[e.Reason] = EventTime(e)
		}
	}
	unloaded := newest["ModuleUnloaded"]
	for key := range n.Labels {
		if amdLabel.MatchString(key) {
			source, text = n.Object().String()+" .metadata.labels", "AMD GPU on the node, none offered"
		}
	}
	if text != "" && newest["ModuleLoaded"].After(unloaded) && unloaded.After(newest["Rebooted"]) {
		return "events ModuleUnloaded and ModuleLoaded of " + n.Object().String() + ", no newer event Rebooted",
			"KMM replaced the AMD driver on the node without a reboot"
	}
	return source, text
}

// ofKernel reports that the node loaded the amdgpu module that belongs to its kernel. It is not the module of the ROCm
// driver, which would also log its own version.
func (f *Facts) ofKernel(_ *corev1.Pod, n *Node) (source, text string) {
	if n.Host == nil {
		return "", ""
	}
	for i := range n.Host.KernelLog {
		switch line := &n.Host.KernelLog[i]; {
		case line.Priority >= 8: // written by a program
		case strings.Contains(line.Text, "amdgpu version: "):
			return "", ""
		case strings.Contains(line.Text, "amdgpu kernel modesetting enabled"):
			source, text = "nodes/"+n.Name+"/kernel.log", "amdgpu of kernel "+n.Status.NodeInfo.KernelVersion
		}
	}
	return source, text
}

// kmmModule is the label of pods in which KMM (Kernel Module Management) builds a module.
const kmmModule = "kmm.node.kubernetes.io/module.name"
