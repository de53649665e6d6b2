package facts

import (
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
)

// This file compares a pod and its node with the container toolkit, and the driver with its own libraries.

// toolkitImage matches the version in the name of a container toolkit image.
var toolkitImage = regexp.MustCompile(`container-toolkit:v?(\d+\.\d+\.\d+)`)

// movedPlugins reports a GPU operator toolkit that configures containerd on a node whose platform has a non-default
// directory for CNI plugins.
func (f *Facts) movedPlugins(_ *corev1.Pod, n *Node) (source, text string) {
	p, _ := platform.Of(string(n.Distribution))
	for _, toolkit := range Current(n, Toolkit) {
		for i := range toolkit.Spec.Containers {
			m := toolkitImage.FindStringSubmatch(toolkit.Spec.Containers[i].Image)
			if m != nil && p.CNIPlugins != "" {
				return PodObject(toolkit).String() + " .image",
					"CNI plugins in " + p.CNIPlugins + ", toolkit " + m[1] + " configures containerd"
			}
		}
	}
	return "", ""
}

// withoutOperator reports a cluster in which nothing installs the GPU operator's container toolkit. A toolkit on a node
// is then a leftover.
func (f *Facts) withoutOperator(*corev1.Pod, *Node) (source, text string) {
	_, operated := ClusterPolicy(f)
	if operated || len(f.Component(Toolkit))+len(f.Component(Operator)) > 0 || f.Missing("api/daemonsets") != "" ||
		f.Missing("api/pods") != "" || f.Missing("api/clusterpolicies") != "" ||
		slices.ContainsFunc(f.DaemonSets, func(d appsv1.DaemonSet) bool {
			return ComponentOf(d.Spec.Template.Labels, &d.Spec.Template.Spec) == Toolkit
		}) {
		return "", ""
	}
	return "pods, DaemonSets and ClusterPolicies of all namespaces", "no container toolkit of the GPU operator"
}

// atBoot is the maximum time between the loading of the kernel module and the failure of a program for which the
// program's libraries count as already present at boot.
const atBoot = time.Minute

var (
	// loadedModule matches the version that the driver logs when its module is loaded.
	loadedModule = regexp.MustCompile(driverLoads + `\D*(?:x86_64|aarch64)?\D+?([0-9]+\.[0-9.]+[0-9])`)
	// otherLibraries matches the version of a program's libraries that the module rejects.
	otherLibraries = regexp.MustCompile(
		`(?s)NVRM: API mismatch: the client.{0,120}?has the version ([0-9.]+[0-9]), but`,
	)
)

// MixedAtBoot returns the versions of the driver's libraries and module if they already differed when the module was
// loaded. In this case, the node's image, or the software that prepares the node at boot, combines the two versions, so
// a reboot does not help.
func (n *Node) MixedAtBoot() (libraries, module string) {
	if n.Host == nil {
		return "", ""
	}
	var loaded time.Duration
	records := n.Host.KernelLog
	for i, k := range records {
		if k.Priority >= 8 {
			continue
		}
		if m := loadedModule.FindStringSubmatch(k.Text); m != nil {
			loaded, module = k.Uptime, m[1]
		}
		if module == "" || !strings.Contains(k.Text, "NVRM: API mismatch") || k.Uptime-loaded > atBoot {
			continue
		}
		said := ""
		for _, line := range records[i:min(i+3, len(records))] { // the message has several lines
			said += strings.ReplaceAll(line.Text, `\x0a`, "\n") + "\n"
		}
		if m := otherLibraries.FindStringSubmatch(said); m != nil && m[1] != module {
			return m[1], module
		}
	}
	return "", ""
}

// mixedAtBoot returns the result of MixedAtBoot as a fact.
func (f *Facts) mixedAtBoot(_ *corev1.Pod, n *Node) (source, text string) {
	libraries, module := n.MixedAtBoot()
	if module == "" || libraries == "" {
		return "", ""
	}
	return "versions in nodes/" + n.Name + "/kernel.log",
		"libraries " + libraries + ", module " + module + " since it was loaded"
}
