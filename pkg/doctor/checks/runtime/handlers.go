package runtime

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// handlerChecks returns the checks for RuntimeClasses and the runtime handlers to which they refer.
func handlerChecks() []engine.Check {
	return []engine.Check{
		{
			ID: "rt.wrong-instance", Layer: finding.LayerRuntime,
			Needs: []engine.Need{engine.NeedNode, engine.NeedLogs},
			Title: "the NVIDIA runtime is configured in a containerd that the kubelet does not use",
			Reads: "the kubelet's runtime endpoint, the process that listens on the endpoint, the configuration that " +
				"this process loads, all other containerd instances and their files, the settings and log of the " +
				"toolkit DaemonSet",
			Why: "a GPU handler is defined only in files that the kubelet's containerd does not load, or the toolkit " +
				"edits such files. This is an error if pods request a missing handler; pods that get their GPUs " +
				"through CDI, a hook or NRI need no handler",
			Explains: noPods("rt.handler-missing", "rt.restart-loop"),
			Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html#specifying-configuration-options-for-containerd",
			Sources: []string{
				"gpu-operator#1109", "gpu-operator#1323", "gpu-operator#176", "gpu-operator#992",
				"nvidia-container-toolkit#982", "k8s-snap#1991", "rke2#3385",
			},
			Run: checkWrongInstance,
		},
		{
			ID: "rt.handler-missing", Layer: finding.LayerRuntime,
			Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
			Title: "pods request a runtime handler that the node's runtime does not have",
			Reads: "FailedCreatePodSandBox events, the RuntimeClasses of each node's pods, .status.runtimeHandlers, " +
				"the handlers that containerd has in memory (CRI Status), and toolkit.enabled of the ClusterPolicy",
			Why: "the runtime reports this, or the RuntimeClass of a pod on the node names a handler that is not in " +
				"memory. A handler that no pod requests may be missing: GKE, CRI-O with a hook, CDI, NRI and Talos " +
				"have none. Before containerd 2.0, .status.runtimeHandlers is empty and proves nothing. While the " +
				"GPU operator's toolkit is waiting for a driver that is not ready, the driver is the cause",
			Explains: noPods(),
			ExplainsAs: map[string][]string{awaitsDriver: slices.DeleteFunc(noPods(),
				func(id string) bool { return id == "op.*" })},
			Sources: []string{
				"gpu-operator#413", "gpu-operator#432", "gpu-operator#549", "gpu-operator#730", "gpu-operator#1298",
				"NVSentinel#442", "aicr#1680",
			},
			Run: checkHandlerMissing,
		},
		{
			ID: "rc.handler-mismatch", Layer: finding.LayerCluster, Needs: []engine.Need{engine.NeedAPI},
			Title: "pods use a RuntimeClass that does not exist, or whose handler has another name on the nodes",
			Reads: "RuntimeClasses, runtimeClassName of pods and DaemonSets, FailedCreate events, and the nodes' " +
				"handlers",
			Why: "a RuntimeClass in use does not exist, or its handler is nvidia but the nodes have " +
				"nvidia-container-runtime, as on AKS and microk8s (or vice versa)",
			Explains: noPods("rt.handler-missing"),
			Sources:  []string{"AgentBaker", "microk8s", "kubernetes pkg/kubelet/runtimeclass"},
			Run:      checkRuntimeClasses,
		},
		{
			ID: "rt.version-skew-ids", Layer: finding.LayerRuntime, Needs: []engine.Need{engine.NeedNode},
			Title: "GPU handlers are configured under a plugin ID that this release of containerd does not read",
			Reads: "containerd's files and release",
			Why: "containerd 1.x reads handlers only under io.containerd.grpc.v1.cri; in version 3 files, 2.x reads " +
				"them under io.containerd.cri.v1.runtime. Handlers elsewhere are silently ignored",
			Explains: noPods("rt.handler-missing"),
			Sources:  []string{"containerd config.go", "AgentBaker containerd_v2.toml.gtpl"},
			Run:      func(f *facts.Facts, r *engine.Result) { viewFindings(f, r, "rt.version-skew-ids") },
		},
		{
			ID: "rt.strategy-refused", Layer: finding.LayerRuntime, From: []string{"api/pods"},
			Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
			Title: "the container toolkit does not accept the way in which the device plugin passes GPUs to containers",
			Reads: "how the device plugin provides devices (DEVICE_LIST_STRATEGY), the toolkit's " +
				"accept-nvidia-visible-devices-* settings on the node, pods that request GPUs and their " +
				"securityContext",
			Why: "the plugin passes GPUs in the NVIDIA_VISIBLE_DEVICES variable or through volume mounts, but the " +
				"toolkit is configured to ignore that method. The pods run, but see no GPU",
			Explains: []string{
				"wl.pod-failing", "wl.cpu-mode", "wl.cuda-error", "wl.cuda-vs-driver", "wl.idle-holder", "wl.message",
			},
			Sources: []string{"nvidia-container-toolkit#1089", "k8s-device-plugin#1011"},
			Run:     checkStrategyRefused,
		},
		{
			ID: "wl.runtimeclass-unset", Layer: finding.LayerWorkload, From: []string{"api/pods"},
			Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
			Title: "a GPU pod has no RuntimeClass, and the node's default runtime provides no GPUs",
			Reads: "pods that request GPUs, the default handler in memory, how the device plugin provides devices " +
				"(DEVICE_LIST_STRATEGY), logs",
			Why: "with the envvar strategy, only the NVIDIA runtime gives a container its GPUs, and a pod without a " +
				"RuntimeClass gets the default runtime. This is not checked if devices are provided through CDI or a " +
				"hook",
			Explains: []string{"wl.pod-failing", "wl.cpu-mode", "wl.cuda-error", "wl.cuda-vs-driver"},
			Sources: []string{
				"nvidia-container-runtime#147", "k0s#1769", "k8s-device-plugin#406", "gpu-feature-discovery#36",
			},
			Run: checkRuntimeClassUnset,
		},
	}
}

// wanted returns the handlers that pods on a node request through a RuntimeClass, and the pods for each handler.
func wanted(f *facts.Facts, n *facts.Node) map[string][]*corev1.Pod {
	all := map[string][]*corev1.Pod{}
	for _, pod := range n.Pods {
		if facts.Ended(pod) || pod.Spec.RuntimeClassName == nil || pod.DeletionTimestamp != nil {
			continue
		}
		if class := f.RuntimeClass(*pod.Spec.RuntimeClassName); class != nil && class.Handler != "runc" {
			all[class.Handler] = append(all[class.Handler], pod)
		}
	}
	return all
}

// inMemory returns the handlers that the node's runtime has loaded, and the source of this information. known is false
// if the handlers are unknown.
func inMemory(n *facts.Node) (handlers []string, source string, known bool) {
	if i := instance(n); i != nil && i.ShowsMemory() {
		for _, h := range i.Handlers {
			if h.InMemory != nil {
				handlers = append(handlers, h.Name)
			}
		}
		return handlers, "nodes/" + n.Name + ": containerd's configuration in memory (CRI Status), handlers", true
	}
	for _, h := range n.Status.RuntimeHandlers {
		handlers = append(handlers, h.Name)
	}
	return handlers, n.Object().String() + " .status.runtimeHandlers", len(handlers) > 0
}

// lacking returns the handlers that pods on a node request but the node's runtime does not have, and the pods for each
// handler.
func lacking(f *facts.Facts, n *facts.Node) map[string][]*corev1.Pod {
	all := map[string][]*corev1.Pod{}
	has, _, known := inMemory(n)
	if known {
		for handler, pods := range wanted(f, n) {
			if !slices.Contains(has, handler) {
				all[handler] = pods
			}
		}
	}
	for _, g := range errorsOf(f, "rt.handler-missing", n) {
		if all[g.name] == nil && !slices.Contains(has, g.name) { // the runtime's list is more recent than the events
			for _, e := range g.errors {
				all[g.name] = append(all[g.name], e.pod)
			}
		}
	}
	return all
}

func checkHandlerMissing(f *facts.Facts, r *engine.Result) {
	r.Lacks(f, "api/events")
	for _, n := range f.Nodes {
		if strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "docker:") {
			continue // never has handlers; a signature of the pods' messages says so
		}
		lacking := lacking(f, n)
		if _, _, known := inMemory(n); !known && len(lacking) == 0 && n.IsGPUNode &&
			len(wanted(f, n)) > 0 {
			r.Unknown(n.Object(), "the runtime's handlers are unknown: %s",
				cmp.Or(hostProblem(f, n), "the runtime does not report them"))
		}
		for _, handler := range slices.Sorted(maps.Keys(lacking)) {
			r.Add(handlerMissing(f, n, handler, lacking[handler]))
		}
	}
}

// hostProblem returns the reason why a node's runtime was not read.
func hostProblem(f *facts.Facts, n *facts.Node) string {
	if n.View != nil {
		return n.View.Problem
	}
	return f.WhyNoHost(n.Name)
}

// awaitsDriver is the kind (Finding.As) of findings about a node whose toolkit is waiting for the operator's driver
// before it adds the handler.
const awaitsDriver = "awaits the driver"

func handlerMissing(f *facts.Facts, n *facts.Node, handler string, pods []*corev1.Pod) finding.Finding {
	issue := finding.Finding{
		Object: n.Object(), Fix: handlerFix(f, n, handler),
		Title: fmt.Sprintf("pods request the runtime handler %q, which the node's runtime does not have", handler),
	}
	if facts.AwaitsDriver(n) {
		issue.As = awaitsDriver
	}
	describeNoToolkit(f, n, handler, &issue)
	for _, pod := range pods {
		issue.Pods = append(issue.Pods, pod.Namespace+"/"+pod.Name)
	}
	for _, g := range errorsOf(f, "rt.handler-missing", n) {
		if g.name == handler {
			issue.Evidence = append(issue.Evidence, g.evidence()...)
		}
	}
	if !n.IsGPUNode && !slices.ContainsFunc(pods, f.AsksForGPU) && len(f.GPUNodes) > 0 && isNVIDIAClass(handler) {
		issue.Title = fmt.Sprintf(
			"pods that request no GPU have a RuntimeClass with the handler %q, and are on a node without GPUs",
			handler,
		)
		issue.Fix = finding.Fix{
			Text: "remove runtimeClassName from these pods if they need no GPU; otherwise, request a GPU " +
				"(nvidia.com/gpu), so that the pods are scheduled on a GPU node",
			Commands: facts.EditCommands(pods[0]),
		}
		if strings.HasPrefix(facts.OwnerOf(pods[0]), "daemonset/") {
			issue.Fix.Text = "if the node has no NVIDIA GPU, limit the DaemonSet to GPU nodes with a node selector " +
				"or affinity (in the values of its chart); if it has one, install the NVIDIA container toolkit on " +
				"the node, which adds the handler"
		}
	}
	pod := pods[0]
	if pod.Spec.RuntimeClassName != nil {
		issue.Evidence = append(issue.Evidence,
			finding.FieldEvidence(facts.PodObject(pod), ".spec.runtimeClassName", "%s", *pod.Spec.RuntimeClassName))
		if class := f.RuntimeClass(*pod.Spec.RuntimeClassName); class != nil {
			issue.Evidence = append(issue.Evidence,
				finding.FieldEvidence(
					finding.Object{Kind: "RuntimeClass", Name: class.Name}, ".handler", "%s", class.Handler,
				))
		}
	}
	if has, source, known := inMemory(n); known {
		issue.Evidence = append(
			issue.Evidence, finding.Evidence{Source: source, Text: words.Clip(strings.Join(has, ", "))},
		)
		for _, other := range siblings(handler) {
			if elsewhere, _ := nodesWith(f, handler); elsewhere && slices.Contains(has, other) {
				issue.Fix.Text =
					fmt.Sprintf("the handler is named %s on this node and %s on other nodes: rename the handler on "+
						"this node and keep the RuntimeClass, or create a second RuntimeClass for pods on such "+
						"nodes. Alternatively, add the missing handler: ", other, handler) + issue.Fix.Text
			}
		}
	}
	return issue
}

// describeNoToolkit completes the finding if the GPU operator installs the node's driver but not the toolkit: a node
// whose image has no driver probably has no toolkit either.
func describeNoToolkit(f *facts.Facts, n *facts.Node, handler string, issue *finding.Finding) {
	if !strings.HasPrefix(handler, "nvidia") || !facts.PolicyOff(f, "toolkit") || n.IsCRIO() ||
		len(facts.Current(n, facts.Driver)) == 0 || n.Host != nil && n.Host.Probe.ToolkitVersion != "" {
		return
	}
	policy, _ := facts.ClusterPolicy(f)
	issue.Title = fmt.Sprintf("the node has no runtime handler %q, because the GPU operator is configured not to "+
		"install the container toolkit", handler)
	issue.Evidence = append(issue.Evidence, finding.Evidence{
		Source: "ClusterPolicy " + policy.GetName() + " .spec.toolkit.enabled", Text: "false",
	}, finding.FieldEvidence(n.Object(), "pods", "%s, no container toolkit", facts.Current(n, facts.Driver)[0].Name))
	issue.Fix = finding.Fix{
		Text: "The operator installs the driver on this node, so the node's image probably has no toolkit. Check " +
			"that nvidia-ctk is missing on the node, and set toolkit.enabled=true in the operator's values, so that " +
			"the operator installs the toolkit, which adds the handler. If the node has a toolkit, use that toolkit " +
			"to configure the kubelet's runtime. Do not disable the operator's driver unless the nodes have a " +
			"preinstalled driver.",
		Commands: append([]string{shell.OnHost(n.Name, "nvidia-ctk --version")},
			facts.ChangeOperator(f, "toolkit.enabled", true)...),
	}
}

// handlerFix returns a fix that adds the handler in the way that suits the node's configuration.
func handlerFix(f *facts.Facts, n *facts.Node, handler string) finding.Fix {
	switch i := instance(n); {
	case !isNVIDIAClass(handler):
		return finding.Fix{
			Text: "the handler is not one of NVIDIA's: on the node, install the runtime to which it belongs, or keep " +
				"the pods on nodes that have the handler (scheduling.nodeSelector of the RuntimeClass)",
		}
	case n.IsCRIO():
		return finding.Fix{
			Text: "with CRI-O, the toolkit installs a hook, and pods need no RuntimeClass: remove runtimeClassName " +
				"from the pods, or set CRIO_CONFIG_MODE=config in toolkit.env of the operator's chart to make the " +
				"toolkit add the handler",
		}
	case facts.AwaitsDriver(n):
		pod := facts.Current(n, facts.Toolkit)[0]
		return finding.Fix{
			Text: "the toolkit pod adds the handler once the node's driver is ready, and is waiting for the driver: " +
				"find out why the driver is not ready. Restarting the toolkit does not help",
			Commands: []string{shell.Command("kubectl describe pod %s -n %s", pod.Name, pod.Namespace)},
		}
	case i == nil:
		fix := finding.Fix{
			Text: "this node was not read, so it is unknown whether the handler was never configured, or was " +
				"configured in a containerd other than the kubelet's: let doctor read the node",
			Commands: []string{lookAt(n)},
		}
		if place, ok := runtime(n.Distribution); ok {
			fix.Text += fmt.Sprintf(". On %s, the kubelet uses the containerd at %s, not the one configured in "+
				"/etc/containerd",
				n.Distribution, place.socket)
		}
		return fix
	default:
		if pods := facts.Current(n, facts.Toolkit); len(pods) > 0 {
			return finding.Fix{
				Text: "the NVIDIA container toolkit adds the handler when the toolkit pod starts, and removes it " +
					"when the pod terminates: restart the pod, and check its log if the handler does not appear",
				Commands: []string{
					facts.RestartPod(pods[0].Namespace, pods[0].Name),
					shell.Command("kubectl logs -n %s -l app=nvidia-container-toolkit-daemonset --tail=50",
						pods[0].Namespace),
				},
			}
		}
		return configureByHand(n, handler)
	}
}

// configureByHand returns a fix that adds the handler on a node without the GPU operator.
func configureByHand(n *facts.Node, handler string) finding.Fix {
	i := instance(n)
	if n.Distribution == facts.K3s || n.Distribution == facts.RKE2 {
		if n.Host != nil && n.Host.Probe.ToolkitVersion != "" {
			return finding.Fix{
				Text: fmt.Sprintf("the toolkit is on the node, but %s did not find nvidia-container-runtime at "+
					"startup: it searches /usr/local/nvidia/toolkit, /usr/bin and, in newer releases, the PATH of "+
					"its unit. Link the program into one of these directories, or add its directory to that PATH, "+
					"and restart %s",
					n.Distribution, unitOf(n)),
				Commands: []string{
					shell.OnHost(n.Name, "sudo find / -xdev -name nvidia-container-runtime"), restartUnit(n),
				},
			}
		}
		return finding.Fix{
			Text: fmt.Sprintf("%s adds the handler at each start if nvidia-container-runtime is on the node: install "+
				"the NVIDIA container toolkit there, and restart %s",
				n.Distribution, unitOf(n)),
			Commands: []string{restartUnit(n)},
		}
	}
	env := n.View.ToolkitEnv()
	if len(env) == 0 {
		return finding.Fix{Text: "add the handler to the runtime's configuration", Commands: []string{lookAt(n)}}
	}
	configure := shell.OnHost(n.Name,
		"sudo nvidia-ctk runtime configure --runtime=containerd --nvidia-runtime-name=%s --config=%s --drop-in-config=%s --config-source=file",
		handler, env[0].Value, env[2].Value)
	fix := finding.Fix{
		Text: fmt.Sprintf("add the handler to the configuration that the kubelet's containerd loads, %s, and restart "+
			"%s", env[0].Value, i.UnitName()),
		Commands: []string{configure, restartUnit(n)},
	}
	if n.Host != nil && n.Host.Probe.ToolkitVersion == "" {
		fix.Text = "if nvidia-ctk is not on the node, first install the NVIDIA container toolkit (in a cloud, use a " +
			"node image that includes it). Then " + fix.Text
	}
	return fix
}

func checkWrongInstance(f *facts.Facts, r *engine.Result) {
	eachRuntime(r, f, func(n *facts.Node) {
		lacking := lacking(f, n)
		for _, found := range runtimeFindings(n, "rt.wrong-instance") {
			severity := finding.Info
			if len(found.Handlers) == 0 && len(lacking) > 0 ||
				slices.ContainsFunc(found.Handlers, func(h string) bool { return lacking[h] != nil }) {
				severity = finding.Error
			}
			r.Add(finding.Finding{
				Object: n.Object(), Severity: severity, Title: found.Title, Evidence: quoted(n, found.Quotes),
				Fix: toolkitFix(f, n),
			})
		}
	})
	for _, n := range f.Nodes {
		if len(runtimeFindings(n, "rt.wrong-instance")) > 0 {
			continue
		}
		for _, pod := range facts.Current(n, facts.Toolkit) {
			if podutils.IsPodReady(pod) {
				continue
			}
			if e, ok := grepAll(f, pod, "unable to dial", "containerd.sock"); ok {
				r.Add(unreachedRuntime(f, n, e))
			}
		}
	}
}

// grepAll returns the first line in the pod's logs that contains all the strings.
func grepAll(f *facts.Facts, pod *corev1.Pod, texts ...string) (finding.Evidence, bool) {
	for _, l := range f.LogsOf(pod) {
		for line := range strings.Lines(l.Text) {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				return finding.Clipped(finding.Evidence{
					Source: "log of Pod " + l.Namespace + "/" + l.Pod + ", container " + l.Container,
					Text:   strings.TrimRight(line, "\r\n"),
				}), true
			}
		}
	}
	return finding.Evidence{}, false
}

// viewFindings reports the findings with the given ID in each node's runtime view. A finding is an error if pods need
// one of its handlers, or if it affects the entire runtime.
func viewFindings(f *facts.Facts, r *engine.Result, id string) {
	eachRuntime(r, f, func(n *facts.Node) {
		for _, found := range runtimeFindings(n, id) {
			severity := finding.Error
			switch {
			case found.Latent:
				severity = finding.Warning
			case len(found.Handlers) > 0 && !matters(f, n, found.Handlers):
				severity = finding.Info
			case found.Mild:
				severity = finding.Warning
			}
			r.Add(finding.Finding{
				Object: n.Object(), Severity: severity, Title: found.Title, Evidence: quoted(n, found.Quotes),
				Pods: notReadyWith(f, n, found),
				Fix:  finding.Fix{Text: found.Fix, Commands: fixCommands(n, found)},
			})
		}
	})
}

// fixCommands returns the commands that edit the configuration file and, if the runtime has loaded the file, restart
// the runtime. It returns nil if the required edit is unknown, because a restart alone does not help.
func fixCommands(n *facts.Node, found runtimeview.Finding) []string {
	if found.Edit == nil {
		return nil
	}
	edit := shell.OnHost(n.Name, "sudo sed -i.bak %s %s", found.Edit.Sed, found.Edit.File)
	if found.Latent {
		return []string{edit} // the runtime has not loaded the file, so no restart is required
	}
	return []string{edit, restartUnit(n)}
}

// notReadyWith returns the pods that use one of a finding's handlers and are not ready.
func notReadyWith(f *facts.Facts, n *facts.Node, found runtimeview.Finding) []string {
	var all []string
	wanted := wanted(f, n)
	for _, handler := range found.Handlers {
		for _, pod := range wanted[handler] {
			if !found.Latent && !podutils.IsPodReady(pod) {
				all = append(all, pod.Namespace+"/"+pod.Name)
			}
		}
	}
	return all
}

// matters reports whether pods on the node request one of the handlers, or one of the handlers is the node's default.
func matters(f *facts.Facts, n *facts.Node, handlers []string) bool {
	wanted := wanted(f, n)
	for _, name := range handlers {
		if i := instance(n); len(wanted[name]) > 0 || i != nil && i.DefaultHandler == name {
			return true
		}
	}
	return false
}

// siblings returns the names of equivalent handlers.
func siblings(handler string) []string {
	switch handler {
	case "nvidia":
		return []string{"nvidia-container-runtime"}
	case "nvidia-container-runtime":
		return []string{"nvidia"}
	}
	return nil
}

func handlerNames(n *facts.Node) []string {
	has, _, _ := inMemory(n)
	return has
}
