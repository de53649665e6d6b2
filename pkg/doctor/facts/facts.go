// Package facts contains facts about a cluster: an indexed snapshot, and everything that more than one layer of checks
// needs to know about its nodes, GPUs, pods, workloads, charts and policies. It does not depend on any check.
package facts

import (
	"cmp"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
)

// Facts is a snapshot with the indexes that checks need. It is read-only.
type Facts struct {
	*snapshot.Snapshot
	Nodes []*Node
	// Signatures are the signatures of known error messages.
	Signatures *signatures.Set
	lines      map[any][]signatures.Line // lines about pods and nodes
	GPUNodes   []*Node                   // nodes that have, or should have, NVIDIA GPUs
	// GPUPods are the unfinished pods that request GPUs, as a resource or with a claim.
	GPUPods []*corev1.Pod
	// ClaimPods are the unfinished pods that have resource claims for any device.
	ClaimPods []*corev1.Pod
	// Events are the snapshot's events, except the events that announce this tool's own faults. Those events quote
	// errors that did not really occur, and they remain after a fault has been reverted.
	Events []*corev1.Event
	Now    time.Time // when the snapshot was taken

	nodes  map[string]*Node
	events map[objectKey][]*corev1.Event
	pods   map[string]*corev1.Pod // by namespace/name
	// parts contains the unfinished pods of each component.
	parts map[Component][]*corev1.Pod
	logs  map[string][]*snapshot.Log
	heads map[string][]*snapshot.Log // beginnings of logs

	// siblings returns the pods by owner, computed once.
	siblings func() map[string][]*corev1.Pod
	// gpuWorkloads returns the GPU pods that are not components, computed once. See Facts.Workloads.
	gpuWorkloads func() []*corev1.Pod
	// UnreachedPods returns the pods that are stuck because a server does not respond, computed once.
	UnreachedPods func() []Unreached
	// claimants returns the pods with claims for NVIDIA devices, computed once.
	claimants func() map[*corev1.Pod]bool
	// xidRuns returns this tool's runs that wrote to kernel logs, by node, computed once.
	xidRuns func() map[string]xidRuns
	// once caches the results of Once.
	once sync.Map
}

// Node is a node with all its data in the snapshot.
type Node struct {
	*corev1.Node
	Pods []*corev1.Pod
	// IsGPUNode reports whether the node is in Facts.GPUNodes.
	IsGPUNode bool
	// Host is the data that the helper pod collected on the node, or nil if it did not run.
	Host         *api.Diagnosis
	Distribution Distribution
	// View is the container runtime's configuration and its problems, or nil if Host is nil.
	View *runtimeview.View

	parts map[Component][]*corev1.Pod
	// GPUs returns the state of the node's GPUs from nvidia-smi and the kernel log, computed once. See GPUView.
	GPUs func() *GPUView
}

// announcer is the source component in this tool's own events. Package pkg/fault writes these events, but this package
// must not import pkg/fault, which requires a client.
const announcer = "kubectl-gpu-fault"

type objectKey struct{ kind, namespace, name string }

// builtin returns the signatures built into this program, indexed once.
var builtin = sync.OnceValue(func() *signatures.Set { return signatures.NewSet(signatures.Builtin()) })

// New returns the facts derived from a snapshot.
func New(s *snapshot.Snapshot) *Facts {
	f := &Facts{
		Snapshot: s, Now: s.Meta.Created, Signatures: builtin(), lines: map[any][]signatures.Line{},
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
		if is := ComponentOf(pod.Labels, &pod.Spec); is != "" && !Ended(pod) {
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
			n.IsGPUNode = true
			f.GPUNodes = append(f.GPUNodes, n)
		}
	}
	for i := range s.Events {
		e := &s.Events[i]
		if e.Source.Component == announcer {
			continue
		}
		f.Events = append(f.Events, e)
		key := objectKey{e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name}
		f.events[key] = append(f.events[key], e)
	}
	for _, of := range f.events {
		sorting.StableFunc(of, func(a, b *corev1.Event) int { return EventTime(b).Compare(EventTime(a)) })
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

// Once returns the result of find. It calls find only once per result type.
func Once[T any](f *Facts, find func(*Facts) T) T {
	answer, _ := f.once.LoadOrStore(reflect.TypeFor[T](), sync.OnceValue(func() any { return find(f) }))
	once, _ := answer.(func() any)
	found, _ := once().(T)
	return found
}

// Node returns the node with the given name, or nil if it does not exist.
func (f *Facts) Node(name string) *Node { return f.nodes[name] }

// Pod returns the pod, or nil if it is not in the snapshot.
func (f *Facts) Pod(namespace, name string) *corev1.Pod { return f.pods[namespace+"/"+name] }

// Component returns all unfinished pods of a component in the cluster.
func (f *Facts) Component(c Component) []*corev1.Pod { return f.parts[c] }

// Component returns the unfinished pods of a component on the node.
func (n *Node) Component(c Component) []*corev1.Pod { return n.parts[c] }

// EventsOf returns the events about an object, newest first.
func (f *Facts) EventsOf(kind, namespace, name string) []*corev1.Event {
	return f.events[objectKey{kind, namespace, name}]
}

// EventsOfPod returns the current events about a pod, newest first. It omits events about an earlier pod with the same
// name, and events about a step that the pod has since completed.
func (f *Facts) EventsOfPod(pod *corev1.Pod) []*corev1.Event {
	// For static pods, the UID in the kubelet's events differs from that of the pod in the API.
	_, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return slices.DeleteFunc(slices.Clone(f.EventsOf("Pod", pod.Namespace, pod.Name)), func(e *corev1.Event) bool {
		if uid := e.InvolvedObject.UID; uid != "" && pod.UID != "" && uid != pod.UID && !isMirror {
			return true
		}
		since := stepTaken(pod, e.Reason)
		return !since.IsZero() && !EventTime(e).After(since)
	})
}

// stepTaken returns when a pod completed the step to which events with this reason relate. It returns the zero time if
// the pod has not completed it, or if the reason does not relate to a step.
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

// trueSince returns when a pod condition became true, or the zero time if it is not true.
func trueSince(pod *corev1.Pod, condition corev1.PodConditionType) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == condition && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// LogsOf returns the last part of the log of each container in a pod.
func (f *Facts) LogsOf(pod *corev1.Pod) []*snapshot.Log { return f.logs[pod.Namespace+"/"+pod.Name] }

// HeadsOf returns the first part of the log of each container in a pod.
func (f *Facts) HeadsOf(pod *corev1.Pod) []*snapshot.Log { return f.heads[pod.Namespace+"/"+pod.Name] }

// Missing returns the reason why evidence with the given prefix is missing, or "" if none is missing.
func (f *Facts) Missing(prefix string) string {
	for _, m := range f.Snapshot.Missing {
		if m.What == prefix || strings.HasPrefix(m.What, strings.TrimSuffix(prefix, "/")+"/") {
			return m.Why
		}
	}
	return ""
}

// WhyNoHost returns the reason why the helper pod did not read a node.
func (f *Facts) WhyNoHost(name string) string {
	why := "not read: no doctor pod ran on the node"
	if f.Meta.APIOnly {
		why = "not read: --api-only"
	}
	return cmp.Or(f.Missing("nodes/"+name), why)
}

// EventTime returns when an event last occurred.
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

// Quote returns an event as evidence.
func Quote(e *corev1.Event) finding.Evidence {
	object := finding.Object{
		Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name,
	}
	return finding.Evidence{Source: "event " + e.Reason + " of " + object.String(), Time: EventTime(e), Text: e.Message}
}

// GrepLogs returns the first line in the pod's logs that contains one of the texts, as evidence. It searches the logs
// of current containers before those of previous ones.
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

// Ended reports whether the pod has finished and therefore no longer holds resources.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// GPULabels returns the labels that feature discovery and cloud providers set on nodes with NVIDIA GPUs.
func GPULabels() []string {
	return []string{
		"nvidia.com/gpu.present", "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu",
		"feature.node.kubernetes.io/pci-10de.present", "feature.node.kubernetes.io/pci-0300_10de.present",
		"feature.node.kubernetes.io/pci-0302_10de.present",
		"cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator", "karpenter.k8s.aws/instance-gpu-name",
		"kubernetes.azure.com/accelerator",
		"accelerator", "karpenter.k8s.aws/instance-gpu-manufacturer", "eks.amazonaws.com/instance-gpu-manufacturer",
		"karpenter.azure.com/sku-gpu-manufacturer",
	}
}

// ofGPU matches lines that the NVIDIA driver writes to the kernel log about a GPU.
var ofGPU = regexp.MustCompile(`\bNVRM: (?:The NVIDIA \w+ \S+ \(PCI ID: 10de:|GPU \S+ (?i:rm_?init_?adapter) failed)`)

func hasGPUs(n *Node) bool {
	if n.Labels[corev1.LabelOSStable] == "windows" || n.Status.NodeInfo.OperatingSystem == "windows" {
		return false // NVIDIA's Linux components do not run on Windows, and DirectX devices are out of scope
	}
	for _, label := range GPULabels() {
		if value, ok := n.Labels[label]; ok && value != "false" && value != "0" && value != "none" && !OfOthers(value) {
			return true
		}
	}
	if OtherPCILabel(n) != "" {
		return true
	}
	for name := range n.Status.Capacity { // a capacity of 0 also counts: a device plugin was registered
		if IsGPUResource(name) || OfMachines(name) || name == "volcano.sh/vgpu-number" {
			return true
		}
	}
	if platform.HasGPUs(cmp.Or(n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelInstanceType])) {
		return true
	}
	return n.Host != nil && (len(n.Host.Info.GPUs) > 0 || strings.Contains(n.Host.SMI, "<gpu id=") ||
		slices.ContainsFunc(n.Host.Probe.PCI, IsGPUDevice) ||
		slices.ContainsFunc(n.Host.KernelLog, func(k api.KernelRecord) bool { return ofGPU.MatchString(k.Text) }))
}

// ofPCI matches the labels that node feature discovery sets for NVIDIA display controllers, regardless of the fields in
// its deviceLabelFields: pci-10de, pci-0302_10de, pci-10de_2237, pci-0302_10de_2237.
var ofPCI = regexp.MustCompile(`^feature\.node\.kubernetes\.io/pci-(?:03[0-9a-f]{2}_)?10de(?:_[0-9a-f]{4})*\.present$`)

// OtherPCILabel returns a node label for an NVIDIA device if GPU software ignores the label because the label consists
// of unusual fields. It returns "" if there is no such label.
func OtherPCILabel(n *Node) (first string) {
	for key := range n.Labels {
		if strings.Contains(key, "10de") && (first == "" || key < first) && ofPCI.MatchString(key) &&
			!slices.Contains(GPULabels(), key) {
			first = key
		}
	}
	return first
}

// OfOthers reports whether a label's value names another vendor's accelerator.
func OfOthers(value string) bool {
	return words.ContainsAny(strings.ToLower(value), otherVendors)
}

// otherVendors contains names of other vendors and of their accelerators.
var otherVendors = []string{
	"amd", "radeon", "instinct", "gaudi", "habana", "inferentia", "trainium", "neuron", "tpu", "intel", "ascend",
	"huawei", "cambricon", "metax", "iluvatar", "hygon", "enflame", "mthreads", "tenstorrent", "furiosa",
}

// IsGPUDevice reports whether a PCI device is a GPU (a display controller) and not an NVSwitch.
func IsGPUDevice(d api.PCIDevice) bool {
	switch d.Driver {
	case "amdgpu", "radeon", "i915", "xe":
		return false
	}
	return strings.HasPrefix(strings.TrimPrefix(d.Class, "0x"), "03")
}

// Ready returns the node's Ready condition, or the zero value if it has none.
func (n *Node) Ready() corev1.NodeCondition { return n.Condition(corev1.NodeReady) }

// Condition returns the node's condition of the given type, or the zero value if it has none.
func (n *Node) Condition(kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// Object returns the node as the object of a finding.
func (n *Node) Object() finding.Object { return finding.Object{Kind: "Node", Name: n.Name} }

// PodObject returns a pod as the object of a finding.
func PodObject(pod *corev1.Pod) finding.Object {
	return finding.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
}
