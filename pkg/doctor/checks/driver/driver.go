// Package driver checks the NVIDIA driver on GPU nodes.
package driver

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/platform"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Checks returns the checks for the driver layer.
func Checks() []engine.Check {
	return []engine.Check{
		driverNotLoadedCheck(), nouveauCheck(), uvmCheck(), deviceNodesCheck(), libraryMismatchCheck(), gspCheck(),
		fabricManagerCheck(), licenseCheck(),
		persistenceCheck(), driverBuildCheck(), driverHeadersCheck(), secureBootCheck(), unsupportedGPUCheck(),
		driverImageCheck(), driverUpgradeCheck(),
	}
}

// driverSymptoms returns the IDs of the findings that a broken driver causes.
func driverSymptoms(more ...string) []string {
	return append(facts.GPUSymptoms(more...), "hw.count", "rt.handler-missing", "cdi.unresolvable", "share.mps",
		"drv.persistence")
}

// These are the URLs of NVIDIA's installation and troubleshooting guides.
const (
	installDoc  = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
	operatorDoc = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/troubleshooting.html"
)

// containerDriver reports whether the GPU operator's container, not the host, provides the node's driver.
func containerDriver(f *facts.Facts, n *facts.Node) bool {
	if n.Labels["nvidia.com/gpu.deploy.driver"] == "pre-installed" {
		return false
	}
	if len(n.Component(facts.Driver)) > 0 || n.Host != nil && n.Host.Probe.Driver.Root == "/run/nvidia/driver" {
		return true
	}
	_, operated := facts.ClusterPolicy(f)
	return operated && !facts.PolicyOff(f, "driver")
}

// kernelOf returns the node's kernel release.
func kernelOf(n *facts.Node) string {
	if n.Host != nil && n.Host.Info.KernelRelease != "" {
		return n.Host.Info.KernelRelease
	}
	return n.Status.NodeInfo.KernelVersion
}

// osOf returns the display name of the node's operating system, such as Ubuntu 22.04.5 LTS.
func osOf(n *facts.Node) string {
	if n.Host != nil && n.Host.Probe.OS["PRETTY_NAME"] != "" {
		return n.Host.Probe.OS["PRETTY_NAME"]
	}
	return cmp.Or(n.Status.NodeInfo.OSImage, "the node's operating system")
}

// packager returns the package manager of the node's operating system (apt, dnf or zypper), or an empty string if
// unknown.
func packager(n *facts.Node) string {
	id := strings.ToLower(n.Status.NodeInfo.OSImage)
	if n.Host != nil && n.Host.Probe.OS["ID"] != "" {
		id = strings.ToLower(n.Host.Probe.OS["ID"] + " " + n.Host.Probe.OS["ID_LIKE"])
	}
	for _, known := range []struct{ part, by string }{
		// Immutable systems come first, because Kairos and others also name the distribution on which they are based.
		{"bottlerocket", ""}, {"talos", ""}, {"cos", ""}, {"container-optimized", ""}, {"coreos", ""}, {"flatcar", ""},
		{"kairos", ""}, {"elemental", ""}, {"micro", ""}, {"ubuntu core", ""}, {"ubuntu", "apt"}, {"debian", "apt"},
		{"suse", "zypper"}, {"sles", "zypper"}, {"rhel", "dnf"}, {"red hat", "dnf"}, {"rocky", "dnf"},
		{"centos", "dnf"}, {"fedora", "dnf"}, {"amzn", "dnf"}, {"amazon", "dnf"}, {"oracle", "dnf"},
	} {
		if strings.Contains(id, known.part) {
			return known.by
		}
	}
	return ""
}

// installHeaders returns the commands that install the headers for the node's kernel and rebuild the module.
func installHeaders(n *facts.Node) []string {
	switch kernel := kernelOf(n); packager(n) {
	case "apt":
		return []string{
			shell.OnHost(n.Name, "sudo apt-get install -y linux-headers-%s", kernel),
			shell.OnHost(n.Name, "sudo dkms autoinstall -k %s", kernel), shell.OnHost(n.Name, "sudo modprobe nvidia"),
		}
	case "dnf":
		return []string{
			shell.OnHost(n.Name, "sudo dnf install -y kernel-devel-%s kernel-headers", kernel),
			shell.OnHost(n.Name, "sudo dkms autoinstall -k %s", kernel), shell.OnHost(n.Name, "sudo modprobe nvidia"),
		}
	case "zypper":
		return []string{
			shell.OnHost(n.Name, "sudo zypper install -y kernel-default-devel"),
			shell.OnHost(n.Name, "sudo dkms autoinstall -k %s", kernel), shell.OnHost(n.Name, "sudo modprobe nvidia"),
		}
	}
	return nil
}

// installDriver returns a fix with the steps to install a driver on the node.
func installDriver(f *facts.Facts, n *facts.Node) finding.Fix {
	switch {
	case containerDriver(f, n):
		fix := finding.Fix{
			Text: "The GPU operator's driver container must load the driver: check the log of its pod on the node. To install the driver on the host instead, set driver.enabled=false.",
		}
		if _, operated := facts.ClusterPolicy(f); !operated {
			fix.Text = "The installer's pod on the node must load the driver: its log, or that of its previous " +
				"instance, shows why it does not. Its image must support the node's operating system and kernel."
		}
		for _, pod := range n.Component(facts.Driver) {
			fix.Commands = append(fix.Commands,
				shell.Command("kubectl logs -n %s %s --all-containers --tail=100", pod.Namespace, pod.Name))
		}
		if len(fix.Commands) == 0 {
			fix.Text =
				"The GPU operator should install the driver in a container, but no driver pod runs on the node: check the DaemonSet's node selector, and the node's labels nvidia.com/gpu.deploy.driver " +
					"and feature.node.kubernetes.io/kernel-version.full. To install the driver on the host instead, set driver.enabled=false."
			fix.Commands = append([]string{"kubectl get daemonset -A -l app=nvidia-driver-daemonset"},
				shell.Command("kubectl describe node %s", n.Name))
		}
		return fix
	}
	if p, ok := platform.Of(string(n.Distribution)); ok && p.Driver.Fix != "" {
		fix := finding.Fix{Text: p.Driver.Fix}
		for _, command := range p.Driver.Commands {
			format, args := command, []any{}
			if strings.Contains(command, "{node}") {
				format, args = strings.ReplaceAll(command, "{node}", "%s"), []any{n.Name}
			}
			if strings.HasPrefix(command, "sudo ") {
				fix.Commands = append(fix.Commands, shell.OnHost(n.Name, format, args...))
				continue
			}
			fix.Commands = append(fix.Commands, shell.Command(format, args...))
		}
		return fix
	}
	fix := finding.Fix{Text: "Install the driver on " + osOf(n) + ", or build its module for the running kernel " +
		kernelOf(n) +
		". Hold the kernel packages, or use DKMS, so that an update does not cause this again.",
		Commands: installHeaders(n)}
	return fix
}

// reloadDriver returns the commands that reload the driver's modules.
func reloadDriver(n *facts.Node) []string {
	return facts.Drain(n, shell.OnHost(n.Name, "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia"),
		shell.OnHost(n.Name, "sudo modprobe nvidia"), facts.Uncordon(n))
}

// moduleLoaded reports whether a kernel module is loaded. known is false if the loaded modules were not read.
func moduleLoaded(host *api.Diagnosis, name string) (loaded, known bool) {
	if host.Probe.Unread["modules"] != "" && len(host.Probe.Modules) == 0 {
		return host.Probe.Driver.Kernel != "" && name == "nvidia", host.Probe.Driver.Kernel != ""
	}
	for _, m := range host.Probe.Modules {
		if m.Name == name {
			return true, true
		}
	}
	return name == "nvidia" && (host.Probe.Driver.Kernel != "" || host.Info.DriverVersion != ""), true
}

// driverVersion returns the version of the loaded driver, or an empty string if no driver is loaded.
func driverVersion(host *api.Diagnosis) string {
	return cmp.Or(host.Probe.Driver.Kernel, host.Info.DriverVersion)
}

// grepKernel returns the newest record in the node's kernel log that contains one of the strings.
func grepKernel(n *facts.Node, texts ...string) (finding.Evidence, bool) {
	k, ok := grepRecords(n, texts...)
	if !ok {
		return finding.Evidence{}, false
	}
	return n.QuoteKernel(k), true
}

func grepRecords(n *facts.Node, texts ...string) (api.KernelRecord, bool) {
	if n.Host == nil {
		return api.KernelRecord{}, false
	}
	for _, k := range slices.Backward(n.Host.KernelLog) {
		for _, text := range texts {
			if strings.Contains(k.Text, text) {
				return k, true
			}
		}
	}
	return api.KernelRecord{}, false
}

// isLibrary matches the file name of a driver library and captures the version.
var isLibrary = regexp.MustCompile(`^(libnvidia-ml|libcuda)\.so\.(\d+\.\d+(?:\.\d+)?)$`)

// libraryVersions returns the paths of the driver's libraries on the node, by version.
func libraryVersions(host *api.Diagnosis) map[string][]string {
	found := map[string][]string{}
	for _, p := range host.Probe.Driver.Libraries {
		if m := isLibrary.FindStringSubmatch(path.Base(p)); m != nil {
			found[m[2]] = append(found[m[2]], p)
		}
	}
	return found
}

// podTexts finds one of the strings in the logs, container messages, and events of GPU pods and components on the node
// that are not ready.
func podTexts(f *facts.Facts, n *facts.Node, texts ...string) (finding.Evidence, bool) {
	for _, pod := range n.Pods {
		if facts.Ended(pod) || podutils.IsPodReady(pod) || facts.ComponentOf(pod.Labels, &pod.Spec) == "" &&
			!f.AsksForGPU(pod) {
			continue
		}
		if e, ok := facts.LogEvidence(f, pod, texts...); ok {
			return e, true
		}
		for s := range facts.Statuses(pod) {
			for _, message := range messagesOf(*s) {
				if words.ContainsAny(message, texts) {
					return finding.FieldEvidence(
						facts.PodObject(pod), ".status.containerStatuses["+s.Name+"]", "%s", message,
					), true
				}
			}
		}
		for _, e := range f.EventsOfPod(pod) {
			if words.ContainsAny(e.Message, texts) {
				return finding.Clipped(facts.Quote(e)), true
			}
		}
	}
	return finding.Evidence{}, false
}

func messagesOf(s corev1.ContainerStatus) []string {
	var all []string
	if s.State.Waiting != nil {
		all = append(all, s.State.Waiting.Message)
	}
	for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
		if t != nil {
			all = append(all, t.Message)
		}
	}
	return all
}
