package facts

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
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

// ofKernel reports that the node loaded the amdgpu module that is part of its kernel, and not the ROCm driver's module,
// which would also log its own version.
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

// offersNone reports a running plugin or DRA driver that offers nothing on its node although a pod is waiting for it:
// the kubelet does not have the plugin's resource, or the node has no ResourceSlice for the claimed class. A resource
// with a capacity of 0 does not count as missing, because the plugin has registered it.
func (f *Facts) offersNone(plugin *corev1.Pod, n *Node) (source, text string) {
	if !Serves(plugin) || Schedules(plugin.Name) || plugin.Status.Phase != corev1.PodRunning ||
		f.Age(plugin) < OperandGrace {
		return "", ""
	}
	resources := OfferedBy(plugin)
	for _, pod := range Once(f, findUnscheduled) {
		for name := range Demand(pod) {
			if _, has := n.Status.Capacity[name]; !has && words.ContainsAny(string(name), resources) {
				return n.Object().String() + " .status.capacity", "offers none: no " + string(name) + " on the node, " +
					"which " + pod.Namespace + "/" + pod.Name + " requests"
			}
		}
		for _, class := range f.classesOf(pod) {
			if words.ContainsAny(class+"/", resources) && !f.hasSlice(n, class) {
				return "ResourceSlices of " + n.Object().String(), "offers none: no ResourceSlice of the node for " +
					class + ", which " + pod.Namespace + "/" + pod.Name + " claims"
			}
		}
	}
	return "", ""
}

// hasSlice reports whether the node has a ResourceSlice of a driver that the DeviceClass selects.
func (f *Facts) hasSlice(n *Node, class string) bool {
	selects := class
	for i := range f.DeviceClasses {
		if f.DeviceClasses[i].Name == class {
			for _, s := range f.DeviceClasses[i].Spec.Selectors {
				if s.CEL != nil {
					selects += " " + s.CEL.Expression
				}
			}
		}
	}
	return slices.ContainsFunc(f.ResourceSlices, func(s resourcev1.ResourceSlice) bool {
		return s.Spec.NodeName != nil && *s.Spec.NodeName == n.Name && strings.Contains(selects, s.Spec.Driver)
	})
}

// foreignDevice reports a claim with devices of several drivers, if the claim cannot be prepared and the error message
// names one of its devices, although that device's driver offers the device.
func (f *Facts) foreignDevice(pod *corev1.Pod, _ *Node) (source, text string) {
	for _, e := range f.EventsOfPod(pod) {
		if e.Reason != "FailedPrepareDynamicResources" {
			continue
		}
		for _, wanted := range pod.Spec.ResourceClaims {
			claim := ClaimOf(f, pod, wanted)
			if claim == nil || claim.Status.Allocation == nil {
				continue
			}
			results := claim.Status.Allocation.Devices.Results
			for _, own := range results {
				other := slices.IndexFunc(results, func(d resourcev1.DeviceRequestAllocationResult) bool {
					return d.Driver != own.Driver
				})
				if other >= 0 && slices.Contains(strings.Fields(e.Message), own.Device) && f.offers(own) {
					return "ResourceClaim " + claim.Namespace + "/" + claim.Name + " .status.allocation",
						"foreign device: " + own.Device + " of " + own.Driver + " in claim " + claim.Name +
							", which has devices of " + results[other].Driver
				}
			}
		}
	}
	return "", ""
}

// offers reports whether a slice contains the allocated device.
func (f *Facts) offers(d resourcev1.DeviceRequestAllocationResult) bool {
	return slices.ContainsFunc(f.ResourceSlices, func(s resourcev1.ResourceSlice) bool {
		return s.Spec.Driver == d.Driver && s.Spec.Pool.Name == d.Pool &&
			slices.ContainsFunc(s.Spec.Devices, func(one resourcev1.Device) bool { return one.Name == d.Device })
	})
}

// kmmModule is the label of pods in which KMM (Kernel Module Management) builds a module.
const kmmModule = "kmm.node.kubernetes.io/module.name"

// gpuLabels are labels by which pods are commonly kept on nodes with GPUs.
var gpuLabels = []string{
	"nvidia.com/gpu.present", "nvidia.com/gpu", "gpu", "accelerator", "k8s.amazonaws.com/accelerator",
	"cloud.google.com/gke-accelerator", "kubernetes.azure.com/accelerator", "nvidia.com/gpu.product",
	corev1.LabelInstanceTypeStable,
}

// withoutGPU reports that nothing shows a GPU on the node of a pod that requests none, while other nodes have GPUs. It
// adds the first usual label that all of these have and the node does not.
func (f *Facts) withoutGPU(pod *corev1.Pod, n *Node) (source, text string) {
	if n.IsGPUNode || len(f.GPUNodes) == 0 || len(GPUDemand(pod)) > 0 {
		return "", ""
	}
	text = "no GPU known: node " + n.Name
	for _, key := range gpuLabels {
		value, has := f.GPUNodes[0].Labels[key]
		if has && n.Labels[key] != value &&
			!slices.ContainsFunc(f.GPUNodes, func(other *Node) bool { return other.Labels[key] != value }) {
			return n.Object().String(), text + "; nodes with GPUs have " + key + "=" + value
		}
	}
	return n.Object().String(), text
}

// pciVendors maps resource names to the PCI vendor IDs in labels of Node Feature Discovery.
var pciVendors = map[string]string{
	"amd.com/": "1002", "nvidia.com/": "10de", "gpu.intel.com/": "8086", "habana.ai/": "1da3",
}

// misplaced reports a failed pod of a DaemonSet for GPUs that selects nodes regardless of their GPUs, if its pods are
// ready on all nodes that offer GPUs of this vendor, and not ready on the others.
func (f *Facts) misplaced(pod *corev1.Pod, n *Node) (source, text string) {
	owner, resources := metav1.GetControllerOf(pod), OfferedBy(pod)
	if owner == nil || owner.Kind != "DaemonSet" || len(resources) != 1 || RunsReady(pod) || selectsNodes(pod) {
		return "", ""
	}
	id := pciVendors[resources[0]]
	shows := func(n *Node) bool {
		for key := range n.Labels {
			if strings.Contains(key, resources[0]) || strings.Contains(key, "/pci-") && strings.Contains(key, id) {
				return true
			}
		}
		return words.ContainsAny(fmt.Sprint(n.Status.Capacity), resources) || id == "10de" && n.IsGPUNode
	}
	if _, known := f.withoutGPU(pod, n); id == "" || shows(n) || id == "10de" && strings.Contains(known, ";") {
		return "", "" // in the last case, a signature names the label of the nodes with GPUs
	}
	for _, other := range f.Nodes {
		for _, p := range other.Pods {
			if by := metav1.GetControllerOf(p); by == nil || by.UID != owner.UID || by.Name != owner.Name {
				continue
			}
			if RunsReady(p) != shows(other) {
				return "", ""
			}
			if RunsReady(p) {
				text = "misplaced: no sign of " + resources[0] + " on " + n.Name + "; Pod " + p.Name +
					" of DaemonSet " + owner.Name + " is ready on " + other.Name
			}
		}
	}
	return "labels and capacity of the nodes, and nodeSelector and affinity of DaemonSet " + owner.Name, text
}

// selectsNodes reports whether a DaemonSet's pod selects nodes by labels other than their operating system and
// architecture.
func selectsNodes(pod *corev1.Pod) bool {
	for key := range pod.Spec.NodeSelector {
		if key = strings.TrimPrefix(key, "beta."); key != corev1.LabelOSStable && key != corev1.LabelArchStable {
			return true
		}
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	// A DaemonSet's controller adds a term without expressions.
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return len(terms) > 0 && len(terms[0].MatchExpressions) > 0
}

// stalePlugin reports, for an unscheduled pod that requests a partition of GPUs, a node whose labels show this
// partition, but whose device plugin still offers other resources.
func (f *Facts) stalePlugin(pod *corev1.Pod) []signatures.Line {
	if !Unscheduled(pod) {
		return nil
	}
	for wanted := range Demand(pod) {
		vendor, partition, _ := strings.Cut(string(wanted), "/")
		partition = strings.TrimPrefix(partition, "mig-")
		if vendor != "amd.com" && vendor != "nvidia.com" || partition == "gpu" {
			continue
		}
		for _, n := range f.Nodes {
			label := partitionLabel(n, vendor, partition)
			if label == "" || n.Allocatable(wanted) > 0 {
				continue
			}
			for _, plugin := range n.Pods {
				if !strings.Contains(plugin.Name, "device-plugin") || UpFor(f, plugin) < OperandGrace ||
					!slices.Contains(OfferedBy(plugin), vendor+"/") || vendor == "nvidia.com" && !mixes(plugin) {
					continue
				}
				if other := otherPartition(n, vendor); other != "" {
					text := "partitioned: " + n.Name + " has " + label + ", but Pod " + plugin.Namespace + "/" +
						plugin.Name + ", up for " + words.AgeText(UpFor(f, plugin)) + ", offers " + other
					for i := range plugin.Spec.Tolerations {
						if plugin.Spec.Tolerations[i].Key == "amd-dcm" {
							text += ", and tolerates amd-dcm"
							break
						}
					}
					return []signatures.Line{{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
						Source: n.Object().String() + " .metadata.labels and .status.allocatable, and " +
							PodObject(plugin).String(),
						Text: text,
					}}}
				}
			}
		}
	}
	return nil
}

// partitionLabel returns the node's label that names a partition of its GPUs, or "" if none does.
func partitionLabel(n *Node, vendor, partition string) string {
	for _, key := range words.SortedKeys(n.Labels) {
		if state, has := n.Labels[key+"-state"]; has && state != "success" {
			continue
		}
		value := strings.ToLower(n.Labels[key])
		if vendor == "amd.com" && strings.Contains(key, vendor+"/") &&
			strings.ReplaceAll(value, "-", "_") == partition ||
			key == "nvidia.com/mig.config" && value == "all-"+partition && n.Labels[key+".state"] == "success" &&
				n.Labels["nvidia.com/mig.strategy"] == "mixed" {
			return key + "=" + n.Labels[key]
		}
	}
	return ""
}

// otherPartition returns a resource that the node offers. For AMD, the resource is the name of a partition.
func otherPartition(n *Node, vendor string) string {
	for _, name := range slices.Sorted(maps.Keys(n.Status.Allocatable)) {
		if n.Allocatable(name) > 0 && strings.HasPrefix(string(name), vendor+"/") &&
			(vendor != "amd.com" || strings.Contains(string(name), "_nps")) {
			return string(name)
		}
	}
	return ""
}

// mixes reports whether NVIDIA's device plugin offers MIG instances as resources of their own.
func mixes(plugin *corev1.Pod) bool {
	for c := range Containers(plugin) {
		if slices.Contains(EnvOf(c.Env, "MIG_STRATEGY"), "mixed") || slices.Contains(c.Args, "--mig-strategy=mixed") {
			return true
		}
	}
	return false
}

// gfxNamed matches the real target of an AMD GPU, or the GPU's name, in logs and labels of nodes.
var gfxNamed = regexp.MustCompile(
	`(?:compute|gpu_type)=gfx(\d{1,2})[0-9a-f]{2}\b|Radeon[ _-](?:RX|PRO W)[ _-]?([5679])\d{3}\b`,
)

// overridden reports a pod that makes ROCm treat its GPU as a GPU of another generation.
func (f *Facts) overridden(pod *corev1.Pod, n *Node) (source, text string) {
	value, said := "", n.Labels["amd.com/gpu.product-name"]
	for i := range pod.Spec.Containers {
		for _, v := range EnvOf(pod.Spec.Containers[i].Env, "HSA_OVERRIDE_GFX_VERSION") {
			value = v
		}
	}
	if value == "" {
		return "", ""
	}
	for _, l := range f.LogsOf(pod) {
		said += "\n" + l.Text
	}
	major, _, _ := strings.Cut(value, ".")
	for _, m := range gfxNamed.FindAllStringSubmatch(said, -1) {
		is := m[1]
		switch m[2] { // the series of Radeon cards
		case "5", "6":
			is = "10"
		case "7":
			is = "11"
		case "9":
			is = "12"
		}
		if is == major {
			return "", "" // for example the second GPU
		}
		source = PodObject(pod).String() + " .env, its log and labels of its node"
		text = "conflict: HSA_OVERRIDE_GFX_VERSION=" + value + ", the GPU is gfx" + is + " (" + m[0] + ")"
	}
	return source, text
}
