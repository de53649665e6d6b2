package facts

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// This file compares a pod with other pods on its node and with data from the node itself.

// hangsOnlyHere reports a container in which a program with a preloaded library hangs, although nvidia-smi works on the
// node.
func (f *Facts) hangsOnlyHere(pod *corev1.Pod, n *Node) (source, text string) {
	if n.Host == nil || n.GPUs().SMI == nil || RunsReady(pod) {
		return "", ""
	}
	hangs := slices.ContainsFunc(f.EventsOfPod(pod), func(e *corev1.Event) bool {
		return e.Reason == "Unhealthy" && strings.Contains(e.Message, "timed out")
	})
	for _, l := range f.LogsOf(pod) {
		lines := strings.Split(strings.TrimSpace(l.Text), "\n")
		if last := lines[len(lines)-1]; hangs && strings.Contains(last, "HAMI-core") {
			return LogSource(l) + ", last line, and nvidia-smi on " + n.Object().String(),
				"hangs in the library of HAMi; nvidia-smi on the node works with driver " + n.GPUs().SMI.Driver
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if library := strings.Join(EnvOf(c.Env, "LD_PRELOAD"), ":"); hangs && library != "" {
			return PodObject(pod).String() + ", container " + c.Name + " .env, and nvidia-smi on the node",
				"hangs with LD_PRELOAD=" + library + "; nvidia-smi on the node works with driver " + n.GPUs().SMI.Driver
		}
	}
	return "", ""
}

// worksAsRoot reports a ready pod that is on the same node, has the same image and GPU resource, and runs as root, if
// this pod runs as another user.
func (f *Facts) worksAsRoot(pod *corev1.Pod, n *Node) (source, text string) {
	user := userOf(pod)
	if user == nil || *user == 0 || len(GPURequests(pod)) == 0 {
		return "", ""
	}
	for _, other := range n.Pods {
		if by := userOf(other); by == nil || *by != 0 || !RunsReady(other) || len(GPURequests(other)) == 0 ||
			other.Spec.Containers[0].Image != pod.Spec.Containers[0].Image {
			continue
		}
		for name := range GPURequests(pod) {
			if _, same := GPURequests(other)[name]; same {
				return PodObject(other).String() + ", with the same image on the same node, .runAsUser: 0",
					fmt.Sprintf("works as root, but fails as user %d", *user)
			}
		}
	}
	return "", ""
}

// userOf returns the user ID that a pod sets for its first container, or nil if it sets none.
func userOf(pod *corev1.Pod) *int64 {
	if len(pod.Spec.Containers) > 0 {
		if s := pod.Spec.Containers[0].SecurityContext; s != nil && s.RunAsUser != nil {
			return s.RunAsUser
		}
	}
	if s := pod.Spec.SecurityContext; s != nil {
		return s.RunAsUser
	}
	return nil
}

// setUpTakes is the maximum time from the toolkit's start until it has restarted containerd.
const setUpTakes = 15 * time.Minute

// defaultLost reports a restart of containerd that happened long after the toolkit had made NVIDIA's runtime the
// default, but before the start of this pod, which relies on the default. It reports nothing if the runtime's
// configuration was read, because other checks are then more precise.
func (f *Facts) defaultLost(pod *corev1.Pod, n *Node) (source, text string) {
	if n.Host == nil || n.Host.Runtime.Instance != nil || pod.Spec.RuntimeClassName != nil ||
		len(GPURequests(pod)) == 0 {
		return "", ""
	}
	restarted := startedBy(n.Host.Journals["containerd"], "starting containerd")
	for _, toolkit := range Current(n, Toolkit) {
		for i := range toolkit.Status.ContainerStatuses {
			running := toolkit.Status.ContainerStatuses[i].State.Running
			if running == nil || restarted.Sub(running.StartedAt.Time) < setUpTakes || !setsDefault(toolkit) ||
				!startedAfter(pod, restarted) {
				continue
			}
			return "CONTAINERD_SET_AS_DEFAULT of " + PodObject(toolkit).String() +
					", and the journal of containerd on " + n.Object().String(),
				fmt.Sprintf("containerd restarted at %s, the toolkit configured it at %s",
					restarted.UTC().Format(time.RFC3339), running.StartedAt.UTC().Format(time.RFC3339))
		}
	}
	return "", ""
}

func setsDefault(toolkit *corev1.Pod) bool {
	_, is := ConfiguresDefault(toolkit)
	return is
}

// ConfiguresDefault reports whether the operator's toolkit is configured to make NVIDIA's runtime the default. It also
// returns the variable that sets this, or "" if none does.
func ConfiguresDefault(toolkit *corev1.Pod) (variable string, is bool) {
	for i := range toolkit.Spec.Containers {
		for _, name := range []string{"NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT"} {
			for _, value := range EnvOf(toolkit.Spec.Containers[i].Env, name) {
				variable, is = name, value == "true" || value == "1"
			}
		}
	}
	return variable, is
}

// startedAfter reports whether all containers in the pod are running and started after the given time.
func startedAfter(pod *corev1.Pod, at time.Time) bool {
	return len(pod.Status.ContainerStatuses) > 0 &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Running == nil || s.State.Running.StartedAt.Time.Before(at)
		})
}

// startedBy returns the time of the last journal line that contains a string, or the zero time if there is none.
func startedBy(journal, text string) (at time.Time) {
	for line := range strings.Lines(journal) {
		stamp, _, _ := strings.Cut(line, " ")
		if !strings.Contains(line, text) {
			continue
		}
		if t, err := time.Parse("2006-01-02T15:04:05-0700", stamp); err == nil {
			at = t
		}
	}
	return at
}

var (
	// unreserved matches vfio-pci's kernel log line about a device memory region that is already in use.
	unreserved = regexp.MustCompile(
		`vfio-pci ([0-9a-f:.]+): BAR (\d): can't reserve \[mem 0x([0-9a-f]+)-0x([0-9a-f]+)`,
	)
	// framebuffer matches the address of the firmware console's framebuffer.
	framebuffer = regexp.MustCompile(`((?:efi|vesa|simple)fb|simple-framebuffer)\S*: framebuffer at 0x([0-9a-f]+)`)
)

// heldByConsole reports a device of a virtual machine with a memory region that vfio-pci cannot reserve, because the
// region contains the framebuffer of the host's console.
func (f *Facts) heldByConsole(pod *corev1.Pod, n *Node) (source, text string) {
	if n.Host == nil || pod.Labels["kubevirt.io"] != "virt-launcher" {
		return "", ""
	}
	var console []string
	for _, record := range n.Host.KernelLog {
		if m := framebuffer.FindStringSubmatch(record.Text); m != nil && record.Priority < 8 {
			console = m
		}
		m := unreserved.FindStringSubmatch(record.Text)
		if m == nil || console == nil || record.Priority >= 8 {
			continue
		}
		at, err1 := strconv.ParseUint(console[2], 16, 64)
		from, err2 := strconv.ParseUint(m[3], 16, 64)
		to, err3 := strconv.ParseUint(m[4], 16, 64)
		if err1 == nil && err2 == nil && err3 == nil && at >= from && at <= to {
			source = "nodes/" + n.Name + "/kernel.log"
			text = fmt.Sprintf("BAR %s of %s, which vfio-pci cannot reserve (0x%s-0x%s), has the framebuffer of %s at 0x%s",
				m[2], m[1], m[3], m[4], console[1], console[2])
		}
	}
	return source, text
}

// ostree is the NFD label by which the operator selects OpenShift's Driver Toolkit image.
const ostree = "feature.node.kubernetes.io/system-os_release.OSTREE_VERSION"

// staleOSTree reports a node whose operating system image is not the one in NFD's label. The fact also shows whether
// the node has an NFD worker, which would correct the label.
func (f *Facts) staleOSTree(_ *corev1.Pod, n *Node) (source, text string) {
	label := n.Labels[ostree]
	source = n.Object().String() + " .metadata.labels, and .status.nodeInfo.osImage: " + n.Status.NodeInfo.OSImage
	if label == "" || !strings.Contains(n.Status.NodeInfo.OSImage, "CoreOS") {
		return "", ""
	}
	if strings.Contains(n.Status.NodeInfo.OSImage, label) {
		return source, "not stale: OSTREE_VERSION=" + label + ", kernel " + n.Status.NodeInfo.KernelVersion
	}
	text = "no worker of NFD on the node"
	if slices.ContainsFunc(Current(n, NFD), func(pod *corev1.Pod) bool {
		return strings.Contains(pod.Name, "worker") && podutils.IsPodReady(pod)
	}) {
		text = "a worker of NFD runs"
	}
	return source,
		"stale: OSTREE_VERSION=" + label + ", " + text
}

// withoutClass reports a pod that requests a GPU but has no RuntimeClass, on a node whose runtime was not read and
// whose device plugin works with NVIDIA's RuntimeClass. It reports nothing if another GPU pod without a RuntimeClass is
// ready, because NVIDIA's runtime is then the default.
func (f *Facts) withoutClass(pod *corev1.Pod, n *Node) (source, text string) {
	class := f.NVIDIAClass()
	strategy, _, known := DeviceStrategy(f, n)
	_, refused := f.RefusedStrategy(pod, n)
	if class == nil || pod.Spec.RuntimeClassName != nil || len(GPURequests(pod)) == 0 || !known ||
		strategy != "envvar" || refused != "" || n.Host != nil && n.Host.Runtime.Instance != nil || n.IsCRIO() ||
		slices.ContainsFunc(Current(n, Toolkit), setsDefault) || GPUsOf(n.Status.Allocatable) == 0 {
		return "", ""
	}
	var works *corev1.Pod
	for _, other := range n.Pods {
		switch name := other.Spec.RuntimeClassName; {
		case !RunsReady(other):
		case name == nil && len(GPURequests(other)) > 0:
			return "", ""
		case name != nil && *name == class.Name && ComponentOf(other.Labels, &other.Spec) == DevicePlugin:
			works = other
		}
	}
	if works == nil {
		return "", ""
	}
	return PodObject(pod).String() + " and " + PodObject(works).String() + " .spec.runtimeClassName",
		"conflict: no RuntimeClass, pods with " + class.Name + " have the driver"
}

// withoutNRI reports an operator that relies on its toolkit's NRI plugin to give its pods GPUs, although the toolkit is
// disabled.
func (f *Facts) withoutNRI(pod *corev1.Pod, _ *Node) (source, text string) {
	p, ok := ClusterPolicy(f)
	if !ok || ComponentOf(pod.Labels, &pod.Spec) == "" || !PolicyOff(f, "toolkit") {
		return "", ""
	}
	if on, _, _ := unstructured.NestedBool(p.Object, "spec", "cdi", "nriPluginEnabled"); !on {
		return "", ""
	}
	return "ClusterPolicy " + p.GetName() + " .spec.cdi.nriPluginEnabled and .spec.toolkit.enabled",
		"conflict: NRI plugin enabled, toolkit disabled in " + p.GetName()
}

// lostList quotes the kubelet's log line about a device plugin whose device list has ended, if the pod requests the
// plugin's resource and the node offers none.
func (f *Facts) lostList(pod *corev1.Pod, n *Node) (source, text string) {
	for _, ended := range Once(f, endedLists).lines[n] {
		for name := range Demand(pod) {
			if n.Allocatable(name) > 0 {
				continue
			}
			quoted := `"` + string(name) + `"`
			if at := strings.LastIndex(ended.Text, quoted); at >= 0 {
				return ended.Source, ended.Text[:at+len(quoted)]
			}
		}
	}
	return "", ""
}

// listEnds contains the nodes where device lists have ended, in the order of the cluster's nodes, and the log lines
// about this.
type listEnds struct {
	nodes []*Node
	lines map[*Node][]finding.Evidence
}

// endedLists returns the kubelet's log lines about device lists that have ended. Each waiting pod is compared with all
// nodes of the cluster, so the lines are read only once.
func endedLists(f *Facts) listEnds {
	const start = "ListAndWatch ended "
	ends := listEnds{lines: map[*Node][]finding.Evidence{}}
	for _, n := range f.Nodes {
		if n.Host == nil {
			continue
		}
		for _, unit := range slices.Sorted(maps.Keys(n.Host.Journals)) {
			for line := range strings.Lines(n.Host.Journals[unit]) {
				if at := strings.Index(line, start); at >= 0 {
					ends.lines[n] = append(ends.lines[n], finding.Evidence{
						Source: "nodes/" + n.Name + "/journal/" + unit, Text: strings.TrimRight(line[at:], "\n"),
					})
				}
			}
		}
		if len(ends.lines[n]) > 0 {
			ends.nodes = append(ends.nodes, n)
		}
	}
	return ends
}
