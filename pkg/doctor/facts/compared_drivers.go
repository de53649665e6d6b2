package facts

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// This file compares a pod with the drivers on its node: kernel modules, their libraries, and CSI drivers.

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

// unregisteredCSI matches the kubelet's message about a CSI driver that is not registered on the node.
var unregisteredCSI = regexp.MustCompile(`driver name (\S+) not found in the list of registered CSI drivers`)

// csiKeptOff reports the DaemonSet of a CSI driver that the pod's volume needs, if a taint or the node selector keeps
// the DaemonSet off the node.
func (f *Facts) csiKeptOff(pod *corev1.Pod, n *Node) (source, text string) {
	for _, e := range f.EventsOfPod(pod) {
		m := unregisteredCSI.FindStringSubmatch(e.Message)
		if m == nil {
			continue
		}
		for i := range f.DaemonSets {
			d := &f.DaemonSets[i]
			selector := d.Spec.Template.Spec.NodeSelector
			os := selector[corev1.LabelOSStable]
			if !servesCSI(d, m[1]) || os != "" && os != n.Labels[corev1.LabelOSStable] {
				continue
			}
			why := ""
			for key, value := range selector {
				if n.Labels[key] != value {
					why = "selects nodes with " + key + "=" + value
				}
			}
			if taint, kept := KeptAway(n, d); kept {
				why = "does not tolerate the taint " + taint.ToString()
			}
			if why == "" {
				return "", "" // it runs on the node, or should
			}
			source = "DaemonSet " + d.Namespace + "/" + d.Name + " .spec.template.spec, and " + n.Object().String()
			text = fmt.Sprintf("CSI driver: DaemonSet %s/%s has no pod on the node, %s", d.Namespace, d.Name, why)
		}
		return source, text
	}
	return "", ""
}

// servesCSI reports whether a container of the DaemonSet sets the name of the CSI driver, or a volume contains its
// directory.
func servesCSI(d *appsv1.DaemonSet, driver string) bool {
	names := func(value string) bool {
		return strings.HasSuffix(value, "="+driver) || strings.Contains(value+"/", "/plugins/"+driver+"/")
	}
	spec := &d.Spec.Template.Spec
	for _, v := range spec.Volumes {
		if v.HostPath != nil && names(v.HostPath.Path) {
			return true
		}
	}
	for _, c := range spec.Containers {
		for _, arg := range append(append([]string{}, c.Command...), c.Args...) {
			if names(arg) {
				return true
			}
		}
		for _, e := range c.Env {
			if names("=" + e.Value) {
				return true
			}
		}
	}
	return false
}

// amdLabel matches the node labels by which feature discovery shows an AMD GPU.
var amdLabel = regexp.MustCompile(`^feature\.node\.kubernetes\.io/(?:amd-gpu|pci-(?:03\d\d_|12\d\d_)?1002\.present)$`)

// moduleEvent matches KMM's events about a node.
var moduleEvent = regexp.MustCompile(`^Module (\S+) (?:un)?loaded `)

// lostAMD reports a node that has an AMD GPU but offers none, while pods are waiting for one: either KMM replaced the
// driver without a reboot, or the reason is unknown.
func (f *Facts) lostAMD(pod *corev1.Pod, n *Node) (source, text string) {
	label := ""
	for key, value := range n.Labels {
		if amdLabel.MatchString(key) && value == "true" && (label == "" || key < label) {
			label = key
		}
	}
	if label == "" || n.Allocatable("amd.com/gpu") > 0 || len(f.PodsWaitingFor([]string{"amd.com/"})) == 0 {
		return "", ""
	}
	var loaded, unloaded, booted time.Time
	module := ""
	for _, e := range f.EventsOf("Node", "", n.Name) {
		m, at := moduleEvent.FindStringSubmatch(e.Message), EventTime(e)
		ours := m != nil && strings.HasPrefix(m[1], pod.Namespace+"/")
		switch {
		case e.Reason == "Rebooted" && at.After(booted):
			booted = at
		case e.Reason == "ModuleLoaded" && ours && at.After(loaded):
			loaded, module = at, m[1]
		case e.Reason == "ModuleUnloaded" && ours && at.After(unloaded):
			unloaded = at
		}
	}
	if module != "" && !unloaded.IsZero() && loaded.After(unloaded) && !booted.After(unloaded) {
		return "events of KMM about " + n.Object().String() + ", which has no newer event Rebooted",
			fmt.Sprintf("KMM replaced %s on the node without a reboot: unloaded at %s, loaded at %s", module,
				unloaded.UTC().Format(time.RFC3339), loaded.UTC().Format(time.RFC3339))
	}
	return n.Object().String() + " .metadata.labels and .status.allocatable",
		"AMD GPU on the node, none offered: " + label
}

// Labels that KMM (Kernel Module Management) sets on the pods that build a module.
const (
	kmmModule = "kmm.node.kubernetes.io/module.name"
	kmmKernel = "kmm.node.kubernetes.io/target-kernel"
)

// KMMReady returns the namespace and name of the module, separated by a dot, if KMM sets the node label when it has
// loaded the module.
func KMMReady(key string) (module string, is bool) {
	module, is = strings.CutPrefix(key, "kmm.node.kubernetes.io/")
	if !is {
		return "", false
	}
	return strings.CutSuffix(module, ".ready")
}

// kmmBuild reports that the pod builds a module for KMM, or that such a pod for the node's kernel has failed in the
// pod's namespace.
func (f *Facts) kmmBuild(pod *corev1.Pod, n *Node) (source, text string) {
	if module, kernel := pod.Labels[kmmModule], pod.Labels[kmmKernel]; module != "" && kernel != "" {
		return PodObject(pod).String() + " .metadata.labels",
			"KMM: build pod of module " + module + " for kernel " + kernel
	}
	for i := range f.Snapshot.Pods {
		build := &f.Snapshot.Pods[i]
		if build.Namespace == pod.Namespace && build.Labels[kmmModule] != "" &&
			build.Status.Phase == corev1.PodFailed &&
			build.Labels[kmmKernel] == n.Status.NodeInfo.KernelVersion && !f.Past(build) && len(f.LogsOf(build)) > 0 {
			return PodObject(build).String() + " .status.phase", "KMM: build pod " + build.Name + " failed"
		}
	}
	return "", ""
}
