package runtime

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// nodeRuntimeChecks returns the checks for node settings that affect running containers.
func nodeRuntimeChecks() []engine.Check {
	return []engine.Check{
		{
			ID: "rt.nvml-unknown-error", Symptom: engine.Precise, Layer: finding.LayerRuntime,
			From: []string{"api/pods", "logs"}, Needs: []engine.Need{engine.NeedLogs},
			Title: "running containers lose their GPUs",
			Reads: "logs of pods on GPU nodes; capacity and allocatable; the kernel log; the links in /dev/char, the " +
				"kubelet's cgroup driver",
			Why: "a container reports `Failed to initialize NVML: Unknown Error` although the node's driver works: a " +
				"daemon-reload made systemd reset the container to systemd's device rules, which did not include the " +
				"GPUs. If the container is the device plugin, it marks its GPUs unhealthy, without an XID. A plugin " +
				"that has had this error since its start never had the GPUs",
			Explains: []string{"wl.pod-failing", "wl.cuda-error", "wl.cpu-mode", "dp.*", "obs.dcgm-crash"},
			Doc:      "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html",
			Sources: []string{
				"nvidia-container-toolkit#48", "nvidia-container-toolkit#251", "nvidia-docker#1671",
				"nvidia-docker#1730", "gpu-operator#485", "k8s-device-plugin#426",
			},
			Run: checkUnknownError,
		},
		{
			ID: "rt.cpumanager", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode},
			Title: "the static CPU manager policy removes GPUs from containers",
			Reads: "the kubelet's cpuManagerPolicy, and the device plugin's PASS_DEVICE_SPECS and strategy",
			Why: "with the static policy, the kubelet continually updates the containers' cgroups, and runc drops " +
				"devices that are not in the container's specification: the device plugin must pass the devices " +
				"(PASS_DEVICE_SPECS) or provide them through CDI",
			Explains: []string{
				"rt.nvml-unknown-error", "wl.pod-failing", "wl.cuda-error", "wl.cpu-mode", "dp.*", "obs.dcgm-crash",
			},
			Sources: []string{"nvidia-docker#966", "k8s-device-plugin#145", "kubernetes#77073"},
			Run:     checkCPUManager,
		},
		{
			ID: "sec.all-gpus-visible", Layer: finding.LayerRuntime, From: []string{"api/pods", "api/runtimeclasses"},
			Needs: []engine.Need{engine.NeedAPI},
			Title: "a pod that requests no GPU sees all GPUs",
			Reads: "pods on GPU nodes with the NVIDIA runtime and NVIDIA_VISIBLE_DEVICES in their specification; the " +
				"number of GPUs in use according to nvidia-smi, and the number that the node's pods request",
			Why: "an unprivileged pod sets NVIDIA_VISIBLE_DEVICES, and the runtime honors it: the pod sees the GPUs " +
				"of other pods, without the scheduler's knowledge. The finding is Info if the node has no other GPU " +
				"pods, or if the only evidence is the number of GPUs in use",
			Sources: []string{
				"gpu-operator#28", "gpu-operator#421", "gpu-operator#700", "k8s-device-plugin#87", "bottlerocket#3718",
			},
			Run: checkAllVisible,
		},
		{
			ID: "sec.selinux", Layer: finding.LayerRuntime, From: []string{"api/pods", "logs"},
			Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
			Title: "containers are not allowed to open the GPU's device files",
			Reads: "container states and logs; SELinux, the modes of /dev/nvidia*, no-cgroups in the toolkit's " +
				"configuration",
			Why: "NVML reports `Insufficient Permissions`: SELinux, the mode of the device files, or no-cgroups " +
				"denies access",
			Explains: []string{"wl.pod-failing", "wl.cuda-error", "dp.*", "op.*", "obs.dcgm-crash"},
			Sources: []string{
				"nvidia-docker#1608", "nvidia-container-toolkit#33", "nvidia-container-toolkit#210", "containerd#6042",
			},
			Run: checkPermissions,
		},
		{
			ID: "rt.restart-loop", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode},
			Title:    "the container runtime restarts repeatedly",
			Reads:    "the journal of the runtime's unit",
			Why:      "systemd scheduled three or more restarts within the last ten minutes",
			Explains: noRuntime(),
			Sources: []string{
				"gpu-operator#399", "gpu-operator#456", "gpu-operator#712", "gpu-operator#991", "containerd#10437",
			},
			Run: checkRestartLoop,
		},
		{
			ID: "rt.no-inotify", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode},
			Title: "the container runtime could not create an inotify instance",
			Reads: "the journal of the runtime's unit; fs.inotify.max_user_instances",
			Why: "the runtime does not serve CRI, and has logged since it started that it cannot watch files: `too " +
				"many open files`. containerd then runs without the CRI plugin, and does not retry",
			Explains: noRuntime("node.inotify"),
			Sources:  []string{"containerd#10309", "containerd#10468", "claudie#1694"},
			Run:      checkNoInotify,
		},
		{
			ID: "node.inotify", Layer: finding.LayerRuntime, From: []string{"api/pods", "logs"},
			Needs: []engine.Need{engine.NeedLogs},
			Title: "the node has no inotify watches left",
			Reads: "logs of the GPU components; fs.inotify.max_user_instances and max_user_watches",
			Why: "a component logs `too many open files` for a file watcher: the node's limit, which all its " +
				"containers share, has been reached. Low limits alone are not reported",
			Explains: []string{"dp.*", "op.*", "gfd.labels", "mig.*", "wl.pod-failing"},
			Sources:  []string{"gpu-operator#441", "kubernetes#64614"},
			Run:      checkInotify,
		},
	}
}

// pluginLostGPUs returns the line in which a device plugin marks GPUs unhealthy because of an unknown NVML error. It
// returns false if the kernel log shows a GPU error, or if all of the node's GPUs are allocatable again.
func pluginLostGPUs(f *facts.Facts, n *facts.Node, plugin *corev1.Pod) (finding.Evidence, bool) {
	if facts.GPUsOf(n.Status.Allocatable) >= facts.GPUsOf(n.Status.Capacity) || len(n.GPUs().Incidents) > 0 {
		return finding.Evidence{}, false
	}
	return f.GrepLogs(plugin, "unhealthy: Unknown Error", "Error waiting for event: Unknown Error")
}

// describePlugin completes the finding about a device plugin that lost access to the GPUs.
func describePlugin(f *facts.Facts, plugin *corev1.Pod, issue *finding.Finding) {
	issue.Title = "the running device plugin lost access to the GPUs and marks them unhealthy"
	issue.Cause = "NVML in the plugin's container reports an unknown error, and no XID shows that a GPU failed. When " +
		"systemd reloads its units (daemon-reload, for example during a node upgrade), it resets running containers " +
		"to its own device rules, which did not include the GPUs."
	issue.Fix.Text = "if nvidia-smi works on the node, the GPUs are healthy: do not reset or replace them. Delete " +
		"the plugin pod, so that its replacement advertises the GPUs again. GPU pods that were running at that time " +
		"may also need a restart. To prevent a recurrence, create the links in /dev/char whenever the node boots " +
		"(with a udev rule, or a service that runs the last command), or provide GPUs through CDI"
	if again, ok := f.GrepLogs(plugin, "kubelet.sock created"); ok {
		issue.Evidence = append(issue.Evidence, finding.Clipped(again))
	} else if _, worked := f.GrepLogs(
		plugin, "Registered device plugin", "unhealthy: Unknown", "waiting for event: Unknown",
	); !worked {
		issue.Title = "the device plugin has had no access to the GPUs since its start, although it finds the " +
			"driver's library"
		issue.Cause = "The GPUs are not among the devices that the plugin's container may open. The plugin has not " +
			"lost them: a new pod fails as well."
		issue.Fix = finding.Fix{
			Text: "in the toolkit's config.toml on the node, no-cgroups must not be true. With cgroup v2, the " +
				"toolkit must be 1.8 or later, and runc, or crun before 1.18, must be the first entry in runtimes. " +
				"Or provide GPUs through CDI",
			Commands: []string{
				shell.OnHost(plugin.Spec.NodeName,
					"grep -nE 'no-cgroups|runtimes|^mode' /etc/nvidia-container-runtime/config.toml"),
				shell.OnHost(plugin.Spec.NodeName, "nvidia-container-cli --version"),
			},
		}
	}
}

const unknownError = "Failed to initialize NVML: Unknown Error"

func checkUnknownError(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		for _, pod := range n.Pods {
			e, ok := f.GrepLogs(pod, unknownError)
			plugin := facts.ComponentOf(pod.Labels, &pod.Spec) == facts.DevicePlugin
			if plugin && !ok {
				e, ok = pluginLostGPUs(f, n, pod)
			}
			if !ok || facts.Ended(pod) || strings.Contains(e.Source, "previous instance") {
				continue
			}
			issue := finding.Finding{
				Object: facts.PodObject(pod), Nodes: []string{n.Name}, Confidence: finding.Likely,
				Title: "the container lost its GPUs while running", Evidence: []finding.Evidence{finding.Clipped(e)},
				Fix: finding.Fix{
					Text: "recreate the pod; to prevent a recurrence, create the links in /dev/char on the node (and " +
						"a udev rule that creates them at boot), or provide GPUs through CDI. If the new pod fails " +
						"at its start, it never gets access: check that no-cgroups is not true in the toolkit's " +
						"config.toml",
					Commands: []string{
						facts.RestartPod(pod.Namespace, pod.Name),
						shell.OnHost(n.Name, "sudo nvidia-ctk system create-dev-char-symlinks --create-all"),
					},
				},
			}
			if metav1.GetControllerOf(pod) == nil {
				issue.Fix.Commands = issue.Fix.Commands[1:] // nothing would recreate the pod
			}
			if plugin {
				describePlugin(f, pod, &issue)
			}
			if n.Host != nil {
				var missing []string
				for link, there := range n.Host.Probe.DevChar {
					if !there {
						missing = append(missing, link)
					}
				}
				if slices.Sort(missing); len(missing) > 0 {
					issue.Evidence = append(issue.Evidence, finding.Evidence{
						Source: "nodes/" + n.Name + ": missing links",
						Text:   words.Clip(strings.Join(missing, " ")),
					})
				}
				if driver := n.Host.Runtime.Kubelet.CgroupDriver; driver != "" {
					issue.Evidence = append(issue.Evidence,
						finding.Evidence{Source: "nodes/" + n.Name + ": the kubelet's cgroupDriver", Text: driver})
				}
			}
			r.Add(issue)
		}
	}
}

func checkCPUManager(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		if n.Host == nil {
			r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
			continue
		}
		if n.Host.Probe.KubeletConfig["cpuManagerPolicy"] != "static" {
			continue
		}
		strategy, source, known := facts.DeviceStrategy(f, n)
		if !known || strings.Contains(strategy, "cdi") || passesDevices(n) {
			continue
		}
		issue := finding.Finding{
			Object: n.Object(), Severity: finding.Warning, Confidence: finding.Possible,
			Title: "the static CPU manager policy can remove GPUs from running containers, because the device plugin " +
				"does not pass device specs",
			Evidence: []finding.Evidence{
				{Source: "nodes/" + n.Name + ": the kubelet's cpuManagerPolicy", Text: "static"}, source,
			},
			Fix: finding.Fix{
				Text: "set PASS_DEVICE_SPECS=true for the device plugin (compatWithCPUManager=true in its own chart, " +
					"devicePlugin.env in the GPU operator's chart), or provide GPUs through CDI",
			},
		}
		for _, pod := range n.Pods {
			if e, ok := f.GrepLogs(pod, unknownError); ok && !facts.Ended(pod) {
				issue.Severity, issue.Evidence = finding.Error, append(issue.Evidence, finding.Clipped(e))
				issue.Confidence, issue.Title = finding.Likely, strings.Replace(issue.Title, "can remove", "removes", 1)
				break
			}
		}
		r.Add(issue)
	}
}

// passesDevices reports whether the node's device plugin passes device nodes to containers, or may do so because of its
// configuration file.
func passesDevices(n *facts.Node) bool {
	for _, pod := range facts.Current(n, facts.DevicePlugin) {
		for _, c := range pod.Spec.Containers {
			if slices.Contains(facts.EnvOf(c.Env, "PASS_DEVICE_SPECS"), "true") ||
				slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
					return strings.HasPrefix(arg, "--config-file")
				}) || len(facts.EnvOf(c.Env, "CONFIG_FILE")) > 0 || // may contain passDeviceSpecs
				slices.Contains(c.Args, "--pass-device-specs") || slices.Contains(c.Args, "--pass-device-specs=true") {
				return true
			}
		}
	}
	return false
}

func checkAllVisible(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		reportUnrequested(f, r, n)
		shared := slices.ContainsFunc(n.Pods,
			func(pod *corev1.Pod) bool { return !facts.Ended(pod) && f.AsksForGPU(pod) })
		for _, pod := range n.Pods {
			if facts.Ended(pod) || f.AsksForGPU(pod) || facts.ComponentOf(pod.Labels, &pod.Spec) != "" ||
				!hasNVIDIARuntime(f, n, pod) {
				continue
			}
			for _, c := range pod.Spec.Containers {
				value := strings.Join(facts.EnvOf(c.Env, "NVIDIA_VISIBLE_DEVICES"), "")
				privileged := c.SecurityContext != nil && c.SecurityContext.Privileged != nil &&
					*c.SecurityContext.Privileged
				if value == "" || value == "void" || value == "none" || privileged {
					continue
				}
				issue := finding.Finding{
					Object: facts.PodObject(pod), Nodes: []string{n.Name}, Severity: finding.Info,
					Confidence: finding.Likely,
					Title: "the pod requests no GPU but sees the GPUs of other pods through " +
						"NVIDIA_VISIBLE_DEVICES",
					Evidence: []finding.Evidence{
						finding.FieldEvidence(
							facts.PodObject(pod), "container "+c.Name+" .env", "NVIDIA_VISIBLE_DEVICES=%s", value,
						),
					},
					Fix: finding.Fix{
						Text: "request nvidia.com/gpu in the pod and remove the variable; to prevent this in all " +
							"pods, provide GPUs through volume-mounts or CDI, and set " +
							"ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED=false for the toolkit",
					},
				}
				// DaemonSet pods that monitor all GPUs are supposed to see all of them.
				owner := metav1.GetControllerOf(pod)
				if shared && (owner == nil || owner.Kind != "DaemonSet") {
					issue.Severity = finding.Warning
				}
				r.Add(issue)
				break
			}
		}
	}
}

// hasNVIDIARuntime reports whether a pod uses the NVIDIA runtime, through its RuntimeClass or as the node's default,
// and the runtime honors NVIDIA_VISIBLE_DEVICES.
func hasNVIDIARuntime(f *facts.Facts, n *facts.Node, pod *corev1.Pod) bool {
	if n.ToolkitSetting(facts.AcceptsEnv) == "false" {
		return false
	}
	if name := pod.Spec.RuntimeClassName; name != nil {
		class := f.RuntimeClass(*name)
		return class != nil && strings.Contains(class.Handler, "nvidia")
	}
	i := instance(n)
	if i == nil {
		return false
	}
	h, known := i.Handler(i.DefaultHandler)
	return known && h.IsGPU()
}

func checkPermissions(f *facts.Facts, r *engine.Result) {
	for _, n := range f.Nodes {
		evidence := errorsOn(f, "sec.selinux", n).evidence()
		var pods []string
		for _, e := range errorsOn(f, "sec.selinux", n).errors {
			pods = append(pods, e.pod.Namespace+"/"+e.pod.Name)
		}
		for _, pod := range n.Pods {
			if facts.Ended(pod) || podutils.IsPodReady(pod) {
				continue
			}
			if e, ok := facts.LogEvidence(
				f, pod, "Failed to initialize NVML: Insufficient Permissions", "nvml error: insufficient permissions",
			); ok {
				evidence, pods = append(evidence, e), append(pods, pod.Namespace+"/"+pod.Name)
			}
		}
		if len(evidence) == 0 {
			continue
		}
		issue := finding.Finding{
			Object: n.Object(), Confidence: finding.Possible,
			Title:    "containers are not allowed to open the GPU's device files",
			Evidence: evidence[:min(len(evidence), 3)],
			Fix: finding.Fix{
				Text:     "check SELinux, the modes of /dev/nvidia* (0666) and no-cgroups (false) on the node",
				Commands: []string{lookAt(n)},
			},
		}
		if n.Host != nil {
			issue = whyNotAllowed(f, n, issue)
		}
		r.Add(issue.ForPods(pods...))
	}
}

// whyNotAllowed adds to the finding the node setting that denies containers access to device files, and a fix.
func whyNotAllowed(f *facts.Facts, n *facts.Node, issue finding.Finding) finding.Finding {
	p := n.Host.Probe
	quote := func(source, text string) {
		issue.Evidence, issue.Confidence = append(issue.Evidence,
			finding.Evidence{Source: "nodes/" + n.Name + ": " + source, Text: text}), finding.Likely
	}
	for _, d := range p.Devices {
		if d.Mode != "" && !strings.HasSuffix(d.Mode, "666") && strings.HasPrefix(d.Path, "/dev/nvidia") &&
			!strings.HasPrefix(d.Path, "/dev/nvidia-caps") {
			quote(d.Path, "mode "+d.Mode)
			issue.Fix =
				finding.Fix{Text: "make the driver create its device files with mode 0666: set " +
					"NVreg_DeviceFileMode=0666 in /etc/modprobe.d (or, for the GPU operator's driver, in " +
					"driver.kernelModuleConfig), drain the node, and reload the driver"}
			return issue
		}
	}
	switch {
	case n.ToolkitSetting("no-cgroups") == "true":
		quote(p.ToolkitConfigPath, "no-cgroups = true")
		issue.Fix = finding.Fix{
			Text: "set no-cgroups = false in " + p.ToolkitConfigPath + ": true is meant only for rootless containers",
		}
	case p.SELinux == "enforcing":
		quote("SELinux", "enforcing")
		issue.Confidence = finding.Possible // many healthy nodes also enforce SELinux
		issue.Fix = finding.Fix{
			Text: "check the node's audit log for the access that SELinux denied (ausearch -m avc), and allow it for " +
				"these containers: in the pod's seLinuxOptions, set a type that has access to the GPU's devices " +
				"(nvidia_container_t from NVIDIA's policy, or a type generated by udica). The boolean " +
				"container_use_devices gives all containers on the node access to all devices, which is more than " +
				"GPU pods need",
			Commands: []string{shell.OnHost(n.Name, "sudo ausearch -m avc -ts recent")},
		}
	}
	return issue
}
