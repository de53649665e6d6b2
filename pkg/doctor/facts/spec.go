package facts

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/signatures"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// specOf returns facts about a pod, one per line, for signatures of messages whose meaning depends on a version, an
// image or a setting. The formats, including those from Node.specOf, are:
//
//	pod: NAMESPACE/NAME
//	image: NAME                  runtimeClassName: NAME, or (none)
//	schedulerName: NAME          if it is not the default scheduler
//	env: NAME=VALUE              limit: RESOURCE=QUANTITY
//	hostNetwork: true            privileged: true, capability: NAME
//	gate: NAME                   a scheduling gate
//	owner: KIND                  annotation: KEY=VALUE
//	probe: startup, liveness or readiness
//	postStart: COMMAND
//	runAsUser: NUMBER            supplementalGroups: NUMBERS
//	fsGroup: NUMBER
//	hostPath: PATH               claim: NAME (a resource claim)
//	node kernel: VERSION         node os: NAME
//	node kubelet: VERSION        node runtime: NAME://VERSION
//	node platform: NAME          node type: INSTANCE TYPE
//	node driver: VERSION         node compute: CAPABILITY
//	node ldconfig: PATH          the program that the container toolkit runs, if it is Ubuntu's wrapper script
//	node extension: NAME VERSION (Talos)
//	node label: nvidia.com/gpu.deploy.driver=pre-installed
//	node modules: ib_umad is not loaded, GPU DEVICE (NVLink 5)
func (f *Facts) specOf(pod *corev1.Pod) []signatures.Line {
	var all []signatures.Line
	object := PodObject(pod)
	add := func(container, field, format string, args ...any) {
		source := object.String() + " " + field
		if container != "" {
			source = object.String() + ", container " + container + " " + field
		}
		all = append(all, signatures.Line{Place: signatures.Spec, Container: container, Evidence: finding.Evidence{
			Source: source, Text: words.Clip(fmt.Sprintf(format, args...)),
		}})
	}
	class := "(none)"
	if pod.Spec.RuntimeClassName != nil {
		class = *pod.Spec.RuntimeClassName
	}
	add("", ".spec.runtimeClassName", "runtimeClassName: %s", class)
	add("", ".metadata", "pod: %s/%s", pod.Namespace, pod.Name)
	if name := pod.Spec.SchedulerName; name != "" && name != corev1.DefaultSchedulerName {
		add("", ".spec.schedulerName", "schedulerName: %s", name)
	}
	for _, gate := range pod.Spec.SchedulingGates {
		add("", ".spec.schedulingGates", "gate: %s", gate.Name)
	}
	if pod.Spec.HostNetwork {
		add("", ".spec.hostNetwork", "hostNetwork: true")
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		add("", ".metadata.ownerReferences", "owner: %s", owner.Kind)
	}
	if s := pod.Spec.SecurityContext; s != nil {
		if s.RunAsUser != nil {
			add("", ".spec.securityContext.runAsUser", "runAsUser: %d", *s.RunAsUser)
		}
		if len(s.SupplementalGroups) > 0 {
			add("", ".spec.securityContext.supplementalGroups", "supplementalGroups: %d", s.SupplementalGroups)
		}
		if s.FSGroup != nil {
			add("", ".spec.securityContext.fsGroup", "fsGroup: %d", *s.FSGroup)
		}
	}
	for _, c := range pod.Spec.ResourceClaims {
		add("", ".spec.resourceClaims", "claim: %s", c.Name)
	}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil {
			add("", ".spec.volumes["+v.Name+"].hostPath", "hostPath: %s", v.HostPath.Path)
		}
	}
	for _, key := range words.SortedKeys(pod.Annotations) {
		add("", ".metadata.annotations", "annotation: %s=%s", key, pod.Annotations[key])
	}
	for c := range Containers(pod) {
		add(c.Name, ".image", "image: %s", c.Image)
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				add(c.Name, ".env", "env: %s=%s", e.Name, e.Value)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
			q := c.Resources.Limits[name]
			add(c.Name, ".resources.limits", "limit: %s=%s", name, q.String())
		}
		if c.Lifecycle != nil && c.Lifecycle.PostStart != nil && c.Lifecycle.PostStart.Exec != nil {
			add(c.Name, ".lifecycle.postStart", "postStart: %s", strings.Join(c.Lifecycle.PostStart.Exec.Command, " "))
		}
		for _, probe := range []struct {
			name string
			is   *corev1.Probe
		}{{"startup", c.StartupProbe}, {"liveness", c.LivenessProbe}, {"readiness", c.ReadinessProbe}} {
			if probe.is != nil {
				add(c.Name, "."+probe.name+"Probe", "probe: %s", probe.name)
			}
		}
		if s := c.SecurityContext; s != nil {
			if s.RunAsUser != nil {
				add(c.Name, ".securityContext.runAsUser", "runAsUser: %d", *s.RunAsUser)
			}
			if Yes(s.Privileged) {
				add(c.Name, ".securityContext.privileged", "privileged: true")
			}
			if s.Capabilities != nil {
				for _, name := range s.Capabilities.Add {
					add(c.Name, ".securityContext.capabilities", "capability: %s", name)
				}
			}
		}
	}
	return slices.Concat(all, f.compared(pod), f.pinned(pod))
}

// Driver returns the version of the node's NVIDIA driver, or "" if it is unknown.
func (n *Node) Driver() string {
	if n.Host != nil && n.Host.Info.DriverVersion != "" {
		return n.Host.Info.DriverVersion
	}
	return n.Labels["nvidia.com/cuda.driver-version.full"]
}

// compute is the prefix of the labels in which feature discovery stores the compute capability of a node's GPUs.
const compute = "nvidia.com/gpu.compute."

// specOf returns facts about a node; see Facts.specOf.
func (n *Node) specOf() []signatures.Line {
	var all []signatures.Line
	info := n.Status.NodeInfo
	for _, fact := range [][3]string{
		{"kernel", ".status.nodeInfo.kernelVersion", info.KernelVersion},
		{"os", ".status.nodeInfo.osImage", info.OSImage},
		{"kubelet", ".status.nodeInfo.kubeletVersion", info.KubeletVersion},
		{"runtime", ".status.nodeInfo.containerRuntimeVersion", info.ContainerRuntimeVersion},
		{"platform", "", string(n.Distribution)},
		{"driver", "", n.Driver()},
		{"compute", ".metadata.labels[" + compute + "major], [" + compute + "minor]",
			strings.Trim(n.Labels[compute+"major"]+"."+n.Labels[compute+"minor"], ".")},
		{"type", ".metadata.labels[" + corev1.LabelInstanceTypeStable + "]", n.Labels[corev1.LabelInstanceTypeStable]},
	} {
		if fact[2] != "" {
			all = append(all, signatures.Line{Place: signatures.Spec, Evidence: finding.Evidence{
				Source: n.Object().String() + " " + fact[1], Text: words.Clip("node " + fact[0] + ": " + fact[2]),
			}})
		}
	}
	if path := strings.Trim(n.ToolkitSetting("ldconfig"), `"@`); strings.HasPrefix(info.OSImage, "Ubuntu") &&
		strings.HasSuffix(path, "sbin/ldconfig") { // the program itself is ldconfig.real in the same directory
		all = append(all, signatures.Line{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
			Source: "nodes/" + n.Name + ": [nvidia-container-cli] in " + n.Host.Probe.ToolkitConfigPath,
			Text:   "node ldconfig: " + path,
		}})
	}
	if first, _, _ := strings.Cut(strings.Trim(n.ToolkitSetting("runtimes"), "[ "), ","); first != "" {
		all = append(all, signatures.Line{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
			Source: "nodes/" + n.Name + ": [nvidia-container-runtime] in the toolkit's config.toml",
			Text: "node toolkit: mode " + strings.Trim(n.ToolkitSetting("mode"), `"`) + ", low-level runtime " +
				strings.Trim(first, `]"`),
		}})
	}
	if key := "nvidia.com/gpu.deploy.driver"; n.Labels[key] == "pre-installed" {
		all = append(all, signatures.Line{Place: signatures.Spec, Evidence: finding.Evidence{
			Source: n.Object().String() + " .metadata.labels", Text: "node label: " + key + "=pre-installed",
		}})
	}
	if n.Host != nil && n.Host.Probe.Unread["modules"] == "" && len(n.Host.Probe.Modules) > 0 &&
		!slices.ContainsFunc(n.Host.Probe.Modules, func(m api.Module) bool { return m.Name == "ib_umad" }) {
		for _, d := range n.Host.Probe.PCI {
			if d.Device == "0x2901" || d.Device == "0x3182" { // HGX B200 and B300
				all = append(all, signatures.Line{Place: signatures.Spec, Compared: true, Evidence: finding.Evidence{
					Source: "modules and PCI devices on node " + n.Name,
					Text:   "node modules: ib_umad is not loaded, GPU " + d.Device + " (NVLink 5)",
				}})
				break
			}
		}
	}
	for _, key := range words.SortedKeys(n.Annotations) {
		if name, ok := strings.CutPrefix(key, "extensions.talos.dev/"); ok {
			all = append(all, signatures.Line{Place: signatures.Spec, Evidence: finding.Evidence{
				Source: n.Object().String() + " .metadata.annotations[" + key + "]",
				Text:   words.Clip("node extension: " + name + " " + n.Annotations[key]),
			}})
		}
	}
	return all
}
