package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// pluginConfig is what matters of a device plugin's configuration file.
type pluginConfig struct {
	Flags struct {
		// RenameByDefault is not a flag: it is wrong here, and the plugin ignores it.
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

// parsePluginConfig reads a configuration of the device plugin. Fields that it does not know are left out.
func parsePluginConfig(text string) (pluginConfig, error) {
	var c pluginConfig
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return pluginConfig{}, fmt.Errorf("the device plugin's configuration is not what it should be: %w", err)
	}
	return c, nil
}

// shared returns how the configuration shares whole GPUs; nil when it does not.
func (c pluginConfig) shared() *sharing {
	for _, s := range []*sharing{c.Sharing.TimeSlicing, c.Sharing.MPS} {
		if s != nil && len(s.Resources) > 0 {
			return s
		}
	}
	return nil
}

// pluginConfigs are the device plugin's configurations, and which one nodes use that name none.
type pluginConfigs struct {
	in       *corev1.ConfigMap
	fallback string
}

const configLabel = "nvidia.com/device-plugin.config"

// findPluginConfigs returns the ConfigMap that the device plugin reads; ok is false when it has none, or when it cannot
// be told which.
func findPluginConfigs(f *Facts) (pluginConfigs, bool) {
	name, fallback := policyString(f, "spec", "devicePlugin", "config", "name"),
		policyString(f, "spec", "devicePlugin", "config", "default")
	namespace := ""
	if h, ok := releaseOf(f, chartDevicePlugin); ok && name == "" {
		config, _ := h.Values["config"].(map[string]any)
		name, _ = config["name"].(string)
		fallback, _ = config["default"].(string)
		namespace = h.Namespace
		if inline, _ := config["map"].(map[string]any); name == "" && len(inline) > 0 {
			name = h.Name + "-configs"
			if !strings.Contains(h.Name, chartDevicePlugin) {
				name = h.Name + "-" + chartDevicePlugin + "-configs"
			}
		}
	}
	for i := range f.ConfigMaps {
		m := &f.ConfigMaps[i]
		if name != "" && m.Name == name && (namespace == "" || m.Namespace == namespace) {
			return pluginConfigs{m, fallback}, true
		}
	}
	return pluginConfigs{}, false
}

// of returns the configuration that a node uses, and its name; an empty name is none. The standalone chart takes the
// only one there is.
func (p pluginConfigs) of(f *Facts, n *Node) string {
	if name := n.Labels[configLabel]; name != "" {
		return name
	}
	if _, operator := clusterPolicy(f); p.fallback == "" && !operator {
		if _, ok := p.in.Data["default"]; ok {
			return "default"
		}
		if len(p.in.Data) == 1 {
			return sortedKeys(p.in.Data)[0]
		}
	}
	return p.fallback
}

func timeSlicingCheck() Check {
	return Check{
		ID: "share.timeslicing", Layer: LayerDevicePlugin,
		Title: "the configuration for shared GPUs does not take effect, or a pod asks for more shares than it may",
		Needs: []Need{NeedAPI, NeedLogs},
		Reads: "the device plugin's ConfigMap, devicePlugin.config of the ClusterPolicy or chart, label " +
			configLabel + ", labels gpu.count and gpu.replicas, capacity, and messages of pods",
		Why: "A node uses the configuration that its label names, else the default. Without both it shares nothing, whatever the ConfigMap says. Then the capacity is the number of GPUs, and not that " +
			"times the replicas. renameByDefault belongs below sharing, and is ignored elsewhere. A configuration that only some nodes use is meant so.",
		Explains: gpuLost("sched.wrong-resource-name", "dp.capacity-zero", "dp.not-running", "wl.pod-failing"),
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html",
		Sources: []string{"k8s-device-plugin#321", "k8s-device-plugin#461", "k8s-device-plugin#491",
			"k8s-device-plugin#732", "k8s-device-plugin#990", "k8s-device-plugin#1433",
			"k8s-device-plugin#1786"},
		Run: func(f *Facts, r *Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			checkShareRequests(f, r)
			if r.Lacks(f, "api/configmaps") || r.Lacks(f, "api/nodes") {
				return
			}
			if configs, ok := findPluginConfigs(f); ok {
				checkConfigs(f, r, configs)
			}
		},
	}
}

// checkShareRequests looks for pods that were refused because they ask for several shares.
func checkShareRequests(f *Facts, r *Result) {
	const refusal = "maximum request size for shared resources is 1"
	for i := range f.Pods {
		pod := &f.Pods[i]
		if !strings.Contains(pod.Status.Message, refusal) || len(GPURequests(pod)) == 0 {
			continue
		}
		found := Finding{
			Object:   PodObject(pod),
			Title:    "the pod asks for more than one share of a GPU, which the device plugin refuses",
			Evidence: []Evidence{fieldEvidence(PodObject(pod), ".status.message", "%s", pod.Status.Message)},
			Fix: Fix{
				Text: "Ask for one: several shares are no bigger part of a GPU. Or set failRequestsGreaterThanOne: false in the sharing configuration.",
			},
		}
		if pod.Spec.NodeName != "" {
			found.Nodes = []string{pod.Spec.NodeName}
		}
		r.Add(found)
	}
}

func checkConfigs(f *Facts, r *Result, configs pluginConfigs) {
	object := Object{Kind: "ConfigMap", Namespace: configs.in.Namespace, Name: configs.in.Name}
	parsed := map[string]pluginConfig{}
	shares := ""
	for _, name := range sortedKeys(configs.in.Data) {
		c, err := parsePluginConfig(configs.in.Data[name])
		if err != nil {
			r.Add(Finding{
				Severity: Warning, Object: object, Title: "a configuration of the device plugin cannot be read",
				Evidence: []Evidence{fieldEvidence(object, ".data["+name+"]", "%v", err)},
				Fix:      Fix{Text: "Correct it.", Commands: []string{editConfigMap(configs.in)}},
			})
			continue
		}
		parsed[name] = c
		if c.shared() != nil {
			shares = name
		}
		if c.Flags.RenameByDefault != nil {
			r.Add(Finding{
				Severity: Warning, Object: object,
				Title: "renameByDefault stands below flags, where the device plugin ignores it",
				Evidence: []Evidence{
					fieldEvidence(object, ".data["+name+"]", "flags.renameByDefault: %t", *c.Flags.RenameByDefault),
				},
				Fix: Fix{
					Text: "Move it below sharing.timeSlicing.", Commands: []string{editConfigMap(configs.in)},
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
			continue // it cannot be read, which is told
		default:
			r.Add(Finding{
				Object: n.Object(), Confidence: Likely,
				Title: "the node wants a device plugin configuration that is not in the ConfigMap",
				Evidence: append(labelEvidence(n, configLabel),
					fieldEvidence(object, ".data", "has %s", joined(sortedKeys(configs.in.Data)))),
				Fix: Fix{Text: "Name one that is there (" + joined(sortedKeys(configs.in.Data)) + "), or add it.",
					Commands: []string{command("kubectl label node %s %s=%s --overwrite", n.Name, configLabel,
						firstOr(sortedKeys(configs.in.Data), "NAME"))}},
			})
			continue
		}
		if s := c.shared(); ok && s != nil {
			checkReplicas(f, r, n, object, name, s)
		}
	}
	if shares != "" && !used && len(f.GPUNodes) > 0 {
		fix := Fix{Text: "Make it the default, or name it in the label of the nodes that are to share their GPUs.",
			Commands: []string{command("kubectl label node %s %s=%s", f.GPUNodes[0].Name, configLabel, shares)}}
		if change := changeOperator(f, "devicePlugin.config.default", shares); change != nil {
			fix.Commands = change
		}
		r.Add(Finding{
			Severity: Warning, Object: object,
			Title: "no node uses the configuration that shares GPUs: there is no default, and no node has the label",
			Evidence: []Evidence{
				fieldEvidence(object, ".data", "has %s", joined(sortedKeys(configs.in.Data))),
				fieldEvidence(Object{Kind: "Cluster"}, "nodes", "none has the label %s", configLabel),
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
	return command("kubectl edit configmap %s -n %s", m.Name, m.Namespace)
}

// checkReplicas compares a node's capacity with what its configuration makes of its GPUs.
func checkReplicas(f *Facts, r *Result, n *Node, object Object, config string, s *sharing) {
	count, err := strconv.ParseInt(n.Labels["nvidia.com/gpu.count"], 10, 64)
	if err != nil || count == 0 {
		return // feature discovery does not say how many there are
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
	// A capacity of none has causes of its own.
	if want.Replicas < 2 || gpusOf(n.Status.Capacity) != count ||
		!slices.ContainsFunc(
			current(n, DevicePlugin), func(pod *corev1.Pod) bool { return upFor(f, pod) > operandGrace },
		) {
		r.Pass(n.Object())
		return
	}
	found := Finding{
		Severity: Warning, Confidence: Likely, Object: n.Object(),
		Title: fmt.Sprintf("the node's GPUs are not shared, although its configuration sets replicas to %d",
			want.Replicas),
		Evidence: append(labelEvidence(n, configLabel, "nvidia.com/gpu.count", "nvidia.com/gpu.replicas",
			"nvidia.com/gpu.sharing-strategy"),
			fieldEvidence(n.Object(), ".status.capacity", "%s", gpuText(n.Status.Capacity)),
			fieldEvidence(object, ".data["+config+"]", "replicas: %d", want.Replicas)),
		Fix: Fix{
			Text:     "Let the device plugin read its configuration again: without the operator's config-manager it does so only when it starts.",
			Commands: restartPlugins(n),
		},
	}
	for _, pod := range current(n, DevicePlugin) {
		if e, ok := logEvidence(
			f, pod, "does not exist", "unable to load config", "unknown field", "error parsing",
		); ok {
			found.Evidence = append(found.Evidence, e)
		}
	}
	r.Add(found)
}

func mpsCheck() Check {
	return Check{
		ID: "share.mps", Layer: LayerDevicePlugin,
		Title: "the device plugin waits for an MPS daemon that does not answer",
		Needs: []Need{NeedAPI, NeedLogs},
		Reads: "logs of device plugin and MPS control daemon pods on nodes that advertise no GPU, label nvidia.com/mps.capable, nvidia-cuda-mps-control processes on the node",
		Why: "With sharing.mps the plugin advertises nothing before the MPS control daemon answers, whose DaemonSet runs only where feature discovery set nvidia.com/mps.capable=true. An MPS daemon of the " +
			"host, or MIG, is in its way.",
		Explains: gpuLost("sched.wrong-resource-name", "dp.capacity-zero", "dp.not-running", "dp.unhealthy",
			"op.operand-failing", "op.clusterpolicy"),
		Doc: "https://github.com/NVIDIA/k8s-device-plugin#with-cuda-mps",
		Sources: []string{"k8s-device-plugin#467", "k8s-device-plugin#634", "k8s-device-plugin#679",
			"k8s-device-plugin#712", "k8s-device-plugin#762", "k8s-device-plugin#1105",
			"k8s-device-plugin#1132", "k8s-device-plugin#1595"},
		Run: func(f *Facts, r *Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, n := range f.GPUNodes {
				if gpusOf(n.Status.Allocatable) > 0 {
					r.Pass(n.Object())
					continue
				}
				checkMPS(f, r, n)
			}
		},
	}
}

func checkMPS(f *Facts, r *Result, n *Node) {
	for _, pod := range slices.Concat(current(n, DevicePlugin), current(n, MPS)) {
		e, ok := logEvidence(f, pod, "error waiting for MPS daemon", "error checking MPS daemon health",
			"failed to send command to MPS daemon", "using MPS requires --mps-root", "error starting MPS daemon")
		if !ok {
			continue
		}
		found := Finding{
			Object: n.Object(), Confidence: Likely,
			Title:    "the device plugin waits for an MPS control daemon that does not answer",
			Evidence: append([]Evidence{e}, labelEvidence(n, "nvidia.com/mps.capable")...),
		}
		switch daemons := current(n, MPS); {
		case strings.Contains(e.Text, "--mps-root"):
			found.Confidence = Certain
			found.Fix = Fix{
				Text: "Install the plugin by its chart: MPS needs the control daemon and folders that only the chart sets up, not the single static manifest.",
			}
		case len(daemons) == 0 && n.Labels["nvidia.com/mps.capable"] != "true":
			found.Title =
				"the device plugin waits for an MPS control daemon that is not placed on the node: it lacks the label nvidia.com/mps.capable"
			found.Evidence = append(found.Evidence,
				fieldEvidence(n.Object(), ".metadata.labels", "no nvidia.com/mps.capable=true"))
			found.Fix = Fix{
				Text:     "Let feature discovery run, which sets the label (gfd.enabled=true in the chart), or set it by hand.",
				Commands: []string{command("kubectl label node %s nvidia.com/mps.capable=true", n.Name)},
			}
			if h, ok := releaseOf(f, chartDevicePlugin); ok {
				found.Fix.Commands = append([]string{helmUpgrade(h, "gfd.enabled=true")}, found.Fix.Commands...)
			}
		default:
			found.Fix = Fix{
				Text: "Stop an MPS daemon that the host itself runs, check that no GPU of the node is in MIG mode, then restart daemon and plugin.",
			}
			for _, d := range daemons {
				found.Fix.Commands = append(found.Fix.Commands, restartPod(d.Namespace, d.Name))
			}
			found.Fix.Commands = append(found.Fix.Commands, restartPlugins(n)...)
		}
		if n.Host != nil {
			if pids := n.Host.Probe.Processes["nvidia-cuda-mps-control"]; len(pids) > 0 {
				found.Evidence = append(found.Evidence, Evidence{
					Source: "nodes/" + n.Name + " processes", Text: fmt.Sprintf("nvidia-cuda-mps-control %v", pids),
				})
			}
		}
		r.Add(found)
		return
	}
}
