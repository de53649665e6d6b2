package runtime

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/containerd"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// startChecks returns the checks for the programs that the runtime executes to start a pod.
func startChecks() []engine.Check {
	return []engine.Check{
		{
			ID: "rt.binary-missing", Symptom: engine.Precise,
			Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
			Title: "the executable of a runtime handler is missing",
			Reads: "FailedCreatePodSandBox events; the file that each handler's BinaryName names, as containerd sees " +
				"it",
			Why: "the runtime reports fork/exec …: no such file, or the file is missing, empty or not executable on " +
				"the node. A finding about a handler that no pod requests is Info",
			Explains: noGPUs("node.not-ready", "node.condition"),
			Sources:  []string{"nvidia-docker#686", "nvidia-container-toolkit#230", "nvidia-container-toolkit#252"},
			Run: func(f *facts.Facts, r *engine.Result) {
				viewAndEvents(f, r, "rt.binary-missing", "the executable of a runtime handler is missing",
					func(n *facts.Node, name string) finding.Fix {
						switch pods := facts.Current(n, facts.Toolkit); {
						case facts.AwaitsDriver(n):
							return finding.Fix{
								Text: "the toolkit pod installs its programs once the node's driver is ready, and is " +
									"waiting for the driver: find out why the driver is not ready",
							}
						case len(pods) > 0:
							return finding.Fix{
								Text: "restart the toolkit pod, which installs its programs in " +
									"/usr/local/nvidia/toolkit at startup; if the path differs, correct BinaryName " +
									"in the handler's options",
								Commands: []string{facts.RestartPod(pods[0].Namespace, pods[0].Name)},
							}
						}
						switch {
						case strings.HasPrefix(name, "/usr/local/nvidia/toolkit/"):
							return finding.Fix{
								Text: "the GPU operator's toolkit installs this program, but no toolkit pod is on " +
									"the node: let the operator run one there (toolkit.enabled=true, and no node " +
									"label nvidia.com/gpu.deploy.container-toolkit=false). If the operator was " +
									"removed, remove its handlers from the runtime's configuration, and restart " +
									unitOf(n),
							}
						case slices.Contains([]facts.Distribution{facts.EKS, facts.AKS, facts.GKE}, n.Distribution):
							return finding.Fix{
								Text: "the node's image does not include the NVIDIA container toolkit, although the " +
									"runtime is configured for it: choose the image variant for NVIDIA GPUs in the " +
									"node pool or NodeClass (EKS: an AMI with NVIDIA in its name), and replace the " +
									"node",
								Commands: []string{shell.Command("kubectl get node %s -o wide --show-labels", n.Name)},
							}
						}
						return finding.Fix{
							Text: "install the NVIDIA container toolkit on the node, or correct BinaryName in the handler's options; then restart " +
								unitOf(
									n,
								),
						}
					})
			},
		},
		{
			ID: "rt.runtime-type", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
			Title:    "the shim for a runtime handler's type is not installed",
			Reads:    "FailedCreatePodSandBox events; the shim for each handler's runtime_type in containerd's PATH",
			Why:      "the runtime reports that the shim is not installed, or the shim is missing on the node",
			Explains: noPods(), Sources: []string{"containerd core/runtime/v2/shim"},
			Run: func(f *facts.Facts, r *engine.Result) {
				viewAndEvents(f, r, "rt.runtime-type", "the shim for a runtime handler's type is not installed",
					func(n *facts.Node, name string) finding.Fix {
						if name != "" && !strings.Contains(name, "runc") && !strings.Contains(name, "nvidia") {
							return finding.Fix{
								Text: "install the shim for the runtime " + words.Clip(name) + " on the node, or " +
									"remove runtimeClassName from pods that do not need this runtime. With runc " +
									"instead, the pods would run without the runtime's isolation",
							}
						}
						return finding.Fix{
							Text: `set runtime_type = "io.containerd.runc.v2" for the handler, or install its shim; then restart ` +
								unitOf(
									n,
								),
						}
					})
			},
		},
		{
			ID: "rt.cgroup-driver", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
			Title: "a runtime handler uses a different cgroup driver from the other handlers",
			Reads: "FailedCreatePodSandBox events; SystemdCgroup of each handler that uses runc, the kubelet's " +
				"cgroupDriver",
			Why: "SystemdCgroup of a handler that pods request differs from that of the default handler: these pods " +
				"fail with `expected cgroupsPath to be of format \"slice:prefix:name\"`, or systemd removes their " +
				"limits and devices. If all handlers differ from the kubelet, this is reported only if the sandboxes " +
				"of several pods on the node are recreated again and again",
			Explains: noGPUs("rt.nvml-unknown-error"),
			Sources:  []string{"nvidia-docker#1788", "containerd docs/cri/config.md"},
			Run: func(f *facts.Facts, r *engine.Result) {
				viewAndEvents(f, r, "rt.cgroup-driver",
					"a runtime handler uses a different cgroup driver from the kubelet",
					func(n *facts.Node, _ string) finding.Fix {
						return finding.Fix{
							Text: "set SystemdCgroup in the handler's options to the same value as for runc (true if " +
								"the kubelet uses cgroupDriver: systemd), and restart the runtime",
						}
					})
				checkSandboxesChange(f, r)
			},
		},
		{
			ID: "rt.shim-skew", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedAPI},
			Title: "containerd and its shim are from different releases",
			Reads: "FailedCreatePodSandBox events",
			Why: "containerd cannot communicate with the shim that it started, because two containerd installations " +
				"share a PATH, or because containerd was upgraded but not restarted",
			Explains: noPods(), Sources: []string{"containerd 1.7.28 with the shim from 2.3"},
			Run: func(f *facts.Facts, r *engine.Result) {
				viewAndEvents(f, r, "rt.shim-skew", "containerd cannot communicate with the shim that it starts",
					func(n *facts.Node, _ string) finding.Fix {
						return finding.Fix{Text: "install containerd and containerd-shim-runc-v2 from the same " +
							"release, with the shim in the same directory as the running daemon's binary, and " +
							"restart containerd"}
					})
			},
		},
		{
			ID: "docker.no-gpu-driver", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedAPI},
			Title: "Docker has no NVIDIA runtime",
			Reads: "events and container states, .status.nodeInfo.containerRuntimeVersion",
			Why: "Docker reports `could not select device driver \"\" with capabilities: [[gpu]]`: the toolkit " +
				"is not configured for Docker",
			Explains: noPods(),
			Sources:  []string{"nvidia-docker#1034", "nvidia-docker#1243", "nvidia-docker#1682", "dcgm-exporter#33"},
			Run: func(f *facts.Facts, r *engine.Result) {
				viewAndEvents(f, r, "docker.no-gpu-driver", "Docker has no device driver for GPUs",
					func(n *facts.Node, _ string) finding.Fix {
						return finding.Fix{
							Text: "install the NVIDIA container toolkit on the node and use it to configure Docker; " +
								"the Docker snap is not supported. First drain the node: without live-restore, a " +
								"restart of Docker terminates its containers",
							Commands: []string{
								shell.OnHost(n.Name, "sudo nvidia-ctk runtime configure --runtime=docker"),
								shell.OnHost(n.Name, "sudo systemctl restart docker"),
							},
						}
					})
			},
		},
		{
			ID: "rt.sandbox-failed", Symptom: engine.Unexplained, Layer: finding.LayerRuntime,
			Needs: []engine.Need{engine.NeedAPI},
			Title: "the container runtime cannot create a pod's sandbox, for a reason that no check recognizes",
			Reads: "the newest FailedCreatePodSandBox event of GPU-related pods that have no sandbox",
			Why: "no other check recognizes the message; if another finding explains the failure, that finding is " +
				"reported as the root cause",
			Explains: []string{"wl.pod-failing", "dp.not-running", "op.*"},
			Sources:  []string{"kubernetes pkg/kubelet/kuberuntime"},
			Run:      checkSandboxFailed,
		},
	}
}

// viewAndEvents combines the runtime's errors about pods with the runtime view, and reports one finding for each node
// and cause. fix is called with the name in the error, or with an empty string if there is no error.
func viewAndEvents(
	f *facts.Facts, r *engine.Result, id, title string, fix func(n *facts.Node, name string) finding.Fix,
) {
	r.Lacks(f, "api/events")
	for _, n := range f.Nodes {
		said := errorsOn(f, id, n)
		found := runtimeFindings(n, id)
		for _, v := range found {
			severity := finding.Error
			switch {
			case len(said.errors) > 0:
			case v.Latent:
				severity = finding.Warning
			case !matters(f, n, v.Handlers):
				severity = finding.Info
			}
			r.Add(finding.Finding{
				Object: n.Object(), Severity: severity, Title: v.Title,
				Evidence: append(said.evidence(), quoted(n, v.Quotes)...),
				Pods:     append(said.pods(), notReadyWith(f, n, v)...), Fix: viewFix(n, v, fix(n, said.name)),
			})
		}
		if len(found) > 0 || len(said.errors) == 0 {
			continue
		}
		issue := finding.Finding{
			Object: n.Object(), Title: title, Evidence: said.evidence(), Pods: said.pods(), Fix: fix(n, said.name),
		}
		if said.name != "" && (id == "rt.binary-missing" || id == "rt.runtime-type") {
			issue.Title += ": " + words.Clip(said.name)
		}
		if n.View == nil && n.IsContainerd() {
			issue.Fix.Text += "; this node was not read: let doctor read it for details"
			issue.Fix.Commands = append([]string{lookAt(n)}, issue.Fix.Commands...)
		}
		r.Add(issue)
	}
}

// viewFix returns the fix in the runtime view's finding. If there is none, it returns the check's fix.
func viewFix(n *facts.Node, v runtimeview.Finding, fix finding.Fix) finding.Fix {
	fix.Text = cmp.Or(v.Fix, fix.Text)
	if commands := fixCommands(n, v); len(commands) > 0 {
		fix.Commands = commands
	}
	return fix
}

// isOfGPUs reports whether the error's pod requests GPUs, is a GPU component, or has a RuntimeClass.
func isOfGPUs(f *facts.Facts, e startError) bool {
	return f.AsksForGPU(e.pod) || facts.ComponentOf(e.pod.Labels, &e.pod.Spec) != "" ||
		e.pod.Spec.RuntimeClassName != nil
}

func checkSandboxFailed(f *facts.Facts, r *engine.Result) {
	r.Lacks(f, "api/events")
	for _, n := range f.Nodes {
		for _, e := range startErrors(f)[n] {
			if !e.sandbox || e.id != "" || !isOfGPUs(f, e) {
				continue
			}
			r.Add(finding.Finding{
				Object: facts.PodObject(e.pod), Nodes: []string{n.Name},
				Title:    "the container runtime cannot create the pod's sandbox",
				Evidence: []finding.Evidence{e.evidence},
				Fix: finding.Fix{
					Text: "see the runtime's error message for the reason; if the message does not help, check the " +
						"runtime's journal on the node",
					Commands: []string{shell.OnHost(n.Name, "sudo journalctl -u %s -n 50 --no-pager", unitOf(n))},
				},
			})
		}
	}
}

// onlyCDI reports whether the node's pods get GPUs only through CDI, which the runtime must then support. It also
// returns the evidence.
func onlyCDI(f *facts.Facts, n *facts.Node) (finding.Evidence, bool) {
	if strategy, source, known := facts.DeviceStrategy(f, n); known &&
		strings.Trim(strings.ReplaceAll(strategy, "cdi-cri", ""), ", ") == "" {
		return source, true
	}
	for _, pod := range facts.Current(n, facts.DRADriver) {
		return finding.FieldEvidence(facts.PodObject(pod), ".spec.nodeName",
			"%s runs the DRA driver, which provides GPUs through CDI",
			n.Name), true
	}
	return finding.Evidence{}, false
}

func usesNRI(f *facts.Facts) bool {
	p, ok := facts.ClusterPolicy(f)
	return ok && policyBool(p, "spec", "cdi", "nriPluginEnabled")
}

// operatorVersion returns the version of the GPU operator, or an empty string if unknown.
func operatorVersion(f *facts.Facts) string {
	if h, ok := facts.ReleaseOf(f, facts.ChartOperator); ok {
		return versionIn(h.ChartVersion)
	}
	for _, pod := range f.Component(facts.Operator) {
		for _, c := range pod.Spec.Containers {
			if _, tag, ok := strings.Cut(c.Image[strings.LastIndexByte(c.Image, '/')+1:], ":"); ok {
				return versionIn(tag)
			}
		}
	}
	return ""
}

// containerdRelease returns the release of the node's containerd, as reported by containerd itself or else by the
// kubelet. known is false if the node uses another runtime, or if containerd does not respond and the kubelet reports
// containerd://Unknown.
func containerdRelease(n *facts.Node) (release containerd.Release, known bool) {
	if i := instance(n); i != nil && i.Name == "containerd" {
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
