// Package facts is what is known of a cluster: a snapshot with its indexes, and all that more than one layer of checks
// asks of its nodes, GPUs, pods, workloads, charts and policies. It knows no check.
package facts

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// Facts is a snapshot with the indexes that checks ask for. Nothing in it is changed.
type Facts struct {
	*snapshot.Snapshot
	Nodes    []*Node
	GPUNodes []*Node // those that have GPUs of NVIDIA, or should have
	// GPUPods are the pods that ask for GPUs, by a resource or by a claim, and have not ended.
	GPUPods []*corev1.Pod
	// ClaimPods are the pods that have resource claims, for whatever devices, and have not ended.
	ClaimPods []*corev1.Pod
	Now       time.Time // when the snapshot was made

	nodes  map[string]*Node
	events map[objectKey][]*corev1.Event
	pods   map[string]*corev1.Pod // by namespace/name
	// parts are the pods that belong to a component, and have not ended.
	parts map[Component][]*corev1.Pod
	logs  map[string][]*snapshot.Log
	heads map[string][]*snapshot.Log // beginnings of logs

	// siblings are pods by their owner, found once.
	siblings func() map[string][]*corev1.Pod
	// gpuWorkloads are GPU pods that are no components, found once: see Facts.Workloads.
	gpuWorkloads func() []*corev1.Pod
	// UnreachedPods are pods that do not get on because somebody does not answer, found once.
	UnreachedPods func() []Unreached
	// claimants are pods with claims for NVIDIA's devices, found once.
	claimants func() map[*corev1.Pod]bool
	// xidRuns are this tool's runs that wrote to kernel logs, by node, found once.
	xidRuns func() map[string]xidRuns
	// once has what is worked out once for all checks: see Once.
	once sync.Map
}

// Node is a node, with all that belongs to it.
type Node struct {
	*corev1.Node
	Pods []*corev1.Pod
	// Host is what the helper read there; nil when it did not.
	Host         *api.Diagnosis
	Distribution Distribution
	// View is what the helper found of the container runtime, and what is wrong with it; nil where Host is.
	View *runtimeview.View

	parts map[Component][]*corev1.Pod
	// GPUs is what nvidia-smi and the kernel log say of its GPUs, worked out once: see GPUView.
	GPUs func() *GPUView
}

type objectKey struct{ kind, namespace, name string }

// New indexes a snapshot.
func New(s *snapshot.Snapshot) *Facts {
	f := &Facts{
		Snapshot: s, Now: s.Meta.Created,
		parts: map[Component][]*corev1.Pod{},
		nodes: map[string]*Node{}, events: map[objectKey][]*corev1.Event{}, pods: map[string]*corev1.Pod{},
		logs:  map[string][]*snapshot.Log{},
		heads: map[string][]*snapshot.Log{},
	}
	for i := range s.Nodes {
		n := &Node{Node: &s.Nodes[i], Host: s.Hosts[s.Nodes[i].Name], parts: map[Component][]*corev1.Pod{}}
		n.Distribution = distribution(n)
		n.GPUs = sync.OnceValue(func() *GPUView { return viewGPUs(n, f.xidRuns()[n.Name]) })
		f.Nodes = append(f.Nodes, n)
		f.nodes[n.Name] = n
	}
	f.viewRuntimes()
	f.claimants = sync.OnceValue(f.findClaimants)
	for i := range s.Pods {
		pod := &s.Pods[i]
		f.pods[pod.Namespace+"/"+pod.Name] = pod
		n := f.nodes[pod.Spec.NodeName]
		if n != nil {
			n.Pods = append(n.Pods, pod)
		}
		if is := ComponentOf(pod.Labels, pod.Spec); is != "" && !Ended(pod) {
			f.parts[is] = append(f.parts[is], pod)
			if n != nil {
				n.parts[is] = append(n.parts[is], pod)
			}
		}
		if !Ended(pod) && len(pod.Spec.ResourceClaims) > 0 {
			f.ClaimPods = append(f.ClaimPods, pod)
		}
		if !Ended(pod) && f.AsksForGPU(pod) {
			f.GPUPods = append(f.GPUPods, pod)
		}
	}
	for _, n := range f.Nodes {
		if hasGPUs(n) {
			f.GPUNodes = append(f.GPUNodes, n)
		}
	}
	for i := range s.Events {
		e := &s.Events[i]
		key := objectKey{e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name}
		f.events[key] = append(f.events[key], e)
	}
	for _, of := range f.events {
		slices.SortStableFunc(of, func(a, b *corev1.Event) int { return EventTime(b).Compare(EventTime(a)) })
	}
	f.xidRuns = sync.OnceValue(f.findXIDRuns)
	f.UnreachedPods = sync.OnceValue(f.findUnreached)
	f.siblings, f.gpuWorkloads = sync.OnceValue(f.findSiblings), sync.OnceValue(f.findWorkloads)
	for i := range s.Logs {
		l := &s.Logs[i]
		if snapshot.NoLog(l.Text) {
			continue
		}
		in := f.logs
		if l.Head {
			in = f.heads
		}
		in[l.Namespace+"/"+l.Pod] = append(in[l.Namespace+"/"+l.Pod], l)
	}
	return f
}

// Once returns what find makes of the facts. However many checks ask, it is worked out once: there is one answer for
// each type.
func Once[T any](f *Facts, find func(*Facts) T) T {
	answer, _ := f.once.LoadOrStore(reflect.TypeFor[T](), sync.OnceValue(func() any { return find(f) }))
	once, _ := answer.(func() any)
	found, _ := once().(T)
	return found
}

// Node returns the node of that name, or nil.
func (f *Facts) Node(name string) *Node { return f.nodes[name] }

// Pod returns the pod, or nil when it is not in the snapshot.
func (f *Facts) Pod(namespace, name string) *corev1.Pod { return f.pods[namespace+"/"+name] }

// Component returns the cluster's pods of a component that have not ended.
func (f *Facts) Component(c Component) []*corev1.Pod { return f.parts[c] }

// Component returns the node's pods of a component that have not ended.
func (n *Node) Component(c Component) []*corev1.Pod { return n.parts[c] }

// EventsOf returns the events about an object, the newest first.
func (f *Facts) EventsOf(kind, namespace, name string) []*corev1.Event {
	return f.events[objectKey{kind, namespace, name}]
}

// EventsOfPod returns the current events of a pod, the newest first. It omits events of an earlier pod with the same
// name, and events about a step that the pod has completed since.
func (f *Facts) EventsOfPod(pod *corev1.Pod) []*corev1.Event {
	// The kubelet's events have another UID than the API's pod
	_, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return slices.DeleteFunc(slices.Clone(f.EventsOf("Pod", pod.Namespace, pod.Name)), func(e *corev1.Event) bool {
		if uid := e.InvolvedObject.UID; uid != "" && pod.UID != "" && uid != pod.UID && !isMirror {
			return true
		}
		since := stepTaken(pod, e.Reason)
		return !since.IsZero() && !EventTime(e).After(since)
	})
}

// stepTaken returns when a pod completed the step that events with this reason are about. It returns the zero time if
// the pod has not completed it, or if the reason is not about a step.
func stepTaken(pod *corev1.Pod, reason string) time.Time {
	switch reason {
	case "FailedScheduling":
		return trueSince(pod, corev1.PodScheduled)
	case "FailedCreatePodSandBox", "FailedMount", "FailedAttachVolume", "FailedMapVolume",
		"FailedPrepareDynamicResources":
		return trueSince(pod, corev1.PodReadyToStartContainers)
	}
	return time.Time{}
}

// trueSince returns when a condition of a pod became true; zero if it is not.
func trueSince(pod *corev1.Pod, condition corev1.PodConditionType) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == condition && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// LogsOf returns the ends of the logs of a pod's containers.
func (f *Facts) LogsOf(pod *corev1.Pod) []*snapshot.Log { return f.logs[pod.Namespace+"/"+pod.Name] }

// HeadsOf returns the beginnings of the logs of a pod's containers.
func (f *Facts) HeadsOf(pod *corev1.Pod) []*snapshot.Log { return f.heads[pod.Namespace+"/"+pod.Name] }

// Missing returns why evidence with that prefix is not there; empty when nothing of it is missing.
func (f *Facts) Missing(prefix string) string {
	for _, m := range f.Snapshot.Missing {
		if m.What == prefix || strings.HasPrefix(m.What, strings.TrimSuffix(prefix, "/")+"/") {
			return m.Why
		}
	}
	return ""
}

// WhyNoHost returns why the helper did not read a node.
func (f *Facts) WhyNoHost(name string) string {
	why := "not read: no pod of ours ran there"
	if f.Meta.APIOnly {
		why = "not read: --api-only"
	}
	return cmp.Or(f.Missing("nodes/"+name), why)
}

// EventTime returns when an event happened last.
func EventTime(e *corev1.Event) time.Time {
	if e.Series != nil && !e.Series.LastObservedTime.IsZero() {
		return e.Series.LastObservedTime.Time
	}
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time, e.FirstTimestamp.Time} {
		if !t.IsZero() {
			return t
		}
	}
	return e.CreationTimestamp.Time
}

// Quote makes evidence of an event.
func Quote(e *corev1.Event) finding.Evidence {
	object := finding.Object{
		Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name,
	}
	return finding.Evidence{Source: "event " + e.Reason + " of " + object.String(), Time: EventTime(e), Text: e.Message}
}

// GrepLogs returns the first line of the pod's logs that contains one of the texts, as evidence; newest containers
// first, then those before.
func (f *Facts) GrepLogs(pod *corev1.Pod, texts ...string) (finding.Evidence, bool) {
	for _, l := range f.LogsOf(pod) {
		for line := range strings.Lines(l.Text) {
			for _, text := range texts {
				if strings.Contains(line, text) {
					return finding.Evidence{Source: LogSource(l), Text: strings.TrimRight(line, "\r\n")}, true
				}
			}
		}
	}
	return finding.Evidence{}, false
}

// Ended reports whether the pod has ended, so that it holds nothing.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// IsGPUResource reports whether it is a resource by which NVIDIA GPUs are asked for: nvidia.com/gpu,
// nvidia.com/gpu.shared, nvidia.com/mig-1g.5gb.
func IsGPUResource(name corev1.ResourceName) bool {
	rest, ours := strings.CutPrefix(string(name), "nvidia.com/")
	return ours && (rest == "gpu" || rest == "gpu.shared" || strings.HasPrefix(rest, "mig-"))
}

// GPURequests returns how many of each GPU resource a pod asks for, as the scheduler counts: containers together, or
// the most that an init container needs.
func GPURequests(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	return requests(pod, IsGPUResource)
}

func requests(pod *corev1.Pod, counts func(corev1.ResourceName) bool) map[corev1.ResourceName]int64 {
	sum := map[corev1.ResourceName]int64{}
	for _, c := range pod.Spec.Containers {
		for name, n := range asked(c.Resources) {
			if counts(name) {
				sum[name] += n
			}
		}
	}
	// Sidecars run beside the containers and beside the init containers after them, which run alone and before the
	// containers.
	sidecars, before := map[corev1.ResourceName]int64{}, map[corev1.ResourceName]int64{}
	for _, c := range pod.Spec.InitContainers {
		always := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		for name, n := range asked(c.Resources) {
			switch {
			case !counts(name):
			case always:
				sidecars[name] += n
				sum[name] += n
			default:
				before[name] = max(before[name], sidecars[name]+n)
			}
		}
	}
	for name, n := range before {
		sum[name] = max(sum[name], n)
	}
	for name, n := range sum {
		if n == 0 {
			delete(sum, name)
		}
	}
	return sum
}

// asked returns a container's requests, as amount counts; extended resources may stand in the limits only.
func asked(r corev1.ResourceRequirements) map[corev1.ResourceName]int64 {
	if len(r.Limits)+len(r.Requests) == 0 { // as most: no map is made for them
		return nil
	}
	all := map[corev1.ResourceName]int64{}
	for name, q := range r.Limits {
		all[name] = amount(name, q)
	}
	for name, q := range r.Requests {
		all[name] = amount(name, q)
	}
	return all
}

// amount returns a quantity as a whole number: thousandths of a CPU, bytes, pieces.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// WantsGPU reports whether the pod may ask for GPUs: by a resource, or by a resource claim, whatever that is for.
// Facts.AsksForGPU knows claims.
func WantsGPU(pod *corev1.Pod) bool {
	return len(GPURequests(pod)) > 0 || len(pod.Spec.ResourceClaims) > 0
}

// GPULabels are labels by which nodes with NVIDIA GPUs are known: feature discovery's, clouds'.
func GPULabels() []string {
	return []string{
		"nvidia.com/gpu.present", "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu",
		"feature.node.kubernetes.io/pci-10de.present", "feature.node.kubernetes.io/pci-0300_10de.present",
		"feature.node.kubernetes.io/pci-0302_10de.present",
		"cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator", "karpenter.k8s.aws/instance-gpu-name",
		"kubernetes.azure.com/accelerator",
		"accelerator",
	}
}

func hasGPUs(n *Node) bool {
	if n.Labels[corev1.LabelOSStable] == "windows" || n.Status.NodeInfo.OperatingSystem == "windows" {
		return false // nothing of NVIDIA's for Linux runs there, and DirectX devices are others' affair
	}
	for _, label := range GPULabels() {
		if value, ok := n.Labels[label]; ok && value != "false" && value != "0" && value != "none" && !OfOthers(value) {
			return true
		}
	}
	for name := range n.Status.Capacity { // also a capacity of 0: there was a device plugin
		if IsGPUResource(name) {
			return true
		}
	}
	return n.Host != nil && (len(n.Host.Info.GPUs) > 0 || slices.ContainsFunc(n.Host.Probe.PCI, IsGPUDevice))
}

// OfOthers reports whether a label's value names an accelerator that is not NVIDIA's.
func OfOthers(value string) bool {
	value = strings.ToLower(value)
	return slices.ContainsFunc([]string{
		"amd", "radeon", "instinct", "gaudi", "habana", "inferentia", "trainium", "neuron", "tpu", "intel",
	}, func(other string) bool {
		return strings.Contains(value, other)
	})
}

// IsGPUDevice reports whether a PCI device is a GPU: a display controller, and not an NVSwitch.
func IsGPUDevice(d api.PCIDevice) bool {
	return strings.HasPrefix(strings.TrimPrefix(d.Class, "0x"), "03")
}

// Ready returns the node's Ready condition; the zero value when it has none.
func (n *Node) Ready() corev1.NodeCondition { return n.Condition(corev1.NodeReady) }

// Condition returns the node's condition of a type; the zero value when it has none.
func (n *Node) Condition(kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// Object names the node in findings.
func (n *Node) Object() finding.Object { return finding.Object{Kind: "Node", Name: n.Name} }

// PodObject names a pod in findings.
func PodObject(pod *corev1.Pod) finding.Object {
	return finding.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
}

// Component is a part of the software that makes GPUs usable, which a pod may be.
type Component string

// The components.
const (
	Driver           Component = "driver"
	Toolkit          Component = "toolkit"
	DevicePlugin     Component = "device plugin"
	FeatureDiscovery Component = "GPU feature discovery"
	DCGMExporter     Component = "dcgm-exporter"
	DCGM             Component = "dcgm"
	MIGManager       Component = "MIG manager"
	MPS              Component = "MPS control daemon"
	Validator        Component = "operator validator"
	Operator         Component = "GPU operator"
	NFD              Component = "node feature discovery"
	DRADriver        Component = "DRA driver"
)

// componentNames are parts of the names of components, the more special ones first.
var componentNames = []struct {
	part string
	is   Component
}{
	{"device-plugin-validator", Validator}, {"cuda-validator", Validator}, {"mps-control-daemon", MPS},
	{"dra-driver", DRADriver}, {"gpu-feature-discovery", FeatureDiscovery},
	{"device-plugin", DevicePlugin}, {"container-toolkit", Toolkit}, {"dcgm-exporter", DCGMExporter},
	{"nvidia-dcgm", DCGM}, {"mig-manager", MIGManager},
	{"operator-validator", Validator}, {"nvidia-driver", Driver}, {"nvidia-vgpu-manager", Driver},
	{"node-feature-discovery", NFD}, {"gpu-operator", Operator},
}

// ComponentOf returns which component a pod or a DaemonSet is, by its labels and images; empty when it is none.
func ComponentOf(labels map[string]string, spec corev1.PodSpec) Component {
	names := []string{
		labels["app"], labels["app.kubernetes.io/component"], labels["app.kubernetes.io/name"], labels["k8s-app"],
		labels["name"],
	}
	for _, c := range spec.Containers {
		image, _, _ := strings.Cut(c.Image[strings.LastIndexByte(c.Image, '/')+1:], ":")
		names = append(names, image, c.Name) // GPU feature discovery and MPS are in the image of the device plugin
	}
	for _, known := range componentNames {
		for _, name := range names {
			if strings.Contains(name, known.part) &&
				(!slices.Contains([]Component{DevicePlugin, Operator, DRADriver}, known.is) || nvidias(names, spec)) {
				return known.is
			}
		}
	}
	for _, c := range spec.Containers {
		if strings.Contains(c.Image, "nvidia/driver:") || strings.Contains(c.Image, "nvidia/vgpu-manager:") {
			return Driver
		}
	}
	return ""
}

// nvidias reports whether software that others make by the same name is NVIDIA's: a device plugin, an operator, a DRA
// driver. Its own words count; where it has none (a mirror of the images), software for GPUs that no other maker names.
func nvidias(names []string, spec corev1.PodSpec) bool {
	all := slices.Clone(names)
	for _, c := range spec.Containers {
		image, _, _ := strings.Cut(c.Image, "@")
		all = append(all, image)
	}
	words := strings.FieldsFunc(strings.ToLower(strings.Join(all, " ")),
		func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	has := func(some ...string) bool {
		return slices.ContainsFunc(some, func(word string) bool { return slices.Contains(words, word) })
	}
	switch {
	case has("sriov", "rdma", "network"): // NVIDIA makes network cards, too
		return false
	case has("nvidia"):
		return true
	case has("amd", "rocm", "radeon", "intel", "habana", "habanalabs", "habanaai", "gaudi", "cpu", "tpu", "npu",
		"ascend", "neuron", "fpga", "xilinx", "furiosa", "metax", "cambricon"):
		return false
	}
	return has("gpu")
}
