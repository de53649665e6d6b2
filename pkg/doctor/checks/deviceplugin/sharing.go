package deviceplugin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// pluginConfig contains the fields of a device plugin configuration that the checks use.
type pluginConfig struct {
	Flags struct {
		// RenameByDefault is not valid in this section; the plugin ignores it.
		RenameByDefault *bool `json:"renameByDefault"`
	} `json:"flags"`
	Sharing struct {
		TimeSlicing *sharing `json:"timeSlicing"`
		MPS         *sharing `json:"mps"`
	} `json:"sharing"`
}

type sharing struct {
	RenameByDefault            bool `json:"renameByDefault"`
	FailRequestsGreaterThanOne bool `json:"failRequestsGreaterThanOne"`
	Resources                  []struct {
		Name     string `json:"name"`
		Rename   string `json:"rename"`
		Replicas int64  `json:"replicas"`
		Devices  any    `json:"devices"`
	} `json:"resources"`
}

// parsePluginConfig parses a device plugin configuration and ignores unknown fields.
func parsePluginConfig(text string) (pluginConfig, error) {
	var c pluginConfig
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return pluginConfig{}, fmt.Errorf("invalid device plugin configuration: %w", err)
	}
	return c, nil
}

// shared returns the section that shares whole GPUs, or nil if the configuration does not share them.
func (c pluginConfig) shared() *sharing {
	for _, s := range []*sharing{c.Sharing.TimeSlicing, c.Sharing.MPS} {
		if s != nil && len(s.Resources) > 0 {
			return s
		}
	}
	return nil
}

// pluginConfigs contains the ConfigMap with the device plugin's configurations, and the name of the default
// configuration.
type pluginConfigs struct {
	in       *corev1.ConfigMap
	fallback string
}

const configLabel = "nvidia.com/device-plugin.config"

// findPluginConfigs returns the ConfigMap that the device plugin reads. It returns false if the plugin has none, or if
// the ConfigMap cannot be determined.
func findPluginConfigs(f *facts.Facts) (pluginConfigs, bool) {
	name, fallback := facts.PolicyString(f, "spec", "devicePlugin", "config", "name"),
		facts.PolicyString(f, "spec", "devicePlugin", "config", "default")
	namespace := ""
	if h, ok := facts.ReleaseOf(f, facts.ChartDevicePlugin); ok && name == "" {
		config, _ := h.Values["config"].(map[string]any)
		name, _ = config["name"].(string)
		fallback, _ = config["default"].(string)
		namespace = h.Namespace
		if inline, _ := config["map"].(map[string]any); name == "" && len(inline) > 0 {
			name = h.Name + "-configs"
			if !strings.Contains(h.Name, facts.ChartDevicePlugin) {
				name = h.Name + "-" + facts.ChartDevicePlugin + "-configs"
			}
		}
	}
	d := scheduler.DaemonSetOf(f, nil, facts.DevicePlugin)
	for i := range f.ConfigMaps {
		m := &f.ConfigMaps[i]
		if name != "" && m.Name == name && (namespace == "" || m.Namespace == namespace) ||
			name == "" && d != nil && configures(d, m) {
			return pluginConfigs{m, fallback}, true
		}
	}
	return pluginConfigs{}, false
}

// configures reports whether a device plugin that was installed from a manifest mounts the ConfigMap, and the ConfigMap
// contains a configuration for sharing.
func configures(d *appsv1.DaemonSet, m *corev1.ConfigMap) bool {
	mounts := slices.ContainsFunc(d.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool {
		return v.ConfigMap != nil && v.ConfigMap.Name == m.Name
	})
	shares := false
	for _, text := range m.Data {
		shares = shares || strings.Contains(text, "\nsharing:")
	}
	return mounts && shares && d.Namespace == m.Namespace
}

// of returns the name of the configuration that a node uses, or an empty string if it uses none. With the standalone
// chart, a node without a label uses the configuration named default, or else the only configuration.
func (p pluginConfigs) of(f *facts.Facts, n *facts.Node) string {
	if name := n.Labels[configLabel]; name != "" {
		return name
	}
	if _, operator := facts.ClusterPolicy(f); p.fallback == "" && !operator {
		if _, ok := p.in.Data["default"]; ok {
			return "default"
		}
		if len(p.in.Data) == 1 {
			return words.SortedKeys(p.in.Data)[0]
		}
	}
	return p.fallback
}

func timeSlicingCheck() engine.Check {
	return engine.Check{
		ID: "share.timeslicing", Layer: finding.LayerDevicePlugin,
		Title: "the GPU sharing configuration does not take effect, or a pod requests more shares than allowed",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "the device plugin's ConfigMap, devicePlugin.config of the ClusterPolicy or chart, label " +
			configLabel + ", labels gpu.count and gpu.replicas, capacity, and pod status messages",
		Why: "A node uses the configuration that its label names, or else the default. Without either, the node shares nothing, whatever the ConfigMap contains. The capacity is then the number of GPUs, " +
			"not multiplied by the replicas. renameByDefault belongs under sharing, and is ignored elsewhere. A configuration that only some nodes use is not a problem. " +
			"The plugin reads only a file that CONFIG_FILE or --config-file names.",
		Explains: facts.GPULost("sched.wrong-resource-name", "dp.capacity-zero", "dp.not-running", "wl.pod-failing"),
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html",
		Sources: []string{"k8s-device-plugin#321", "k8s-device-plugin#461", "k8s-device-plugin#491",
			"k8s-device-plugin#732", "k8s-device-plugin#990", "k8s-device-plugin#1433",
			"k8s-device-plugin#1786"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			checkShareRequests(f, r)
			if r.Lacks(f, "api/configmaps") || r.Lacks(f, "api/nodes") {
				return
			}
			if tellUnread(f, r) {
				return
			}
			if configs, ok := findPluginConfigs(f); ok {
				checkConfigs(f, r, configs)
			}
		},
	}
}

// checkShareRequests reports pods that were rejected because they request several shares.
func checkShareRequests(f *facts.Facts, r *engine.Result) {
	const refusal = "maximum request size for shared resources is 1"
	for i := range f.Pods {
		pod := &f.Pods[i]
		if !strings.Contains(pod.Status.Message, refusal) || len(facts.GPURequests(pod)) == 0 {
			continue
		}
		found := finding.Finding{
			Object: facts.PodObject(pod),
			Title:  "the pod requests more than one share of a GPU, which the device plugin rejects",
			Evidence: []finding.Evidence{
				finding.FieldEvidence(facts.PodObject(pod), ".status.message", "%s", pod.Status.Message),
			},
			Fix: finding.Fix{
				Text: "Request one share: several shares do not provide a larger part of a GPU. Or set failRequestsGreaterThanOne: false in the sharing configuration.",
			},
		}
		if pod.Spec.NodeName != "" {
			found.Nodes = []string{pod.Spec.NodeName}
		}
		r.Add(found)
	}
}

func checkConfigs(f *facts.Facts, r *engine.Result, configs pluginConfigs) {
	object := finding.Object{Kind: "ConfigMap", Namespace: configs.in.Namespace, Name: configs.in.Name}
	parsed := map[string]pluginConfig{}
	shares := ""
	for _, name := range words.SortedKeys(configs.in.Data) {
		c, err := parsePluginConfig(configs.in.Data[name])
		if err != nil {
			r.Add(finding.Finding{
				Severity: finding.Warning, Object: object, Title: "a device plugin configuration is invalid",
				Evidence: []finding.Evidence{finding.FieldEvidence(object, ".data["+name+"]", "%v", err)},
				Fix:      finding.Fix{Text: "Correct the configuration.", Commands: []string{editConfigMap(configs.in)}},
			})
			continue
		}
		parsed[name] = c
		if c.shared() != nil {
			shares = name
		}
		if c.Flags.RenameByDefault != nil {
			r.Add(finding.Finding{
				Severity: finding.Warning, Object: object,
				Title: "renameByDefault is under flags, where the device plugin ignores it",
				Evidence: []finding.Evidence{
					finding.FieldEvidence(
						object, ".data["+name+"]", "flags.renameByDefault: %t", *c.Flags.RenameByDefault,
					),
				},
				Fix: finding.Fix{
					Text: "If pods request nvidia.com/gpu.shared, move renameByDefault (and " +
						"failRequestsGreaterThanOne) under sharing.timeSlicing, and restart the device plugin, which " +
						"then advertises the replicas under this name.",
					Commands: []string{editConfigMap(configs.in)},
				},
			})
		}
	}
	used := false
	for _, n := range f.GPUNodes {
		name := configs.of(f, n)
		used = used || name != ""
		c, ok := parsed[name]
		switch {
		case name == "" || ok:
		case configs.in.Data[name] != "":
			continue // already reported as invalid
		default:
			r.Add(finding.Finding{
				Object: n.Object(), Confidence: finding.Likely,
				Title: "the node's device plugin configuration is not in the ConfigMap",
				Evidence: append(facts.LabelEvidence(n, configLabel),
					finding.FieldEvidence(object, ".data", "contains %s",
						words.Joined(words.SortedKeys(configs.in.Data)))),
				Fix: finding.Fix{Text: "Specify an existing configuration (" +
					words.Joined(words.SortedKeys(configs.in.Data)) +
					"), or add the missing one.",
					Commands: []string{shell.Command("kubectl label node %s %s=%s --overwrite # or another one",
						n.Name, configLabel, firstOr(words.SortedKeys(configs.in.Data), "NAME"))}},
			})
			continue
		}
		if s := c.shared(); ok && s != nil {
			checkReplicas(f, r, n, configs.in, name, s)
		}
	}
	if shares != "" && !used && len(f.GPUNodes) > 0 {
		fix :=
			finding.Fix{Text: "Make the configuration the default, or set it in the label of the nodes that should share their GPUs.",
				Commands: []string{
					shell.Command("kubectl label node %s %s=%s", f.GPUNodes[0].Name, configLabel, shares),
				}}
		if change := facts.ChangeOperator(f, "devicePlugin.config.default", shares); change != nil {
			fix.Commands = change
		}
		r.Add(finding.Finding{
			Severity: finding.Warning, Object: object, Confidence: finding.Likely,
			Title: "no node uses the configuration that shares GPUs: no default is known, and no node has the label",
			Evidence: []finding.Evidence{
				finding.FieldEvidence(object, ".data", "contains %s", words.Joined(words.SortedKeys(configs.in.Data))),
				finding.FieldEvidence(finding.Object{Kind: "Cluster"}, "nodes", "no node has label %s", configLabel),
			}, Fix: fix,
		})
	}
}

func firstOr(all []string, otherwise string) string {
	if len(all) == 0 {
		return otherwise
	}
	return all[0]
}

func editConfigMap(m *corev1.ConfigMap) string {
	return shell.Command("kubectl edit configmap %s -n %s", m.Name, m.Namespace)
}

// checkReplicas compares a node's capacity with the number of GPUs and the configured replicas.
func checkReplicas(f *facts.Facts, r *engine.Result, n *facts.Node, in *corev1.ConfigMap, config string, s *sharing) {
	count, err := strconv.ParseInt(n.Labels["nvidia.com/gpu.count"], 10, 64)
	if err != nil || count == 0 {
		return // feature discovery reports no GPU count
	}
	at := slices.IndexFunc(s.Resources, func(res struct {
		Name     string `json:"name"`
		Rename   string `json:"rename"`
		Replicas int64  `json:"replicas"`
		Devices  any    `json:"devices"`
	}) bool {
		return res.Name == "nvidia.com/gpu"
	})
	if at < 0 || s.Resources[at].Devices != nil && s.Resources[at].Devices != "all" {
		return
	}
	want := s.Resources[at]
	now := facts.GPUsOf(n.Status.Capacity) / count
	replicas := strconv.FormatInt(now, 10)
	old := now > 1 && n.Labels["nvidia.com/gpu.replicas"] == replicas // and no configuration sets this number
	for _, text := range in.Data {
		old = old && !strings.Contains(text+"\n", "replicas: "+replicas+"\n")
	}
	// A capacity of 0 has other causes, so it is not reported.
	if want.Replicas < 2 || facts.GPUsOf(n.Status.Capacity) != count && !old ||
		!slices.ContainsFunc(
			facts.Current(n, facts.DevicePlugin),
			func(pod *corev1.Pod) bool { return facts.UpFor(f, pod) > facts.OperandGrace },
		) {
		r.Pass(n.Object())
		return
	}
	found := finding.Finding{
		Severity: finding.Warning, Confidence: finding.Likely, Object: n.Object(),
		Title: fmt.Sprintf("the node's GPUs are not shared, although its configuration sets replicas to %d",
			want.Replicas),
		Evidence: append(facts.LabelEvidence(n, configLabel, "nvidia.com/gpu.count", "nvidia.com/gpu.replicas",
			"nvidia.com/gpu.sharing-strategy"),
			finding.FieldEvidence(n.Object(), ".status.capacity", "%s", facts.GPUText(n.Status.Capacity)),
			finding.FieldEvidence(finding.Object{Kind: "ConfigMap", Namespace: in.Namespace, Name: in.Name},
				".data["+config+"]", "replicas: %d", want.Replicas)),
		Fix: finding.Fix{
			Text: "Restart the device plugin, and then GPU feature discovery: they do not read the ConfigMap again " +
				"when it changes.",
			Commands: restartPlugins(n),
		},
	}
	if old {
		found.Title = strings.Replace(found.Title, "are not shared", "are shared by "+replicas, 1)
		if len(scheduler.Pending(f)) > 0 {
			found.Severity = finding.Error
		}
	}
	for _, pod := range facts.Current(n, facts.DevicePlugin) {
		if e, ok := facts.LogEvidence(
			f, pod, "does not exist", "unable to load config", "unknown field", "error parsing",
		); ok {
			found.Evidence = append(found.Evidence, e)
		}
	}
	r.Add(found)
}

func mpsCheck() engine.Check {
	return engine.Check{
		ID: "share.mps", Symptom: engine.Precise, Layer: finding.LayerDevicePlugin,
		Title: "the device plugin is waiting for an MPS daemon that does not respond",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "logs of device plugin and MPS control daemon pods on nodes that advertise no GPU, label nvidia.com/mps.capable, nvidia-cuda-mps-control processes on the node",
		Why: "With sharing.mps, the plugin advertises nothing until the MPS control daemon responds. The daemon's DaemonSet, which older releases lack, runs only on nodes that feature discovery labels " +
			"nvidia.com/mps.capable=true. An MPS daemon on the host, or MIG, conflicts with it.",
		Explains: facts.GPULost("sched.wrong-resource-name", "dp.capacity-zero", "dp.not-running", "dp.unhealthy",
			"op.operand-failing", "op.clusterpolicy"),
		Doc: "https://github.com/NVIDIA/k8s-device-plugin#with-cuda-mps",
		Sources: []string{"k8s-device-plugin#467", "k8s-device-plugin#634", "k8s-device-plugin#679",
			"k8s-device-plugin#712", "k8s-device-plugin#762", "k8s-device-plugin#1105",
			"k8s-device-plugin#1132", "k8s-device-plugin#1595"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, n := range f.GPUNodes {
				if facts.GPUsOf(n.Status.Allocatable) > 0 {
					r.Pass(n.Object())
					continue
				}
				checkMPS(f, r, n)
			}
		},
	}
}

// deploysMPS reports whether the cluster has a DaemonSet for the MPS control daemon.
func deploysMPS(f *facts.Facts) bool {
	return slices.ContainsFunc(f.DaemonSets, func(d appsv1.DaemonSet) bool {
		return facts.ComponentOf(d.Spec.Template.Labels, &d.Spec.Template.Spec) == facts.MPS ||
			strings.Contains(d.Name, "mps-control-daemon")
	})
}

func checkMPS(f *facts.Facts, r *engine.Result, n *facts.Node) {
	for _, pod := range slices.Concat(facts.Current(n, facts.DevicePlugin), facts.Current(n, facts.MPS)) {
		e, ok := facts.LogEvidence(f, pod, "error waiting for MPS daemon", "error checking MPS daemon health",
			"failed to send command to MPS daemon", "using MPS requires --mps-root", "error starting MPS daemon")
		if !ok {
			continue
		}
		found := finding.Finding{
			Object: n.Object(), Confidence: finding.Likely,
			Title:    "the device plugin is waiting for an MPS control daemon that does not respond",
			Evidence: append([]finding.Evidence{e}, facts.LabelEvidence(n, "nvidia.com/mps.capable")...),
		}
		switch daemons := facts.Current(n, facts.MPS); {
		case strings.Contains(e.Text, "--mps-root"):
			found.Confidence = finding.Certain
			found.Fix = finding.Fix{
				Text: "Install the plugin with its Helm chart: MPS needs the control daemon and directories that only the chart sets up, not the static manifest.",
			}
		case len(daemons) == 0 && len(f.DaemonSets) > 0 && !deploysMPS(f):
			found.Evidence = append(found.Evidence,
				finding.FieldEvidence(finding.Object{Kind: "Cluster"}, "DaemonSets", "none for the MPS control daemon"))
		case len(daemons) == 0 && n.Labels["nvidia.com/mps.capable"] != "true":
			found.Title =
				"the device plugin is waiting for an MPS control daemon that does not run on the node: the node lacks the label nvidia.com/mps.capable"
			found.Evidence = append(found.Evidence,
				finding.FieldEvidence(n.Object(), ".metadata.labels", "no nvidia.com/mps.capable=true"))
			found.Fix = finding.Fix{
				Text: "Enable feature discovery, which sets the label (gfd.enabled=true in the chart), or set " +
					"the label manually.",
				Commands: []string{shell.Command("kubectl label node %s nvidia.com/mps.capable=true", n.Name)},
			}
			if h, ok := facts.ReleaseOf(f, facts.ChartDevicePlugin); ok {
				found.Fix.Commands = append([]string{facts.HelmUpgrade(h, "gfd.enabled=true")}, found.Fix.Commands...)
			}
		default:
			found.Fix = finding.Fix{
				Text: "Stop any MPS daemon on the host, check that no GPU on the node is in MIG mode, then restart " +
					"the control daemon (which terminates the programs that use it) and the plugin.",
			}
			for _, d := range daemons {
				found.Fix.Commands = append(found.Fix.Commands, facts.RestartPod(d.Namespace, d.Name))
			}
			found.Fix.Commands = append(found.Fix.Commands, restartPlugins(n)...)
		}
		if n.Host != nil {
			if pids := n.Host.Probe.Processes["nvidia-cuda-mps-control"]; len(pids) > 0 {
				found.Evidence = append(found.Evidence, finding.Evidence{
					Source: "nodes/" + n.Name + " processes", Text: fmt.Sprintf("nvidia-cuda-mps-control %v", pids),
				})
			}
		}
		r.Add(found)
		return
	}
}
