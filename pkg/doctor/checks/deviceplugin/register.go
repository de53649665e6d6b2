package deviceplugin

import (
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// describeNoKubeletSocket completes the finding about a node on which plugins created their sockets but the kubelet's
// own socket is missing: the kubelet runs in a container with a separate directory, or its socket was deleted.
func describeNoKubeletSocket(n *facts.Node, found *finding.Finding) {
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
	found.Title = "the kubelet's socket is not in the node's device-plugins directory, so no plugin can register"
	found.Cause = "Either the kubelet runs in a container that does not mount this directory from the node, so its " +
		"kubelet.sock exists only in the container, or something deleted the socket, which the kubelet creates only " +
		"at startup."
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
		Text: "Compare the mount namespaces of the kubelet and the node (first command). If they differ, the kubelet " +
			"runs in a container: mount the directory into the container at the same path (in the unit's docker run " +
			"command, -v " +
			path + ":" + path + "), and restart the unit. If they are the same, restart the kubelet, which recreates " +
			"its socket. The driver, toolkit and plugin need no change.",
		Commands: []string{
			shell.OnHost(n.Name, "sudo readlink /proc/%s/ns/mnt /proc/1/ns/mnt", pid),
			shell.OnHost(n.Name, "cat /proc/%s/cgroup", pid),
		},
	}
}
