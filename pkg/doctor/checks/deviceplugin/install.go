package deviceplugin

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
)

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
	// Many clusters accept hostPath volumes only in kube-system, but AKS Automatic denies changes there.
	command := "helm upgrade --install nvdp %s --repo %s -n kube-system"
	if n.Distribution == facts.AKS {
		command = "helm upgrade --install nvdp %s --repo %s -n nvidia-device-plugin --create-namespace"
	}
	commands = []string{install(command, values,
		facts.ChartDevicePlugin, facts.ChartRepository(facts.ChartDevicePlugin))}
	if len(values) > 0 {
		text = " By default, the chart tolerates only the nvidia.com/gpu taint; the command sets tolerations for all " +
			"of the node's taints."
	}
	if n.Labels["nvidia.com/gpu.present"] != "true" &&
		n.Labels["feature.node.kubernetes.io/pci-10de.present"] != "true" {
		text += " Its DaemonSet selects nodes with nvidia.com/gpu.present=true (or an NFD label): set this label in " +
			"the node group, because the last command labels only this node."
		commands = append(commands, shell.Command("kubectl label node %s nvidia.com/gpu.present=true", n.Name))
	}
	return text, commands
}
