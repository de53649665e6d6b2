package facts

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
)

// This file compares pods with the directories and components of their node's platform.

// otherKubelet reports a pod that mounts a subdirectory of the kubelet's default root directory although the node's
// kubelet uses another root directory. The reported pod is the given pod or, failing that, a pod on its node that
// registers plugins. otherKubelet reports nothing if the kubelet's directories contain a socket of an NVIDIA plugin,
// because the default directory is then a link to the kubelet's root directory.
func (f *Facts) otherKubelet(pod *corev1.Pod, n *Node) (source, text string) {
	root := KubeletRoot(n)
	if root == DefaultKubeletRoot || n.Host != nil && slices.ContainsFunc(n.Host.Probe.DevicePlugins,
		func(s api.Socket) bool { return strings.Contains(s.Path, "nvidia") }) {
		return "", ""
	}
	for i, p := range append([]*corev1.Pod{pod}, n.Pods...) {
		for _, v := range p.Spec.Volumes {
			if v.HostPath != nil && strings.HasPrefix(v.HostPath.Path, DefaultKubeletRoot+"/") &&
				(i == 0 || strings.Contains(v.HostPath.Path, "/plugins_registry")) {
				return PodObject(p).String() + " .spec.volumes[" + v.Name + "].hostPath, and the kubelet's directory",
					fmt.Sprintf("conflict: kubelet root %s, %s mounts %s", root, PodObject(p), v.HostPath.Path)
			}
		}
	}
	return "", ""
}

// driverElsewhere reports a pod that does not mount the directory in which its node's platform installs the driver.
func (f *Facts) driverElsewhere(pod *corev1.Pod, n *Node) (source, text string) {
	p, _ := platform.Of(string(n.Distribution))
	if p.DriverRoot == "" || len(pod.Spec.Containers) == 0 ||
		slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.HostPath != nil && strings.HasPrefix(v.HostPath.Path+"/", p.DriverRoot+"/")
		}) {
		return "", ""
	}
	return PodObject(pod).String() + " .spec.volumes[].hostPath",
		"driver in " + p.DriverRoot + ", not mounted in the pod of " + pod.Spec.Containers[0].Image
}

// switchedOff reports, for a pod of the operator, that the ClusterPolicy disables the operator's driver and possibly
// its toolkit. The node must then provide the disabled components.
func (f *Facts) switchedOff(pod *corev1.Pod, n *Node) (source, text string) {
	policy, _ := ClusterPolicy(f)
	if !PolicyOff(f, "driver") || ComponentOf(pod.Labels, &pod.Spec) == "" {
		return "", ""
	}
	text = "operator: driver disabled"
	if PolicyOff(f, "toolkit") {
		text += ", toolkit disabled"
	}
	return "ClusterPolicy " + policy.GetName() + " .spec.driver.enabled and .spec.toolkit.enabled",
		text + " on " + string(n.Distribution)
}
