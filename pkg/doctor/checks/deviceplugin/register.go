package deviceplugin

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// tellNoKubeletSocket completes the finding about a node on which plugins created their sockets but the kubelet's own
// socket is missing: the kubelet runs in a container with a separate directory, or its socket was deleted.
func tellNoKubeletSocket(n *facts.Node, found *finding.Finding) {
	const dir = "/device-plugins/"
	if n.Host == nil || n.Host.Runtime.Kubelet.PID == 0 || n.Host.Probe.Unread["devicePlugins"] != "" {
		return
	}
	plugins := 0
	for _, s := range n.Host.Probe.DevicePlugins {
		if strings.HasSuffix(s.Path, dir+"kubelet.sock") {
			return
		}
		if strings.Contains(s.Path, dir) {
			plugins++
		}
	}
	if plugins == 0 {
		return
	}
	found.Decisive = true // the plugin's log only shows that it cannot register
	found.Title = "the kubelet's socket is not in the node's directory device-plugins, so no plugin can register"
	found.Cause = "The kubelet runs in a container that does not mount this directory of the node, so that its " +
		"kubelet.sock is in the container only. Or something deleted the socket, which the kubelet creates only when " +
		"it starts."
	found.Evidence = append(found.Evidence, finding.Evidence{
		Source: "nodes/" + n.Name + " " + facts.KubeletRoot(n) + strings.TrimSuffix(dir, "/"), Text: "no kubelet.sock",
	})
	for _, unit := range words.SortedKeys(n.Host.Journals) {
		for line := range strings.Lines(n.Host.Journals[unit]) {
			if strings.Contains(line, "erving device plugin registration server") {
				found.Evidence = append(found.Evidence, finding.Evidence{
					Source: "nodes/" + n.Name + "/journal/" + unit, Text: strings.TrimSpace(line),
				})
				break
			}
		}
	}
	pid := strconv.Itoa(n.Host.Runtime.Kubelet.PID)
	path := facts.KubeletRoot(n) + strings.TrimSuffix(dir, "/")
	found.Fix = finding.Fix{
		Text: "Compare the mount namespaces of the kubelet and of the node (first command). If they differ, the kubelet " +
			"is in a container: mount the directory into it at the same path (in the docker run of its unit, -v " +
			path + ":" + path + "), and restart the unit. If they are the same, restart the kubelet, which creates " +
			"its socket again. Driver, toolkit and plugin need no change.",
		Commands: []string{
			shell.OnHost(n.Name, "sudo readlink /proc/%s/ns/mnt /proc/1/ns/mnt", pid),
			shell.OnHost(n.Name, "cat /proc/%s/cgroup", pid),
		},
	}
}

// tolerances returns chart values that make the chart's pods tolerate the node's taints, for each of the toleration
// lists at paths. By default, the charts tolerate nvidia.com/gpu; a list that is set replaces this default.
func tolerances(n *facts.Node, paths ...string) []string {
	var keys []string
	others := false
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			keys = append(keys, t.Key)
			others = others || t.Key != "nvidia.com/gpu" || t.Effect != corev1.TaintEffectNoSchedule
		}
	}
	var all []string
	for _, path := range paths {
		for i, key := range keys {
			list := path + "[" + strconv.Itoa(i) + "]"
			all = append(all, list+".key="+key, list+".operator=Exists")
		}
	}
	if !others {
		return nil
	}
	return all
}

// install returns a Helm command with the given values.
func install(format string, values []string, args ...any) string {
	for _, v := range values {
		format, args = format+" --set %s", append(args, v)
	}
	return shell.Command(format, args...)
}

// installPlugin returns the commands that install NVIDIA's device plugin so that it runs on the node, and an
// explanation.
func installPlugin(n *facts.Node) (text string, commands []string) {
	values := tolerances(n, "tolerations")
	commands = []string{install("helm upgrade --install nvdp %s --repo %s -n kube-system", values,
		facts.ChartDevicePlugin, facts.ChartRepository(facts.ChartDevicePlugin))}
	if len(values) > 0 {
		text = " By itself, the chart tolerates only the taint nvidia.com/gpu; the command sets tolerations for all " +
			"taints of the node."
	}
	if n.Labels["nvidia.com/gpu.present"] != "true" &&
		n.Labels["feature.node.kubernetes.io/pci-10de.present"] != "true" {
		text += " Its DaemonSet selects nodes with nvidia.com/gpu.present=true (or a label of NFD): set this label in " +
			"the node group, because the last command labels this node only."
		commands = append(commands, shell.Command("kubectl label node %s nvidia.com/gpu.present=true", n.Name))
	}
	return text, commands
}
