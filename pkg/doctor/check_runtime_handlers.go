package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/runtimeview"
)

// handlerChecks are about the way from a pod's runtime class to a handler of the runtime.
func handlerChecks() []Check {
	return []Check{
		{
			ID: "rt.wrong-instance", Layer: LayerRuntime, Needs: []Need{NeedNode, NeedLogs},
			Title: "the NVIDIA runtime is configured in a containerd that the kubelet does not use",
			Reads: "the kubelet's endpoint, the process that listens there, the configuration that this process loads, all other containerds and " +
				"their files, what the toolkit's DaemonSet was told, its log",
			Why: "a GPU handler is in files that the kubelet's containerd does not load, and this containerd lacks it; or the toolkit edits such " +
				"files. It is an error where pods ask for a handler that is not there; clusters whose pods get their GPUs by CDI, by a hook or by " +
				"NRI need none",
			Explains: noPods("rt.handler-missing", "rt.restart-loop"),
			Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html#specifying-configuration-options-for-containerd",
			Sources: []string{
				"gpu-operator#1109", "gpu-operator#1323", "gpu-operator#176", "gpu-operator#992",
				"nvidia-container-toolkit#982", "k8s-snap#1991", "rke2#3385",
			},
			Run: checkWrongInstance,
		},
		{
			ID: "rt.handler-missing", Layer: LayerRuntime, Needs: []Need{NeedAPI, NeedNode},
			Title: "pods ask for a runtime handler that the node's runtime does not have",
			Reads: "events FailedCreatePodSandBox, runtime classes of the pods of each node, .status.runtimeHandlers, and the handlers that " +
				"containerd has in memory (CRI Status)",
			Why: "the runtime says so itself, or a runtime class that a pod of the node uses names a handler that is not in memory. A handler " +
				"that nobody asks for may be missing: GKE, CRI-O with a hook, CDI, NRI and Talos have none; .status.runtimeHandlers is empty " +
				"before containerd 2.0, and then says nothing",
			Explains: noPods(),
			Sources: []string{
				"gpu-operator#413", "gpu-operator#432", "gpu-operator#549", "gpu-operator#730", "gpu-operator#1298",
				"NVSentinel#442",
			},
			Run: checkHandlerMissing,
		},
		{
			ID: "rc.handler-mismatch", Layer: LayerCluster, Needs: []Need{NeedAPI},
			Title: "pods use a RuntimeClass that does not exist, or that names another handler than the nodes have",
			Reads: "RuntimeClasses, the runtime classes of pods and DaemonSets, events FailedCreate, the handlers of nodes",
			Why: "a RuntimeClass that is used is not there; or its handler is nvidia where the nodes have nvidia-container-runtime, as AKS and " +
				"microk8s call it, or the other way round",
			Explains: noPods("rt.handler-missing"),
			Sources:  []string{"AgentBaker", "microk8s", "kubernetes pkg/kubelet/runtimeclass"},
			Run:      checkRuntimeClasses,
		},
		{
			ID: "rt.version-skew-ids", Layer: LayerRuntime, Needs: []Need{NeedNode},
			Title: "GPU handlers stand under the ID of a plugin that this release of containerd does not read",
			Reads: "containerd's files and release",
			Why: "containerd 1.x reads handlers under io.containerd.grpc.v1.cri only, 2.x those of version 3 under io.containerd.cri.v1.runtime; " +
				"what lies elsewhere is ignored without an error",
			Explains: noPods("rt.handler-missing"),
			Sources:  []string{"containerd config.go", "AgentBaker containerd_v2.toml.gtpl"},
			Run:      func(f *Facts, r *Result) { viewFindings(f, r, "rt.version-skew-ids") },
		},
		{
			ID: "wl.runtimeclass-unset", Layer: LayerWorkload, From: []string{"api/pods"},
			Needs: []Need{NeedAPI, NeedNode},
			Title: "a GPU pod has no runtime class, and the node's default runtime gives no GPUs",
			Reads: "pods that ask for GPUs, the default handler in memory, how the device plugin hands out devices (DEVICE_LIST_STRATEGY), logs",
			Why: "with the strategy envvar only the NVIDIA runtime gives a container its GPUs, and a pod without a runtime class gets the default " +
				"runtime. Not looked at where devices come by CDI or a hook",
			Explains: []string{"wl.pod-failing", "wl.cpu-mode", "wl.cuda-error", "wl.cuda-vs-driver"},
			Sources: []string{
				"nvidia-container-runtime#147", "k0s#1769", "k8s-device-plugin#406", "gpu-feature-discovery#36",
			},
			Run: checkRuntimeClassUnset,
		},
	}
}

// wanted returns the handlers that pods of a node ask for by their runtime class, and those pods.
func (f *Facts) wanted(n *Node) map[string][]*corev1.Pod {
	all := map[string][]*corev1.Pod{}
	for _, pod := range n.Pods {
		if Ended(pod) || pod.Spec.RuntimeClassName == nil || pod.DeletionTimestamp != nil {
			continue
		}
		if class := f.runtimeClass(*pod.Spec.RuntimeClassName); class != nil && class.Handler != "runc" {
			all[class.Handler] = append(all[class.Handler], pod)
		}
	}
	return all
}

func (f *Facts) runtimeClass(name string) *nodev1.RuntimeClass {
	n := slices.IndexFunc(f.RuntimeClasses, func(c nodev1.RuntimeClass) bool { return c.Name == name })
	if n < 0 {
		return nil
	}
	return &f.RuntimeClasses[n]
}

// inMemory returns the handlers that the node's runtime has, and who says so; known is false where nobody does.
func (n *Node) inMemory() (handlers []string, source string, known bool) {
	if i := n.instance(); i != nil && i.ShowsMemory() {
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

// lacking returns the handlers that pods of a node ask for, and that its runtime does not have, with the pods.
func (f *Facts) lacking(n *Node) map[string][]*corev1.Pod {
	all := map[string][]*corev1.Pod{}
	has, _, known := n.inMemory()
	if known {
		for handler, pods := range f.wanted(n) {
			if !slices.Contains(has, handler) {
				all[handler] = pods
			}
		}
	}
	for _, g := range f.errorsOf("rt.handler-missing", n) {
		if all[g.name] == nil && !slices.Contains(has, g.name) { // what the runtime has now is newer than any event
			for _, e := range g.errors {
				all[g.name] = append(all[g.name], e.pod)
			}
		}
	}
	return all
}

func checkHandlerMissing(f *Facts, r *Result) {
	r.Lacks(f, "api/events")
	for _, n := range f.Nodes {
		lacking := f.lacking(n)
		if _, _, known := n.inMemory(); !known && len(lacking) == 0 && slices.Contains(f.GPUNodes, n) &&
			len(f.wanted(n)) > 0 {
			r.Unknown(n.Object(), "which handlers its runtime has is not known: %s",
				cmp.Or(f.hostProblem(n), "it does not show them"))
		}
		for _, handler := range slices.Sorted(maps.Keys(lacking)) {
			r.Add(f.handlerMissing(n, handler, lacking[handler]))
		}
	}
}

// hostProblem returns why a node's runtime was not read.
func (f *Facts) hostProblem(n *Node) string {
	if n.View != nil {
		return n.View.Problem
	}
	return f.WhyNoHost(n.Name)
}

func (f *Facts) handlerMissing(n *Node, handler string, pods []*corev1.Pod) Finding {
	finding := Finding{
		Object: n.Object(), Fix: f.handlerFix(n, handler),
		Title: fmt.Sprintf("pods ask for the runtime handler %q, which the node's runtime does not have", handler),
	}
	for _, pod := range pods {
		finding.Pods = append(finding.Pods, pod.Namespace+"/"+pod.Name)
	}
	for _, g := range f.errorsOf("rt.handler-missing", n) {
		if g.name == handler {
			finding.Evidence = g.evidence()
		}
	}
	pod := pods[0]
	if pod.Spec.RuntimeClassName != nil {
		finding.Evidence = append(finding.Evidence,
			fieldEvidence(PodObject(pod), ".spec.runtimeClassName", "%s", *pod.Spec.RuntimeClassName))
		if class := f.runtimeClass(*pod.Spec.RuntimeClassName); class != nil {
			finding.Evidence = append(finding.Evidence,
				fieldEvidence(Object{Kind: "RuntimeClass", Name: class.Name}, ".handler", "%s", class.Handler))
		}
	}
	if has, source, known := n.inMemory(); known {
		finding.Evidence = append(finding.Evidence, Evidence{Source: source, Text: clip(strings.Join(has, ", "))})
		for _, other := range siblings(handler) {
			if elsewhere, _ := f.nodesWith(handler); elsewhere && slices.Contains(has, other) {
				finding.Fix.Text =
					fmt.Sprintf("this node calls the handler %s, and other nodes %s: give it the name of the others, and leave the RuntimeClass as it is; or make a "+
						"second RuntimeClass for pods of such nodes. ", other, handler) + finding.Fix.Text
			}
		}
	}
	return finding
}

// handlerFix returns how the node gets the handler, by what makes handlers there.
func (f *Facts) handlerFix(n *Node, handler string) Fix {
	switch i := n.instance(); {
	case n.IsCRIO():
		return Fix{
			Text: "with CRI-O the toolkit installs a hook, and pods need no runtime class: take runtimeClassName out of them, or set " +
				"CRIO_CONFIG_MODE=config in toolkit.env of the operator's chart, so that it writes the handler",
		}
	case i == nil:
		fix := Fix{
			Text: "this node was not read, so it is not known whether the handler was never configured, or in another containerd than the " +
				"kubelet's: read it, and doctor will say",
			Commands: []string{lookAt(n)},
		}
		if place, ok := n.Distribution.runtime(); ok {
			fix.Text += fmt.Sprintf(". On %s the kubelet uses the containerd at %s, and not the one of /etc/containerd",
				n.Distribution, place.socket)
		}
		return fix
	default:
		if pods := current(n, Toolkit); len(pods) > 0 {
			return Fix{
				Text: "the NVIDIA container toolkit writes the handler when its pod starts, and takes it away when the pod ends: start it anew, " +
					"and look into its log if the handler does not come",
				Commands: []string{
					restartPod(pods[0].Namespace, pods[0].Name),
					command("kubectl logs -n %s -l app=nvidia-container-toolkit-daemonset --tail=50",
						pods[0].Namespace),
				},
			}
		}
		return configureByHand(n, handler)
	}
}

// configureByHand returns how a node without the operator gets the handler.
func configureByHand(n *Node, handler string) Fix {
	i := n.instance()
	if place, ok := n.Distribution.runtime(); ok && (n.Distribution == K3s || n.Distribution == RKE2) {
		return Fix{
			Text: fmt.Sprintf("%s makes the handler itself at each start when it finds nvidia-container-runtime on the node: install the NVIDIA "+
				"container toolkit there, and restart %s",
				n.Distribution, cmp.Or(i.Unit, place.unit)),
			Commands: []string{restartUnit(n)},
		}
	}
	env := n.View.ToolkitEnv()
	if len(env) == 0 {
		return Fix{Text: "add the handler to the runtime's configuration", Commands: []string{lookAt(n)}}
	}
	configure := onHost(n.Name,
		"sudo nvidia-ctk runtime configure --runtime=containerd --nvidia-runtime-name=%s --config=%s --drop-in-config=%s --config-source=file",
		handler, env[0].Value, env[2].Value)
	return Fix{
		Text: fmt.Sprintf("add the handler to the configuration that the kubelet's containerd loads, %s, and restart "+
			"%s", env[0].Value, i.UnitName()),
		Commands: []string{configure, restartUnit(n)},
	}
}

func checkWrongInstance(f *Facts, r *Result) {
	r.eachRuntime(f, func(n *Node) {
		lacking := f.lacking(n)
		for _, found := range n.runtimeFindings("rt.wrong-instance") {
			severity := Info
			if len(found.Handlers) == 0 && len(lacking) > 0 ||
				slices.ContainsFunc(found.Handlers, func(h string) bool { return lacking[h] != nil }) {
				severity = Error
			}
			r.Add(Finding{
				Object: n.Object(), Severity: severity, Title: found.Title, Evidence: quoted(n, found.Quotes),
				Fix: f.toolkitFix(n),
			})
		}
	})
	for _, n := range f.Nodes {
		if len(n.runtimeFindings("rt.wrong-instance")) > 0 {
			continue
		}
		for _, pod := range current(n, Toolkit) {
			if podReady(pod) {
				continue
			}
			if e, ok := f.grepAll(pod, "unable to dial", "containerd.sock"); ok {
				r.Add(Finding{
					Object: n.Object(), Confidence: Likely, Evidence: []Evidence{e}, Fix: f.toolkitFix(n),
					Title: "the NVIDIA container toolkit finds no container runtime at the socket that it was told",
				})
			}
		}
	}
}

// grepAll returns the first line of the pod's logs that has all of the texts.
func (f *Facts) grepAll(pod *corev1.Pod, texts ...string) (Evidence, bool) {
	for _, l := range f.LogsOf(pod) {
		for line := range strings.Lines(l.Text) {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				return clipped(Evidence{
					Source: "log of Pod " + l.Namespace + "/" + l.Pod + ", container " + l.Container,
					Text:   strings.TrimRight(line, "\r\n"),
				}), true
			}
		}
	}
	return Evidence{}, false
}

// viewFindings adds what the runtime view of each node has of an ID, with the view's own fix. It is an error where pods
// need one of the handlers, or where nothing works without it.
func viewFindings(f *Facts, r *Result, id string) {
	r.eachRuntime(f, func(n *Node) {
		for _, found := range n.runtimeFindings(id) {
			severity := Error
			switch {
			case found.Latent:
				severity = Warning
			case len(found.Handlers) > 0 && !f.matters(n, found.Handlers):
				severity = Info
			case found.Mild:
				severity = Warning
			}
			r.Add(Finding{
				Object: n.Object(), Severity: severity, Title: found.Title, Evidence: quoted(n, found.Quotes),
				Pods: f.notReadyWith(n, found),
				Fix:  Fix{Text: found.Fix, Commands: fixCommands(n, found)},
			})
		}
	})
}

// fixCommands returns the commands that edit the file, where the right edit is known, and then make it take effect. A
// restart alone would mend nothing.
func fixCommands(n *Node, found runtimeview.Finding) []string {
	if found.Edit == nil {
		return nil
	}
	edit := onHost(n.Name, "sudo sed -i.bak %s %s", found.Edit.Sed, found.Edit.File)
	if found.Latent {
		return []string{edit} // what runs has not loaded it yet: nothing has to be restarted
	}
	return []string{edit, restartUnit(n)}
}

// notReadyWith returns the pods that do not run, and use one of a finding's handlers.
func (f *Facts) notReadyWith(n *Node, found runtimeview.Finding) []string {
	var all []string
	wanted := f.wanted(n)
	for _, handler := range found.Handlers {
		for _, pod := range wanted[handler] {
			if !found.Latent && !podReady(pod) {
				all = append(all, pod.Namespace+"/"+pod.Name)
			}
		}
	}
	return all
}

// matters reports whether pods of the node run with one of the handlers, by their runtime class or because it is the
// default.
func (f *Facts) matters(n *Node, handlers []string) bool {
	wanted := f.wanted(n)
	for _, name := range handlers {
		if i := n.instance(); len(wanted[name]) > 0 || i != nil && i.DefaultHandler == name {
			return true
		}
	}
	return false
}

// siblings are handlers that do the same under another name.
func siblings(handler string) []string {
	switch handler {
	case "nvidia":
		return []string{"nvidia-container-runtime"}
	case "nvidia-container-runtime":
		return []string{"nvidia"}
	}
	return nil
}

func checkRuntimeClasses(f *Facts, r *Result) {
	r.Lacks(f, "api/runtimeclasses")
	f.handlersOfOtherNames(r)
	reported := map[string]bool{}
	// gpu reports whether the object is known to want GPUs or to be a part of the GPU software.
	add := func(class string, object Object, gpu bool, nodes []string, evidence ...Evidence) {
		if reported[class+object.String()] {
			return
		}
		reported[class+object.String()] = true
		finding := Finding{
			Object: object, Subject: Object{Kind: "RuntimeClass", Name: class}, Nodes: nodes, Evidence: evidence,
			Title: fmt.Sprintf("its pods use the RuntimeClass %q, which does not exist", class),
			Fix: Fix{Text: fmt.Sprintf("create the RuntimeClass with the handler that the nodes have, or take runtimeClassName out of what uses "+
				"it; the GPU operator makes %s when its toolkit is enabled", class)},
		}
		if !isNVIDIAClass(class) {
			finding.Fix.Text =
				fmt.Sprintf("%s is no class of NVIDIA's: let what brings its runtime (gVisor, Kata Containers and others) make the class, or take "+
					"runtimeClassName out of what uses it; do not give that name to the NVIDIA runtime, which does not keep pods apart from the node",
					class)
			if !gpu {
				finding.Severity, finding.Confidence = Info, Possible
			}
		}
		if handler := f.gpuHandler(class, nodes); handler != "" {
			finding.Fix.Commands = createClass(class, handler)
		}
		r.Add(finding)
	}
	seen := f.Missing("api/runtimeclasses") == ""
	for _, n := range f.Nodes {
		for _, g := range f.errorsOf("rc.handler-mismatch", n) {
			if f.runtimeClass(g.name) == nil {
				pod := g.errors[0].pod
				add(g.name, PodObject(pod), WantsGPU(pod) || ComponentOf(pod.Labels, pod.Spec) != "", []string{n.Name},
					g.evidence()...)
			}
		}
	}
	for i := range f.Snapshot.Events {
		e := &f.Snapshot.Events[i]
		owner := Object{Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name}
		if e.Reason != "FailedCreate" || f.rolledOut(owner) || f.createdSince(owner, EventTime(e)) {
			continue
		}
		if id, class := recognize(e.Message); id == "rc.handler-mismatch" && (!seen || f.runtimeClass(class) == nil) {
			x := f.refusal(owner, e)
			add(class, owner, x.gpu || x.component != "", f.nodesOf(e.InvolvedObject), clipped(Quote(e)))
		}
	}
	for i := range f.DaemonSets {
		set := &f.DaemonSets[i]
		class := set.Spec.Template.Spec.RuntimeClassName
		if !seen || class == nil || f.runtimeClass(*class) != nil || set.Status.DesiredNumberScheduled == 0 ||
			set.Status.NumberReady >= set.Status.DesiredNumberScheduled {
			continue
		}
		object := Object{Kind: "DaemonSet", Namespace: set.Namespace, Name: set.Name}
		template := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
		add(*class, object, WantsGPU(template) || ComponentOf(template.Labels, template.Spec) != "",
			f.labeled(set.Spec.Template.Spec.NodeSelector),
			fieldEvidence(object, ".spec.template.spec.runtimeClassName", "%s", *class))
	}
}

// createClass returns the command that makes a RuntimeClass; there is none for a class that is not NVIDIA's by its
// name, because whoever asks for gvisor or kata wants to be kept apart from the node, and must not get the NVIDIA
// runtime by that name.
func createClass(name, handler string) []string {
	if !isSubdomain(name) || !isSubdomain(handler) || !isNVIDIAClass(name) {
		return nil
	}
	return []string{command("printf '%%s\\n' %s %s %s %s | kubectl create -f -",
		"apiVersion: node.k8s.io/v1", "kind: RuntimeClass", "metadata: {name: "+name+"}", "handler: "+handler)}
}

// isNVIDIAClass reports whether a RuntimeClass is one for NVIDIA's runtime, as the toolkit, the operator and clouds
// name them.
func isNVIDIAClass(name string) bool { return name == "nvidia" || strings.HasPrefix(name, "nvidia-") }

// nodesOf returns the nodes for which a DaemonSet makes pods; none, which means all, for other owners.
func (f *Facts) nodesOf(owner corev1.ObjectReference) []string {
	for _, set := range f.DaemonSets {
		if owner.Kind == "DaemonSet" && set.Namespace == owner.Namespace && set.Name == owner.Name {
			return f.labeled(set.Spec.Template.Spec.NodeSelector)
		}
	}
	return nil
}

// labeled returns the nodes that have these labels.
func (f *Facts) labeled(selector map[string]string) []string {
	var all []string
	for _, n := range f.Nodes {
		matches := true
		for label, value := range selector {
			matches = matches && n.Labels[label] == value
		}
		if matches {
			all = append(all, n.Name)
		}
	}
	return all
}

// gpuHandler returns the handler that a class stands for by its name, and that one of these nodes has; empty when that
// is not known.
func (f *Facts) gpuHandler(class string, nodes []string) string {
	for _, n := range f.GPUNodes {
		if len(nodes) > 0 && !slices.Contains(nodes, n.Name) {
			continue
		}
		has, _, _ := n.inMemory()
		for _, handler := range append([]string{class}, siblings(class)...) {
			if slices.Contains(has, handler) {
				return handler
			}
		}
	}
	return ""
}

// handlersOfOtherNames finds classes whose handler the nodes have under another name.
func (f *Facts) handlersOfOtherNames(r *Result) {
	for _, n := range f.Nodes {
		lacking := f.lacking(n)
		for _, handler := range slices.Sorted(maps.Keys(lacking)) {
			has, source, known := n.inMemory()
			for _, other := range siblings(handler) {
				if !known || !slices.Contains(has, other) || lacking[handler][0].Spec.RuntimeClassName == nil {
					continue
				}
				class := *lacking[handler][0].Spec.RuntimeClassName
				object := Object{Kind: "RuntimeClass", Name: class}
				elsewhere, allKnown := f.nodesWith(handler)
				if elsewhere {
					// The class fits them, and another would break them: it is this node that differs
					// (rt.handler-missing)
					continue
				}
				finding := Finding{
					Object: object, Nodes: []string{n.Name}, Title: fmt.Sprintf(
						"the RuntimeClass names the handler %q, which its nodes call %q", handler, other,
					),
					Evidence: []Evidence{
						fieldEvidence(object, ".handler", "%s", handler),
						{Source: source, Text: clip(strings.Join(has, ", "))},
					},
					Fix: Fix{
						Text: "give the nodes' runtime the handler " + handler +
							", too; or, once you know that no node of the cluster has it, delete the RuntimeClass, which " +
							"cannot be changed, and create it with the handler " + other,
					},
				}
				if create := createClass(class, other); allKnown && create != nil {
					finding.Fix.Text =
						"no node has the handler that the RuntimeClass names. It cannot be changed: delete it, and create it with the handler that the nodes have; no pod can " +
							"be created with it in between"
					finding.Fix.Commands = append([]string{command("kubectl delete runtimeclass %s", class)}, create...)
				}
				r.Add(finding)
			}
		}
	}
}

// nodesWith reports whether any node is known to have a handler; all reports whether the handlers of all nodes are
// known.
func (f *Facts) nodesWith(handler string) (some, all bool) {
	all = true
	for _, n := range f.Nodes {
		has, _, known := n.inMemory()
		some, all = some || slices.Contains(has, handler), all && known
	}
	return some, all
}

func checkRuntimeClassUnset(f *Facts, r *Result) {
	for _, n := range f.GPUNodes {
		var pods []*corev1.Pod
		for _, pod := range n.Pods {
			if !Ended(pod) && len(GPURequests(pod)) > 0 && pod.Spec.RuntimeClassName == nil &&
				ComponentOf(pod.Labels, pod.Spec) == "" {
				pods = append(pods, pod)
			}
		}
		if len(pods) == 0 || n.IsCRIO() ||
			slices.Contains([]Distribution{GKE, Talos, Bottlerocket, OpenShift}, n.Distribution) {
			continue
		}
		i := n.instance()
		if i == nil || !i.ShowsMemory() {
			r.Unknown(n.Object(), "its default handler is not known: %s",
				cmp.Or(f.hostProblem(n), "the runtime does not show it"))
			continue
		}
		strategy, source, known := f.deviceStrategy(n)
		gpu := ""
		for _, h := range i.Handlers {
			if h.IsGPU() && h.InMemory != nil {
				gpu = cmp.Or(gpu, h.Name)
			}
		}
		fallback, _ := i.Handler(i.DefaultHandler)
		if !known || strategy != "envvar" || gpu == "" || fallback.InMemory == nil || fallback.IsGPU() ||
			len(n.View.Findings) > 0 || f.usesNRI() {
			continue
		}
		class := "nvidia"
		for _, c := range f.RuntimeClasses {
			if c.Handler == gpu {
				class = c.Name
			}
		}
		for _, pod := range pods {
			finding := Finding{
				Object: PodObject(pod), Nodes: []string{n.Name}, Severity: Warning, Confidence: Likely,
				Title: "the pod asks for a GPU and has no runtime class, and the node's default runtime gives it none",
				Evidence: []Evidence{
					{Source: "nodes/" + n.Name + ": containerd's configuration in memory (CRI Status)",
						Text: fmt.Sprintf("default handler %s, "+
							"handlers %s", i.DefaultHandler, strings.Join(handlerNames(n), ", "))},
					source,
				},
				Fix: Fix{Text: fmt.Sprintf(
					"set runtimeClassName: %s in the pod's template, or make %s the default handler", class, gpu,
				)},
			}
			if e, ok := logEvidence(
				f, pod, "nvidia-smi: not found", `"nvidia-smi": executable file not found`, "libcuda.so.1: cannot open",
				"Found no NVIDIA driver", "No CUDA GPUs are available", "no CUDA-capable device",
			); ok {
				finding.Severity, finding.Evidence = Error, append(finding.Evidence, e)
			}
			r.Add(finding)
		}
	}
}

func handlerNames(n *Node) []string {
	has, _, _ := n.inMemory()
	return has
}
