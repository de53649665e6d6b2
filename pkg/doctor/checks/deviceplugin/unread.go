package deviceplugin

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// tellUnread reports a ConfigMap for sharing GPUs that the device plugin does not read, if pods are waiting for GPUs.
// It returns false if there is no such ConfigMap.
func tellUnread(f *facts.Facts, r *engine.Result) bool {
	d := scheduler.DaemonSetOf(f, nil, facts.DevicePlugin)
	if d == nil || len(scheduler.Pending(f)) == 0 || slices.ContainsFunc(d.Spec.Template.Spec.Containers, readsFile) {
		return false
	}
	named, known := findPluginConfigs(f)
	for i := range f.ConfigMaps {
		m := &f.ConfigMaps[i]
		if known && named.in == m {
			continue // the values already name it
		}
		for _, name := range words.SortedKeys(m.Data) {
			c, err := parsePluginConfig(m.Data[name])
			if err != nil || c.shared() == nil || m.Namespace != d.Namespace {
				continue
			}
			object := finding.Object{Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name}
			r.Add(finding.Finding{
				Object: object, Title: "the device plugin does not read the ConfigMap that shares GPUs",
				Confidence: finding.Likely,
				Fix:        letRead(f, d, m, name),
				Evidence: []finding.Evidence{
					finding.FieldEvidence(object, ".data["+name+"]", "sharing of %s", c.shared().Resources[0].Name),
					finding.FieldEvidence(finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name},
						".spec.template.spec.containers[]", "neither CONFIG_FILE nor --config-file"),
				},
			})
			return true
		}
	}
	return false
}

// letRead returns the fix that makes a device plugin read a configuration.
func letRead(f *facts.Facts, d *appsv1.DaemonSet, m *corev1.ConfigMap, name string) finding.Fix {
	const patch = `{"spec":{"template":{"spec":{"volumes":[{"name":"sharing","configMap":{"name":%q}}],"containers":` +
		`[{"name":%q,"env":[{"name":"CONFIG_FILE","value":%q}],"volumeMounts":[{"name":"sharing",` +
		`"mountPath":"/sharing"}]}]}}}}`
	change := facts.ChangeOperator(f, "devicePlugin.config.name", m.Name)
	if h, ok := facts.ReleaseOf(f, facts.ChartDevicePlugin); ok && h.Namespace == m.Namespace {
		change = []string{facts.HelmUpgrade(h, "config.name="+m.Name)}
	}
	if change != nil {
		return finding.Fix{Text: "Name the ConfigMap in the values.", Commands: change}
	}
	return finding.Fix{
		Text: "Mount the ConfigMap in the device plugin's container, and set CONFIG_FILE to the file. The plugin " +
			"reads its configuration only from this file, not from other environment variables. Keep the ConfigMap " +
			"and the pods' requests as they are.",
		Commands: []string{shell.Command("kubectl -n %s patch daemonset %s -p %s", d.Namespace, d.Name,
			fmt.Sprintf(patch, m.Name, d.Spec.Template.Spec.Containers[0].Name, "/sharing/"+name))},
	}
}

// readsFile reports whether a container of the device plugin reads a configuration file.
func readsFile(c corev1.Container) bool {
	return strings.Contains(strings.Join(slices.Concat(c.Command, c.Args), " "), "config-file") ||
		slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return strings.HasPrefix(e.Name, "CONFIG_FILE") })
}
