package doctor

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// startChecks are about what the runtime executes when it starts a pod.
func startChecks() []Check {
	return []Check{
		{
			ID: "rt.binary-missing", Layer: LayerRuntime, Needs: []Need{NeedAPI, NeedNode},
			Title: "what a runtime handler executes is not there",
			Reads: "events FailedCreatePodSandBox; the file of each handler's BinaryName, as containerd sees it",
			Why: "the runtime says fork/exec …: no such file, or the file is missing, empty or not executable on the node. A handler that nobody " +
				"asks for is only told of",
			Explains: noGPUs(),
			Sources:  []string{"nvidia-docker#686", "nvidia-container-toolkit#230", "nvidia-container-toolkit#252"},
			Run: func(f *Facts, r *Result) {
				viewAndEvents(f, r, "rt.binary-missing", "what a runtime handler executes is not there",
					func(n *Node, name string) Fix {
						if pods := current(n, Toolkit); len(pods) > 0 {
							return Fix{
								Text: "the toolkit's pod puts its programs into /usr/local/nvidia/toolkit when it starts: start it anew; if the path " +
									"is another one, correct BinaryName in the handler's options",
								Commands: []string{restartPod(pods[0].Namespace, pods[0].Name)},
							}
						}
						return Fix{Text: "install the NVIDIA container toolkit on the node, or correct BinaryName in the handler's options; then restart " +
							unitOf(n)}
					})
			},
		},
		{
			ID: "rt.runtime-type", Layer: LayerRuntime, Needs: []Need{NeedAPI, NeedNode},
			Title:    "a runtime handler has a type for which there is no shim",
			Reads:    "events FailedCreatePodSandBox; the shim of each handler's runtime_type in containerd's PATH",
			Why:      "the runtime says that the shim is not installed, or it is not on the node",
			Explains: noPods(), Sources: []string{"containerd core/runtime/v2/shim"},
			Run: func(f *Facts, r *Result) {
				viewAndEvents(f, r, "rt.runtime-type", "a runtime handler has a type for which there is no shim",
					func(n *Node, _ string) Fix {
						return Fix{
							Text: `set runtime_type = "io.containerd.runc.v2" for the handler, or install its shim; then restart ` +
								unitOf(n),
						}
					})
			},
		},
		{
			ID: "rt.cgroup-driver", Layer: LayerRuntime, Needs: []Need{NeedAPI, NeedNode},
			Title: "a runtime handler has another cgroup driver than the others",
			Reads: "events FailedCreatePodSandBox; SystemdCgroup of each handler that runc runs, the kubelet's cgroupDriver",
			Why: "SystemdCgroup of a handler that pods ask for is not that of the default handler: its pods fail with `expected cgroupsPath to be of format \"slice:prefix:name\"`, or run where " +
				"systemd takes their limits and their devices away",
			Explains: noGPUs("rt.nvml-unknown-error"),
			Sources:  []string{"nvidia-docker#1788", "containerd docs/cri/config.md"},
			Run: func(f *Facts, r *Result) {
				viewAndEvents(f, r, "rt.cgroup-driver", "a runtime handler has another cgroup driver than the kubelet",
					func(n *Node, _ string) Fix {
						return Fix{Text: "set SystemdCgroup in the handler's options as runc has it, true with cgroupDriver: systemd, and restart the " +
							"runtime"}
					})
			},
		},
		{
			ID: "rt.shim-skew", Layer: LayerRuntime, Needs: []Need{NeedAPI},
			Title: "containerd and its shim are of different releases",
			Reads: "events FailedCreatePodSandBox",
			Why: "containerd cannot speak to the shim that it started: two installations of containerd share a PATH, or one was upgraded and not " +
				"restarted",
			Explains: noPods(), Sources: []string{"containerd 1.7.28 with the shim of 2.3"},
			Run: func(f *Facts, r *Result) {
				viewAndEvents(f, r, "rt.shim-skew", "containerd cannot speak to the shim that it starts",
					func(n *Node, _ string) Fix {
						return Fix{Text: "install containerd and containerd-shim-runc-v2 of the same release, the shim beside the daemon that runs, " +
							"and restart it"}
					})
			},
		},
		{
			ID: "docker.no-gpu-driver", Layer: LayerRuntime, Needs: []Need{NeedAPI},
			Title:    "Docker has no NVIDIA runtime",
			Reads:    "events and states of containers, .status.nodeInfo.containerRuntimeVersion",
			Why:      "Docker says `could not select device driver \"\" with capabilities: [[gpu]]`: the toolkit is not configured for it",
			Explains: noPods(),
			Sources:  []string{"nvidia-docker#1034", "nvidia-docker#1243", "nvidia-docker#1682", "dcgm-exporter#33"},
			Run: func(f *Facts, r *Result) {
				viewAndEvents(f, r, "docker.no-gpu-driver", "Docker has no driver for GPUs",
					func(n *Node, _ string) Fix {
						return Fix{
							Text: "install the NVIDIA container toolkit on the node and configure Docker with it; Docker's snap is not supported",
							Commands: []string{
								onHost(n.Name, "sudo nvidia-ctk runtime configure --runtime=docker"),
								onHost(n.Name, "sudo systemctl restart docker"),
							},
						}
					})
			},
		},
		{
			ID: "rt.sandbox-failed", Layer: LayerRuntime, Needs: []Need{NeedAPI},
			Title:    "the container runtime does not make a pod's sandbox, for a reason that no check knows",
			Reads:    "the newest event FailedCreatePodSandBox of pods that have no sandbox and matter for GPUs",
			Why:      "the text is none of those that other checks know; what explains it is told instead of it",
			Explains: []string{"wl.pod-failing", "dp.not-running", "op.*"},
			Sources:  []string{"kubernetes pkg/kubelet/kuberuntime"},
			Run:      checkSandboxFailed,
		},
	}
}

// viewAndEvents joins what the runtime says about pods with what was read on the node: one finding for each node and
// cause. fix gets what the runtime's words name, empty where only the node was read.
func viewAndEvents(f *Facts, r *Result, id, title string, fix func(n *Node, name string) Fix) {
	r.Lacks(f, "api/events")
	for _, n := range f.Nodes {
		said := f.errorsOn(id, n)
		found := n.runtimeFindings(id)
		for _, v := range found {
			severity := Error
			switch {
			case len(said.errors) > 0:
			case v.Latent:
				severity = Warning
			case !f.matters(n, v.Handlers):
				severity = Info
			}
			r.Add(Finding{
				Object: n.Object(), Severity: severity, Title: v.Title,
				Evidence: append(said.evidence(), quoted(n, v.Quotes)...),
				Pods:     append(said.pods(), f.notReadyWith(n, v)...), Fix: viewFix(n, v, fix(n, said.name)),
			})
		}
		if len(found) > 0 || len(said.errors) == 0 {
			continue
		}
		finding := Finding{
			Object: n.Object(), Title: title, Evidence: said.evidence(), Pods: said.pods(), Fix: fix(n, said.name),
		}
		if said.name != "" && (id == "rt.binary-missing" || id == "rt.runtime-type") {
			finding.Title += ": " + clip(said.name)
		}
		if n.View == nil && n.IsContainerd() {
			finding.Fix.Text += "; this node was not read, doctor can say more about it then"
			finding.Fix.Commands = append([]string{lookAt(n)}, finding.Fix.Commands...)
		}
		r.Add(finding)
	}
}

// viewFix returns the view's own fix where it has one, else the check's.
func viewFix(n *Node, v runtimeview.Finding, fix Fix) Fix {
	fix.Text = cmp.Or(v.Fix, fix.Text)
	if commands := fixCommands(n, v); len(commands) > 0 {
		fix.Commands = commands
	}
	return fix
}

// isOfGPUs reports whether a pod is something that doctor cares for: it asks for GPUs, makes them usable, or has a
// runtime class.
func (f *Facts) isOfGPUs(e startError) bool {
	return f.wantsGPU(e.pod) || ComponentOf(e.pod.Labels, e.pod.Spec) != "" || e.pod.Spec.RuntimeClassName != nil
}

func checkSandboxFailed(f *Facts, r *Result) {
	r.Lacks(f, "api/events")
	for _, n := range f.Nodes {
		for _, e := range f.startErrors()[n] {
			if !e.sandbox || e.id != "" || !f.isOfGPUs(e) {
				continue
			}
			r.Add(Finding{
				Object: PodObject(e.pod), Nodes: []string{n.Name},
				Title: "the container runtime does not make the pod's " +
					"sandbox", Evidence: []Evidence{e.evidence},
				Fix: Fix{
					Text:     "the runtime's own words say why; if they do not help, look into its journal on the node",
					Commands: []string{onHost(n.Name, "sudo journalctl -u %s -n 50 --no-pager", unitOf(n))},
				},
			})
		}
	}
}

// deviceStrategy returns how the node's device plugin hands out GPUs: envvar, volume-mounts, cdi-annotations, cdi-cri;
// several, separated by commas. It is not known where there is no plugin of NVIDIA's, or where a file may say it.
func (f *Facts) deviceStrategy(n *Node) (strategy string, source Evidence, known bool) {
	for _, pod := range current(n, DevicePlugin) {
		for _, c := range pod.Spec.Containers {
			// The image of the plugin has feature discovery in it, too.
			if !strings.Contains(c.Image, "device-plugin") || strings.Contains(c.Image, "gke") ||
				strings.Contains(pod.Labels["app"]+pod.Name+c.Name, "feature-discovery") {
				continue
			}
			place := "container " + c.Name
			if values := envOf(c.Env, "DEVICE_LIST_STRATEGY"); len(values) > 0 {
				return values[0], fieldEvidence(PodObject(pod), place+" .env", "DEVICE_LIST_STRATEGY=%s", values[0]),
					true
			}
			for _, arg := range slices.Concat(c.Command, c.Args) {
				if value, ok := strings.CutPrefix(arg, "--device-list-strategy="); ok {
					return value, fieldEvidence(PodObject(pod), place+" .args", "%s", arg), true
				}
			}
			byFile := len(envOf(c.Env, "CONFIG_FILE")) > 0 ||
				slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--config-file") })
			return "envvar", fieldEvidence(PodObject(pod), place+" .env", "no DEVICE_LIST_STRATEGY, so it is envvar"),
				!byFile
		}
	}
	return "", Evidence{}, false
}

// onlyCDI reports whether GPUs come to the node's pods by CDI and in no other way, so that the runtime must know it;
// and who says so.
func (f *Facts) onlyCDI(n *Node) (Evidence, bool) {
	if strategy, source, known := f.deviceStrategy(n); known &&
		strings.Trim(strings.ReplaceAll(strategy, "cdi-cri", ""), ", ") == "" {
		return source, true
	}
	for _, pod := range current(n, DRADriver) {
		return fieldEvidence(PodObject(pod), ".spec.nodeName", "%s runs the DRA driver, which hands out GPUs by CDI",
			n.Name), true
	}
	return Evidence{}, false
}

func (f *Facts) usesNRI() bool {
	p, ok := clusterPolicy(f)
	return ok && policyBool(p, "spec", "cdi", "nriPluginEnabled")
}

// operatorVersion returns that of the GPU operator; empty when it is not known.
func (f *Facts) operatorVersion() string {
	if h, ok := releaseOf(f, chartOperator); ok {
		return versionIn(h.ChartVersion)
	}
	for _, pod := range f.Component(Operator) {
		for _, c := range pod.Spec.Containers {
			if _, tag, ok := strings.Cut(c.Image[strings.LastIndexByte(c.Image, '/')+1:], ":"); ok {
				return versionIn(tag)
			}
		}
	}
	return ""
}

// containerdRelease returns the release of the node's containerd, as it says itself, else as the kubelet tells it;
// known is false where it runs another runtime, or does not answer: then the kubelet says containerd://Unknown.
func containerdRelease(n *Node) (release containerd.Release, known bool) {
	if i := n.instance(); i != nil && i.Name == "containerd" {
		if release, err := containerd.ParseRelease(i.Release); err == nil {
			return release, true
		}
	}
	version, ours := strings.CutPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "containerd://")
	if !ours {
		return release, false
	}
	release, err := containerd.ParseRelease(version)
	return release, err == nil
}
