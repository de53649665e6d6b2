package facts

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// vendors maps substrings of plugin and driver names to substrings of the resource names that they advertise.
var vendors = []struct{ names, resources []string }{
	{[]string{"amdgpu", "amd-gpu", "kmm", "rocm"}, []string{"amd.com/"}},
	{[]string{"intel", "i915", "xe-"}, []string{"gpu.intel.com/"}},
	{[]string{"neuron"}, []string{"aws.amazon.com/neuron"}},
	{[]string{"efa-"}, []string{"vpc.amazonaws.com/efa"}},
	{[]string{"habana", "gaudi"}, []string{"habana.ai/"}},
	{[]string{"ascend"}, []string{"huawei.com/"}},
	{[]string{"cambricon", "mlu"}, []string{"cambricon.com/"}},
	{[]string{"metax"}, []string{"metax-tech.com/"}},
	{[]string{"tpu"}, []string{"google.com/tpu"}},
	{[]string{"rdma", "sriov", "mofed"}, []string{"rdma", "hca", "mlnx", "sriov", "roce", "hostdev"}},
	{[]string{"mig-manager", "nvidia"}, []string{"nvidia.com/"}},
}

// ResourcesOf returns substrings of the resource names that a plugin or driver with the given name advertises.
func ResourcesOf(name string) []string {
	var all []string
	for _, v := range vendors {
		if words.ContainsAny(name, v.names) {
			all = append(all, v.resources...)
		}
	}
	if len(all) == 0 && strings.Contains(name, "hami") { // its plugins for other vendors contain the vendor's name
		all = []string{"nvidia.com/"}
	}
	return all
}

// OfferedBy returns substrings of the resource names that a pod of a plugin or driver advertises, judging by the pod's
// name, or else by its images.
func OfferedBy(plugin *corev1.Pod) []string {
	all := ResourcesOf(plugin.Name)
	for c := range Containers(plugin) {
		if len(all) == 0 {
			all = ResourcesOf(c.Image)
		}
	}
	return all
}

// unadvertised returns a fact about an unscheduled pod that requests another vendor's resource, if no node advertises
// the resource and the cluster has no plugin or operator for it.
func (f *Facts) unadvertised(pod *corev1.Pod) []signatures.Line {
	if !Unscheduled(pod) || Autoscaled(f) {
		return nil
	}
	for name := range Demand(pod) {
		vendor, _, ok := strings.Cut(string(name), ".")
		if !ok || vendor == "nvidia" || slices.ContainsFunc(f.Nodes, func(n *Node) bool {
			_, has := n.Status.Capacity[name]
			return has
		}) || f.hasPluginFor(vendor, string(name)) {
			continue
		}
		return []signatures.Line{{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
			Source: "capacity of all nodes, and names of DaemonSets and pods",
			Text:   "advertised: no node has " + string(name) + ", and the cluster has no device plugin for it",
		}}}
	}
	return nil
}

// vgpuRegister is the annotation in which Volcano's device plugin lists the GPUs of a node, as
// UUID,SHARES,MEMORY,MODEL,HEALTHY for each GPU.
const vgpuRegister = "volcano.sh/node-vgpu-register"

// largeVGPUs compares the number and the memory of Volcano vGPUs that a container of an unscheduled pod requests with
// the GPUs of the node that has most of them. It returns nothing if the container requests more vGPUs than each node
// has GPUs.
func (f *Facts) largeVGPUs(pod *corev1.Pod) []signatures.Line {
	for c := range Containers(pod) {
		number, each := c.Resources.Limits["volcano.sh/vgpu-number"], c.Resources.Limits["volcano.sh/vgpu-memory"]
		want, memory := number.Value(), each.Value()
		if want == 0 {
			continue
		}
		var text, source string
		most := int64(-1)
		for _, n := range f.Nodes {
			var all, large, smallest int64
			for _, gpu := range strings.Split(n.Annotations[vgpuRegister], ":") {
				fields := strings.Split(gpu, ",")
				if len(fields) < 5 || fields[4] == "false" {
					continue
				}
				has, err := strconv.ParseInt(fields[2], 10, 64)
				if err != nil {
					continue
				}
				if all++; has >= memory {
					large++
				}
				if all == 1 || has < smallest {
					smallest = has
				}
			}
			if all < want || large <= most {
				continue
			}
			most, source = large, n.Object().String()+" .metadata.annotations["+vgpuRegister+"]"
			text = fmt.Sprintf("vgpu: %d of %s of %s have vgpu-memory %d (smallest: %d), container %s "+
				"requests %d", large, count.Of(all, "GPU"), n.Object(), memory, smallest, c.Name, want)
			if large >= want {
				text = "vgpu fits: " + strings.TrimPrefix(text, "vgpu: ")
			}
		}
		if text != "" {
			return []signatures.Line{{
				Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{Source: source, Text: text},
			}}
		}
	}
	return nil
}

// refusedWebhook returns a fact about a pod that is not scheduled because no node advertises one of NVIDIA's resources,
// if clients reject the TLS certificate of a pod that may have to set the pod's scheduler.
func (f *Facts) refusedWebhook(pod *corev1.Pod) []signatures.Line {
	if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return strings.Contains(c.Message, "Insufficient nvidia.com/")
	}) {
		return nil
	}
	for _, server := range Once(f, webhookServers) {
		if server.Namespace == pod.Namespace {
			continue
		}
		if e, found := f.GrepLogs(server, "remote error: tls: "); found {
			e.Text = "webhook certificate: clients of " + server.Namespace + "/" + server.Name + " reject it: " + e.Text
			return []signatures.Line{{Place: signatures.Spec, Compared: true, Evidence: e}}
		}
	}
	return nil
}

// servers are pods that serve a webhook.
type servers []*corev1.Pod

// webhookServers returns the pods that are named after a scheduler or webhook.
func webhookServers(f *Facts) (all servers) {
	for i := range f.Snapshot.Pods {
		if words.ContainsAny(f.Snapshot.Pods[i].Name, []string{"scheduler", "webhook"}) {
			all = append(all, &f.Snapshot.Pods[i])
		}
	}
	return all
}

// hasPluginFor reports whether a DaemonSet or a pod may advertise the resource: its name or image contains the vendor's
// name or part of the name of a plugin that advertises the resource, or it is a device plugin of an unknown vendor.
func (f *Facts) hasPluginFor(vendor, resource string) bool {
	parts := []string{vendor}
	for _, v := range vendors {
		if words.ContainsAny(resource, v.resources) {
			parts = append(parts, v.names...)
		}
	}
	may := func(name string) bool {
		return words.ContainsAny(name, parts) ||
			words.ContainsAny(name, []string{"device-plugin", "deviceplugin"}) && len(ResourcesOf(name)) == 0
	}
	return slices.ContainsFunc(f.DaemonSets, func(d appsv1.DaemonSet) bool {
		images := ""
		for _, c := range d.Spec.Template.Spec.Containers {
			images += " " + c.Image
		}
		return may(d.Name + images)
	}) || slices.ContainsFunc(f.Snapshot.Pods, func(pod corev1.Pod) bool {
		return pod.Spec.NodeName != "" && may(pod.Name)
	})
}

// Unscheduled reports whether the pod is waiting for a node.
func Unscheduled(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil
}

// unscheduled are the pods that are waiting for a node.
type unscheduled []*corev1.Pod

func findUnscheduled(f *Facts) (all unscheduled) {
	for i := range f.Snapshot.Pods {
		if pod := &f.Snapshot.Pods[i]; Unscheduled(pod) {
			all = append(all, pod)
		}
	}
	return all
}

// PodsWaitingFor returns the unscheduled pods ("namespace/name") that request a resource whose name contains one of the
// strings.
func (f *Facts) PodsWaitingFor(resources []string) []string {
	if len(resources) == 0 {
		return nil
	}
	var all []string
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if !Unscheduled(pod) {
			continue
		}
		names := slices.Collect(maps.Keys(Demand(pod)))
		for _, class := range f.classesOf(pod) {
			names = append(names, corev1.ResourceName(class+"/"))
		}
		if slices.ContainsFunc(names, func(name corev1.ResourceName) bool {
			return words.ContainsAny(string(name), resources)
		}) {
			all = append(all, pod.Namespace+"/"+pod.Name)
		}
	}
	return all
}

// Schedules reports whether a pod with this name schedules pods or adds nodes.
func Schedules(name string) bool {
	return words.ContainsAny(name, []string{"scheduler", "autoscaler", "karpenter", "kueue-controller", "binder"})
}

// Serves reports whether the pod advertises devices, prepares them, or schedules pods, judging by its name. Any user
// can choose a name, so the log of such a pod must not hide the state of a node.
func Serves(pod *corev1.Pod) bool {
	return Schedules(pod.Name) || pod.Labels[kmmModule] != "" || words.ContainsAny(pod.Name, []string{
		"device-plugin", "deviceplugin", "gpu-plugin", "-dp-", "rdma", "kmm", "amdgpu", "i915", "mig-manager",
		"resource-driver", "dra-driver", "dra-kubelet-plugin",
	})
}

// Autoscaled reports whether an event, a node or a pod shows that an autoscaler may add nodes.
func Autoscaled(f *Facts) bool {
	return Once(f, func(f *Facts) bool {
		return slices.ContainsFunc(f.Events, func(e *corev1.Event) bool {
			return e.Reason == "TriggeredScaleUp" || e.Reason == "NotTriggerScaleUp" || e.Reason == "Nominated" ||
				strings.Contains(e.Source.Component+e.ReportingController, "karpenter")
		}) || slices.ContainsFunc(f.Nodes, func(n *Node) bool {
			return n.Labels["karpenter.sh/nodepool"] != "" || n.Labels["eks.amazonaws.com/compute-type"] == "auto"
		}) || slices.ContainsFunc(f.Snapshot.Pods, func(pod corev1.Pod) bool {
			return words.ContainsAny(pod.Name, []string{"autoscaler", "karpenter"})
		})
	})
}

// LooksForGPU reports whether a pod is related to GPUs, even if it requests none, judging by its RuntimeClass, image,
// annotations, variables or limits.
func LooksForGPU(pod *corev1.Pod) bool {
	if pod.Spec.RuntimeClassName != nil && strings.Contains(*pod.Spec.RuntimeClassName, "nvidia") {
		return true
	}
	for key := range pod.Annotations {
		if strings.Contains(key, "gpu") {
			return true
		}
	}
	for c := range Containers(pod) {
		if words.ContainsAny(c.Image, []string{"gpu", "nvidia", "cuda"}) ||
			slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return strings.HasPrefix(e.Name, "NVIDIA_") }) {
			return true
		}
		for name := range c.Resources.Limits {
			if strings.Contains(string(name), "gpu") || strings.HasPrefix(string(name), "nvidia.com/") {
				return true
			}
		}
	}
	return false
}

// Others returns the unfinished pods that request other vendors' accelerators and are not GPU pods (see UsesGPU).
func (f *Facts) Others() (all []*corev1.Pod) {
	for i := range f.Snapshot.Pods {
		pod := &f.Snapshot.Pods[i]
		if (OtherAccelerator(pod) != "" || f.OtherClass(pod) != "") && !Ended(pod) &&
			pod.DeletionTimestamp == nil && !f.UsesGPU(pod) {
			all = append(all, pod)
		}
	}
	return all
}

// OtherAccelerator returns the resource name of another vendor's accelerator that a pod requests, or "" if it requests
// none.
func OtherAccelerator(pod *corev1.Pod) corev1.ResourceName {
	for c := range Containers(pod) {
		for name := range c.Resources.Limits {
			vendor, _, _ := strings.Cut(string(name), "/")
			if slices.Contains([]string{
				"amd.com", "gpu.intel.com", "habana.ai", "aws.amazon.com", "google.com", "huawei.com", "cambricon.com",
				"tenstorrent.com", "furiosa.ai", "metax-tech.com",
			}, vendor) && !strings.HasSuffix(string(name), "/pod-eni") {
				return name
			}
		}
	}
	return ""
}
