package deviceplugin

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

// driverVersion is the label of nodes on which GKE installs a driver.
const driverVersion = "cloud.google.com/gke-gpu-driver-version"

// installers is the base URL of Google's DaemonSets that install drivers.
const installers = "https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/master/" +
	"nvidia-driver-installer/"

// describeNoInstaller describes a GKE node that runs Google's device plugin, but on which neither GKE nor a DaemonSet
// installs a driver. Restarting the plugin does not help in this case.
func describeNoInstaller(f *facts.Facts, n *facts.Node, plugin *corev1.Pod, found *finding.Finding) {
	if n.Distribution != facts.GKE || n.Labels["cloud.google.com/gke-accelerator"] == "" ||
		n.Labels[driverVersion] != "" || !strings.Contains(facts.OwnerOf(plugin), "nvidia-gpu-device-plugin") ||
		f.Missing("api/daemonsets") != "" || installsDriver(f) || n.Host != nil && n.Host.Info.DriverVersion != "" {
		return
	}
	found.Title = "the GKE node advertises no GPUs: nothing in the cluster installs an NVIDIA driver on it"
	found.Confidence = finding.Possible
	found.Evidence = append(found.Evidence,
		finding.FieldEvidence(n.Object(), ".metadata.labels", "no %s", driverVersion),
		finding.Evidence{Source: "DaemonSets", Text: "none installs a driver (nvidia-driver-installer)"})
	if e, ok := facts.LogEvidence(f, plugin, "/dev/nvidiactl", "libnvidia-ml", "driver libraries"); ok {
		found.Confidence = finding.Likely
		found.Evidence = append(found.Evidence, e)
	}
	found.Cause = "Google's device plugin is waiting for a driver, which it does not install itself. GKE installs a " +
		"driver only in node pools with gpu-driver-version; other node pools require Google's DaemonSet " +
		"nvidia-driver-installer. Restarting the plugin does not help."
	file := "cos/daemonset-preloaded.yaml"
	if strings.Contains(n.Status.NodeInfo.OSImage, "Ubuntu") {
		file = "ubuntu/daemonset-preloaded.yaml"
	}
	found.Fix = finding.Fix{
		Text: "Check whether a driver installer is running on the node, and check the plugin's log. If none is " +
			"running, create the node pool with gpu-driver-version=default in --accelerator, or, for the node image " +
			n.Status.NodeInfo.OSImage + ", apply Google's DaemonSet (last command), which also installs the driver " +
			"on nodes that are added later.",
		Commands: []string{
			shell.Command("kubectl get pods -n kube-system -o wide --field-selector spec.nodeName=%s", n.Name),
			shell.Command("kubectl logs %s -n %s --tail=20", plugin.Name, plugin.Namespace),
			shell.Command("kubectl apply -f %s", installers+file),
		},
	}
}

// installsDriver reports whether the cluster has a DaemonSet that installs NVIDIA drivers.
func installsDriver(f *facts.Facts) bool {
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		if strings.Contains(d.Name, "driver-installer") || strings.Contains(d.Name, "nvidia-driver") {
			return true
		}
	}
	return false
}
