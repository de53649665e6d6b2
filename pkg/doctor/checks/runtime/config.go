package runtime

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// withoutHandler is the kind (Finding.As) of findings about edited files in which a handler requested by pods is
// missing.
const withoutHandler = "without the handler"

// configurationChecks returns the checks for containerd's configuration, on disk and in memory.
func configurationChecks() []engine.Check {
	const files = "the files that the kubelet's containerd loads, according to the rules of its release, and its " +
		"configuration in memory (CRI Status)"
	return []engine.Check{
		{
			ID: "rt.unparsable", Symptom: engine.Precise,
			Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode}, Reads: files,
			Title: "containerd cannot load its configuration",
			Why: "a file is not valid TOML, an import is missing, or the version is newer than the release supports. " +
				"If containerd is still running with its configuration in memory, rt.edited-not-restarted is " +
				"reported instead, with this reason",
			Explains: noRuntime(), Sources: []string{"containerd config.go", "rke2#3385"},
			Run: func(f *facts.Facts, r *engine.Result) { viewFindings(f, r, "rt.unparsable") },
		},
		{
			ID: "rt.dropin-shadow", Symptom: engine.Precise,
			Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode}, Reads: files,
			Title: "a drop-in replaces containerd's whole CRI configuration",
			Why: "before containerd 2.0, a plugin's table in an imported file replaces the same table in previous " +
				"files, so a drop-in with only the nvidia handler removes runc, and the CRI plugin is not loaded",
			Explains: noRuntime("rt.default-missing"),
			Sources: []string{
				"METR/hawk#273", "k8s-snap#1991", "k8s-device-plugin#1145", "gpu-operator#1323", "kubernetes#100992",
			},
			Run: func(f *facts.Facts, r *engine.Result) { viewFindings(f, r, "rt.dropin-shadow") },
		},
		{
			ID: "rt.default-missing", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode}, Reads: files,
			Title: "the default runtime handler does not exist",
			Why: "default_runtime_name names a handler that no file defines, so the CRI plugin is not loaded, and " +
				"the kubelet has no runtime",
			Explains: noRuntime(), Sources: []string{"containerd pkg/cri/config"},
			Run: func(f *facts.Facts, r *engine.Result) { viewFindings(f, r, "rt.default-missing") },
		},
		{
			ID: "rt.cri-disabled", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode}, Reads: files,
			Title:    "containerd's configuration disables CRI",
			Why:      "disabled_plugins lists the CRI plugin, as does the file in Docker's containerd packages",
			Explains: noRuntime("rt.default-missing"),
			Sources:  []string{"kubernetes#111591", "containerd#4581", "containerd#6964", "gpu-operator#1323"},
			Run:      func(f *facts.Facts, r *engine.Result) { viewFindings(f, r, "rt.cri-disabled") },
		},
		{
			ID: "rt.not-ready", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode},
			Reads: "the runtime's response at the kubelet's endpoint; the reason why doctor's own pod did not start",
			Title: "the container runtime does not respond to the kubelet",
			Why: "nothing listens on the socket, the CRI plugin is not loaded, CRI reports that the runtime is not " +
				"ready, or doctor's own pod did not start on the node for a reason other than its image",
			Explains: noRuntime(), Sources: []string{"kubernetes#111591"}, Run: checkRuntimeNotReady,
		},
		{
			ID: "rt.edited-not-restarted", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode},
			Reads: files,
			Title: "containerd's configuration was edited, but containerd was not restarted",
			Why: "the files differ from containerd's configuration in memory, because containerd does not reload " +
				"files. This is an error if pods request a handler that only the files define. If the files are " +
				"invalid, the fix warns that a restart would break the node",
			Explains: noPods("rt.handler-missing", "rt.binary-missing", "rt.runtime-type", "rt.cgroup-driver",
				"rt.option-misplaced", "rt.dropin-shadow", "rt.default-missing",
				"rt.unparsable", "rt.cri-disabled", "rt.config-not-loaded", "rt.cdi-off"),
			ExplainsAs: map[string][]string{withoutHandler: {"rt.config-not-loaded"}},
			Sources:    []string{"containerd has no reload: cmd/containerd/command/main_unix.go"}, Run: checkEdited,
		},
		{
			ID: "rt.config-not-loaded", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode},
			Reads: "when containerd's process started, and when its files were modified",
			Title: "configuration files are newer than the running containerd",
			Why: "the files and the configuration in memory define the same handlers, so the files may have been " +
				"rewritten without changes; any other change takes effect at the next restart",
			Sources: []string{"containerd has no reload"}, Run: checkNotLoaded,
		},
		{
			ID: "rt.option-misplaced", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode}, Reads: files,
			Title: "an option of a runtime handler is one level too high",
			Why: "containerd ignores BinaryName if it is next to runtime_type instead of under options: pods start " +
				"with plain runc and see no GPU",
			Explains: noGPUs(), Sources: []string{"containerd: Ignoring unknown key in TOML for plugin"},
			Run: func(f *facts.Facts, r *engine.Result) { viewFindings(f, r, "rt.option-misplaced") },
		},
		{
			ID: "rt.generated-file", Layer: finding.LayerRuntime, From: []string{"api/pods"},
			Needs: []engine.Need{engine.NeedAPI, engine.NeedNode, engine.NeedLogs},
			Title: "the toolkit is configured to edit a template, or a file that another program regenerates",
			Reads: "the settings and log of the toolkit DaemonSet, and the first lines of the file that the toolkit " +
				"edits",
			Why: "k3s, rke2, k0s, microk8s and others regenerate containerd's configuration at each start; a " +
				"template is not TOML, so the toolkit cannot edit it",
			Explains: noPods("rt.handler-missing"),
			Sources:  []string{"rke2#3385", "gpu-operator#473", "gpu-operator#992", "k0s#3272"}, Run: checkGenerated,
		},
		{
			ID: "rt.gke-config-source", Layer: finding.LayerRuntime, From: []string{"api/pods"},
			Needs: []engine.Need{engine.NeedAPI},
			Title: "toolkit 1.18.0 reads the wrong configuration on GKE",
			Reads: "the toolkit's image and variables on GKE nodes",
			Why: "unless RUNTIME_CONFIG_SOURCE=file is set, toolkit 1.18.0 reads the configuration from `containerd " +
				"config dump`, which on GKE 1.33 and later does not show the configuration of the kubelet's containerd",
			Explains: noPods("rt.handler-missing"), Sources: []string{"cloud-native-docs#312"}, Run: checkGKESource,
		},
	}
}

// checkNotStarted reports nodes on which this tool's debug pod did not start, because other pods may not start there
// either.
func checkNotStarted(f *facts.Facts, r *engine.Result) {
	for _, m := range f.Snapshot.Missing {
		name, ofNode := strings.CutPrefix(m.What, "nodes/")
		n := f.Node(name)
		if !ofNode || m.NotStarted == "" || n == nil {
			continue
		}
		issue := finding.Finding{
			Object: n.Object(), Severity: finding.Warning, Confidence: finding.Possible,
			Title: "pods do not start on the node: doctor's own pod did not start there",
			Evidence: []finding.Evidence{
				{Source: "pod of kubectl gpu-fault doctor on " + n.Object().String(), Text: words.Clip(m.NotStarted)},
			},
			Fix: finding.Fix{
				Text: fmt.Sprintf(
					"Find out why %s and the kubelet do not start pods on the node. Nothing else could be read from "+
						"the node.",
					n.RuntimeUnit(),
				),
				Commands: []string{
					shell.Command("kubectl describe node %s", n.Name),
					shell.OnHost(n.Name, "sudo journalctl -u %s -n 50 --no-pager", n.RuntimeUnit()),
					shell.OnHost(n.Name, "sudo systemctl status %s", n.RuntimeUnit()),
				},
			},
		}
		if words.ContainsAny(m.NotStarted, []string{
			"FailedCreatePodSandBox", "runtime.v1.RuntimeService", "code = Unavailable", "container runtime is down",
			"containerd.sock", "crio.sock",
		}) {
			issue.Severity, issue.Confidence = finding.Error, finding.Likely
		}
		r.Add(issue)
	}
}

func checkRuntimeNotReady(f *facts.Facts, r *engine.Result) {
	checkNotStarted(f, r)
	eachRuntime(r, f, func(n *facts.Node) {
		for _, found := range runtimeFindings(n, "rt.not-ready") {
			unit := instance(n).UnitName()
			r.Add(finding.Finding{
				Object: n.Object(), Title: found.Title, Evidence: quoted(n, found.Quotes),
				Fix: finding.Fix{
					Text: fmt.Sprintf(
						"find out why %s is not serving the CRI on the node, and start it; until it runs, no pod can "+
							"start",
						unit,
					),
					Commands: []string{
						shell.OnHost(n.Name, "sudo journalctl -u %s -n 50 --no-pager", unit),
						shell.OnHost(n.Name, "sudo systemctl restart %s", unit),
					},
				},
			})
		}
	})
}

// checkEdited reports configuration files that are not in effect: files whose handlers differ from those in memory, and
// files with which containerd or a handler would not work.
func checkEdited(f *facts.Facts, r *engine.Result) {
	eachRuntime(r, f, func(n *facts.Node) {
		i := instance(n)
		if !i.Ready {
			return // no working configuration in memory
		}
		var latent []runtimeview.Finding
		for _, found := range n.View.Findings {
			if found.Latent && !readAll(n) {
				latent = append(latent, found)
			}
		}
		edited := runtimeFindings(n, "rt.edited-not-restarted")
		if len(edited) == 0 && len(latent) == 0 {
			return
		}
		issue := finding.Finding{
			Object: n.Object(), Severity: finding.Warning,
			Title: "containerd's configuration was edited after containerd had read it, so the edits are not in effect",
			Fix: finding.Fix{
				Text:     fmt.Sprintf("restart %s to load %s", i.UnitName(), i.ConfigPath),
				Commands: []string{restartUnit(n)},
			},
		}
		generated := n.Distribution == facts.MicroK8s && strings.HasSuffix(i.ConfigPath, "/containerd.toml")
		if generated {
			issue.Title = "the generated containerd.toml of MicroK8s was edited, and containerd does not use the edits"
			issue.Fix = finding.Fix{
				Text: "put the settings in containerd-template.toml in the same directory, or enable the nvidia " +
					"addon: MicroK8s regenerates containerd.toml from the template whenever its containerd starts",
				Commands: []string{shell.OnHost(n.Name, "sudo snap restart microk8s.daemon-containerd")},
			}
		}
		lacking := lacking(f, n)
		for handler := range lacking {
			if h, known := i.Handler(handler); !known || h.OnDisk == nil && h.InMemory == nil {
				// A restart does not help if the files also lack the handler.
				issue.As, issue.Confidence = withoutHandler, finding.Likely
				issue.Fix.Text = fmt.Sprintf("the file was rewritten and lacks the handler %s, which pods request. "+
					"First add the handler (the toolkit pod does so when it starts), and compare the file with the "+
					"configuration in memory before you restart %s",
					handler, i.UnitName())
				issue.Fix.Commands = nil
			}
		}
		for _, found := range edited {
			issue.Evidence = append(issue.Evidence, quoted(n, found.Quotes)...)
			for _, handler := range found.Handlers {
				if h, _ := i.Handler(handler); h.InMemory == nil && lacking[handler] != nil {
					issue.Severity = finding.Error
				}
				if h, _ := i.Handler(handler); h.OnDisk == nil && matters(f, n, []string{handler}) {
					issue.Fix =
						finding.Fix{Text: fmt.Sprintf("the files no longer contain the handler %s, which pods "+
							"request: add it back to %s before anything restarts "+
							"%s", handler, i.ConfigPath, i.UnitName())}
				}
			}
		}
		for _, found := range latent {
			issue.Evidence = append(issue.Evidence, quoted(n, found.Quotes)...)
			if generated {
				continue
			}
			issue.Fix =
				finding.Fix{Text: fmt.Sprintf("do not restart %s until the files are fixed: a restart would break "+
					"the runtime "+
					"(%s); %s", i.UnitName(), found.ID, found.Fix)}
		}
		r.Add(issue)
	})
}

// loadMargin is the minimum time by which a file must be newer than the containerd process to count as not loaded. It
// allows for an imprecise clock and for the time between fork and reading the file.
const loadMargin = 5 * time.Second

func checkNotLoaded(f *facts.Facts, r *engine.Result) {
	eachRuntime(r, f, func(n *facts.Node) {
		i, started := instance(n), runtimeStarted(n)
		if started.IsZero() || i.Name != "containerd" || len(runtimeFindings(n, "rt.edited-not-restarted")) > 0 {
			return
		}
		var young []finding.Evidence
		for _, file := range i.Files {
			if file.Modified.After(started.Add(loadMargin)) {
				young = append(young, finding.Evidence{
					Source: "nodes/" + n.Name + ": " + file.Path, Time: file.Modified,
					Text: "modified " + file.Modified.UTC().Format(time.RFC3339),
				})
			}
		}
		if len(young) == 0 {
			return
		}
		r.Add(finding.Finding{
			Object: n.Object(), Severity: finding.Info, Confidence: finding.Possible,
			Title: "configuration files are newer than the running containerd",
			Evidence: append(young[:min(len(young), 3)], finding.Evidence{
				Source: "nodes/" + n.Name + ": process of " + i.UnitName(), Time: started,
				Text: "started " + started.UTC().Format(time.RFC3339),
			}),
			Fix: finding.Fix{Text: "if anything other than the handlers was changed, restart " + i.UnitName() +
				" at a convenient time"},
		})
	})
}

func checkGenerated(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		for _, pod := range facts.Current(n, facts.Toolkit) {
			if e, ok := grepAll(f, pod, "keys cannot contain {"); ok {
				r.Add(finding.Finding{
					Object: n.Object(), Title: "the toolkit is configured to edit a template that is not TOML",
					Evidence: []finding.Evidence{e}, Fix: toolkitFix(f, n),
				})
			}
		}
		if n.View == nil {
			continue
		}
		for _, t := range n.View.Toolkits {
			told := t.Config()
			if !t.MatchesNode || len(facts.Current(n, facts.Toolkit)) == 0 {
				continue
			}
			i := instance(n)
			if i == nil || len(runtimeFindings(n, "rt.wrong-instance")) > 0 {
				continue
			}
			for _, file := range i.Files {
				if file.Path != told || !strings.Contains(file.NotEdited, "regenerate") || i.HasGPUHandler() {
					continue
				}
				r.Add(finding.Finding{
					Object: n.Object(), Severity: finding.Warning,
					Title: "the toolkit edits a file that is regenerated at each start, so its handlers are lost",
					Evidence: []finding.Evidence{
						finding.FieldEvidence(finding.Object{Kind: "DaemonSet", Namespace: t.Namespace, Name: t.Name},
							"the configuration that it edits", "%s", told),
						{Source: "nodes/" + n.Name + ": " + file.Path, Text: file.NotEdited},
					},
					Fix: toolkitFix(f, n),
				})
			}
		}
	}
}

func checkGKESource(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		if n.Distribution != facts.GKE || !versionAtLeast(n.Status.NodeInfo.KubeletVersion, 1, 33) {
			continue
		}
		for _, pod := range facts.Current(n, facts.Toolkit) {
			for _, c := range pod.Spec.Containers {
				if !strings.Contains(c.Image, "container-toolkit:v1.18.0") || podutils.IsPodReady(pod) ||
					facts.AwaitsDriver(n) {
					continue
				}
				told := slices.ContainsFunc(facts.EnvOf(c.Env, "RUNTIME_CONFIG_SOURCE"),
					func(value string) bool { return strings.HasPrefix(value, "file") })
				if told {
					continue
				}
				r.Add(finding.Finding{
					Object: n.Object(), Confidence: finding.Likely,
					Title: "toolkit 1.18.0 does not read the configuration of the kubelet's containerd on GKE",
					Evidence: []finding.Evidence{
						finding.FieldEvidence(facts.PodObject(pod), "container "+c.Name+" .image", "%s", c.Image),
						finding.FieldEvidence(n.Object(), ".status.nodeInfo.kubeletVersion", "%s",
							n.Status.NodeInfo.KubeletVersion),
					},
					Fix: toolkitEnvFix(f, []runtimeview.Setting{{Name: "RUNTIME_CONFIG_SOURCE", Value: "file"}},
						"make the toolkit read the file"),
				})
			}
		}
	}
}

// versionAtLeast reports whether a version such as v1.33.2-gke.100 is major.minor or later. It returns false for an
// invalid version.
func versionAtLeast(version string, major, minor int) bool {
	var x, y int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &x, &y); n != 2 {
		return false
	}
	return cmp.Or(cmp.Compare(x, major), cmp.Compare(y, minor)) >= 0
}
