package runtime

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func checkRuntimeClasses(f *facts.Facts, r *engine.Result) {
	r.Lacks(f, "api/runtimeclasses")
	handlersOfOtherNames(f, r)
	reported := map[string]bool{}
	// gpu reports whether the object requests GPUs or is part of the GPU software.
	add := func(class string, object finding.Object, gpu bool, nodes []string, evidence ...finding.Evidence) {
		if reported[class+object.String()] {
			return
		}
		reported[class+object.String()] = true
		issue := finding.Finding{
			Object: object, Subject: finding.Object{Kind: "RuntimeClass", Name: class}, Nodes: nodes,
			Evidence: evidence,
			Title:    fmt.Sprintf("pods use the RuntimeClass %q, which does not exist", class),
			Fix: finding.Fix{Text: fmt.Sprintf("create the RuntimeClass with a handler that the nodes have, or "+
				"remove runtimeClassName from the workloads; the GPU operator creates %s if its toolkit is "+
				"enabled", class)},
		}
		if !isNVIDIAClass(class) {
			issue.Fix.Text =
				fmt.Sprintf("%s is not an NVIDIA class: install the runtime to which it belongs (gVisor, Kata "+
					"Containers or another), or remove runtimeClassName from the workloads; do not use that name for "+
					"the NVIDIA runtime, which does not isolate pods from the node",
					class)
			if !gpu {
				issue.Severity, issue.Confidence = finding.Info, finding.Possible
			}
		}
		if handler := gpuHandler(f, class, nodes); handler != "" {
			issue.Fix.Commands = createClass(class, handler)
		} else if len(f.GPUNodes) == 0 && isNVIDIAClass(class) {
			issue.Fix.Text = "if no node has NVIDIA GPUs (none is known to), remove runtimeClassName from the " +
				"workloads, or turn off the chart option that sets it. Otherwise, install the NVIDIA container " +
				"toolkit on the GPU nodes, and create the RuntimeClass"
		}
		r.Add(issue)
	}
	seen := f.Missing("api/runtimeclasses") == ""
	for _, n := range f.Nodes {
		for _, g := range errorsOf(f, "rc.handler-mismatch", n) {
			if f.RuntimeClass(g.name) == nil {
				pod := g.errors[0].pod
				add(g.name, facts.PodObject(pod), facts.WantsGPU(pod) ||
					facts.ComponentOf(pod.Labels, &pod.Spec) != "", []string{n.Name},
					g.evidence()...)
			}
		}
	}
	for _, e := range f.Events {
		owner := finding.Object{
			Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name,
		}
		if e.Reason != "FailedCreate" || f.RolledOut(owner) || f.CreatedSince(owner, facts.EventTime(e)) {
			continue
		}
		if id, class := facts.Recognize(e.Message); id == "rc.handler-mismatch" &&
			(!seen || f.RuntimeClass(class) == nil) {
			x := f.Refusal(owner, e)
			add(class, owner, x.GPU || x.Component != "", nodesOf(f, e.InvolvedObject), finding.Clipped(facts.Quote(e)))
		}
	}
	for i := range f.DaemonSets {
		set := &f.DaemonSets[i]
		class := set.Spec.Template.Spec.RuntimeClassName
		if !seen || class == nil || f.RuntimeClass(*class) != nil || set.Status.DesiredNumberScheduled == 0 ||
			set.Status.NumberReady >= set.Status.DesiredNumberScheduled {
			continue
		}
		object := finding.Object{Kind: "DaemonSet", Namespace: set.Namespace, Name: set.Name}
		template := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
		add(*class, object, facts.WantsGPU(template) || facts.ComponentOf(template.Labels, &template.Spec) != "",
			labeled(f, set.Spec.Template.Spec.NodeSelector),
			finding.FieldEvidence(object, ".spec.template.spec.runtimeClassName", "%s", *class))
	}
}

// createClass returns the command that creates a RuntimeClass. It returns nil if the name is not one of NVIDIA's: a pod
// that requests gvisor or kata requires isolation and must not get the NVIDIA runtime instead.
func createClass(name, handler string) []string {
	if !shell.IsSubdomain(name) || !shell.IsSubdomain(handler) || !isNVIDIAClass(name) {
		return nil
	}
	return []string{shell.Command("printf '%%s\\n' %s %s %s %s | kubectl create -f -",
		"apiVersion: node.k8s.io/v1", "kind: RuntimeClass", "metadata: {name: "+name+"}", "handler: "+handler)}
}

// isNVIDIAClass reports whether a RuntimeClass has a name that the toolkit, the operator or a cloud uses for NVIDIA's
// runtime.
func isNVIDIAClass(name string) bool { return name == "nvidia" || strings.HasPrefix(name, "nvidia-") }

// nodesOf returns the nodes on which a DaemonSet runs pods. For other owners, it returns nil, which means all nodes.
func nodesOf(f *facts.Facts, owner corev1.ObjectReference) []string {
	for _, set := range f.DaemonSets {
		if owner.Kind == "DaemonSet" && set.Namespace == owner.Namespace && set.Name == owner.Name {
			return labeled(f, set.Spec.Template.Spec.NodeSelector)
		}
	}
	return nil
}

// labeled returns the names of all nodes that have the given labels.
func labeled(f *facts.Facts, selector map[string]string) []string {
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

// gpuHandler returns a handler on one of the nodes whose name equals the name of the class or is equivalent to it, or
// an empty string if none is known.
func gpuHandler(f *facts.Facts, class string, nodes []string) string {
	for _, n := range f.GPUNodes {
		if len(nodes) > 0 && !slices.Contains(nodes, n.Name) {
			continue
		}
		has, _, _ := inMemory(n)
		for _, handler := range append([]string{class}, siblings(class)...) {
			if slices.Contains(has, handler) {
				return handler
			}
		}
	}
	return ""
}

// handlersOfOtherNames reports RuntimeClasses whose handler has another name on the nodes.
func handlersOfOtherNames(f *facts.Facts, r *engine.Result) {
	for _, n := range f.Nodes {
		lacking := lacking(f, n)
		for _, handler := range slices.Sorted(maps.Keys(lacking)) {
			has, source, known := inMemory(n)
			for _, other := range siblings(handler) {
				if !known || !slices.Contains(has, other) || lacking[handler][0].Spec.RuntimeClassName == nil {
					continue
				}
				class := *lacking[handler][0].Spec.RuntimeClassName
				object := finding.Object{Kind: "RuntimeClass", Name: class}
				elsewhere, allKnown := nodesWith(f, handler)
				if elsewhere {
					// The class works on other nodes and must not be changed; rt.handler-missing reports this node.
					continue
				}
				issue := finding.Finding{
					Object: object, Nodes: []string{n.Name}, Title: fmt.Sprintf(
						"the RuntimeClass names the handler %q, but the nodes call that handler %q", handler, other,
					),
					Evidence: []finding.Evidence{
						finding.FieldEvidence(object, ".handler", "%s", handler),
						{Source: source, Text: words.Clip(strings.Join(has, ", "))},
					},
					Fix: finding.Fix{
						Text: "add the handler " + handler +
							" to the nodes' runtime. Alternatively, if no node in the cluster has that handler, " +
							"delete the RuntimeClass, which is immutable, and recreate it with the handler " + other,
					},
				}
				if meta := f.MetaOf("runtimeclass", "", class); meta != nil &&
					(metav1.GetControllerOfNoCopy(meta) != nil ||
						meta.GetLabels()["app.kubernetes.io/component"] == "gpu-operator") {
					issue.Fix.Text = "the GPU operator owns the RuntimeClass, and its toolkit adds the handler " +
						handler + " to the nodes' runtime: find out why the toolkit pods fail, or why the validation " +
						"that they are waiting for fails"
					issue.Confidence = finding.Likely
				} else if create := createClass(class, other); allKnown && create != nil {
					issue.Fix.Text =
						"no node has the handler that the RuntimeClass names. A RuntimeClass is immutable: delete it " +
							"and recreate it with the handler that the nodes have; in the meantime, no pod that uses " +
							"the RuntimeClass can be created"
					issue.Fix.Commands = append(
						[]string{shell.Command("kubectl delete runtimeclass %s", class)}, create...,
					)
				}
				r.Add(issue)
			}
		}
	}
}

// nodesWith reports whether any node has the handler, and whether all nodes' handlers are known.
func nodesWith(f *facts.Facts, handler string) (some, all bool) {
	all = true
	for _, n := range f.Nodes {
		has, _, known := inMemory(n)
		some, all = some || slices.Contains(has, handler), all && known
	}
	return some, all
}

func checkRuntimeClassUnset(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		var pods, failed []*corev1.Pod
		for _, pod := range n.Pods {
			if len(facts.GPURequests(pod)) == 0 || pod.Spec.RuntimeClassName != nil ||
				facts.ComponentOf(pod.Labels, &pod.Spec) != "" {
				continue
			}
			if pod.Status.Phase != corev1.PodSucceeded {
				failed = append(failed, pod)
			}
			if !facts.Ended(pod) {
				pods = append(pods, pod)
			}
		}
		if len(failed) == 0 || n.IsCRIO() ||
			slices.Contains(
				[]facts.Distribution{facts.GKE, facts.Bottlerocket, facts.OpenShift}, n.Distribution,
			) {
			continue
		}
		i := instance(n)
		if i == nil || !i.ShowsMemory() {
			if reportWithoutDriver(f, r, n, failed) || reportUnset(f, r, n, pods) {
				continue
			}
			r.Unknown(n.Object(), "the default handler is unknown: %s",
				cmp.Or(hostProblem(f, n), "the runtime does not report it"))
			continue
		}
		strategy, source, known := facts.DeviceStrategy(f, n)
		gpu := ""
		for _, h := range i.Handlers {
			if h.IsGPU() && h.InMemory != nil {
				gpu = cmp.Or(gpu, h.Name)
			}
		}
		fallback, _ := i.Handler(i.DefaultHandler)
		if !known || strategy != "envvar" || gpu == "" || fallback.InMemory == nil || fallback.IsGPU() ||
			len(n.View.Findings) > 0 || usesNRI(f) {
			continue
		}
		class := "nvidia"
		for _, c := range f.RuntimeClasses {
			if c.Handler == gpu {
				class = c.Name
			}
		}
		for _, pod := range pods {
			issue := finding.Finding{
				Object: facts.PodObject(pod), Nodes: []string{n.Name}, Severity: finding.Warning,
				Confidence: finding.Likely,
				Title: "the pod requests a GPU but has no RuntimeClass, and the node's default runtime provides " +
					"no GPUs",
				Evidence: []finding.Evidence{
					{Source: "nodes/" + n.Name + ": containerd's configuration in memory (CRI Status)",
						Text: fmt.Sprintf("default handler %s, "+
							"handlers %s", i.DefaultHandler, strings.Join(handlerNames(n), ", "))},
					source,
				},
				Fix: finding.Fix{Text: fmt.Sprintf(
					"set runtimeClassName: %s in the pod's template, or make %s the default handler", class, gpu,
				)},
			}
			if e, ok := quoteNoDriver(f, pod); ok {
				issue.Severity, issue.Evidence = finding.Error, append(issue.Evidence, e)
			}
			r.Add(issue)
		}
	}
}

// quoteNoDriver returns a log line that a program prints if the driver is not mounted into its container.
func quoteNoDriver(f *facts.Facts, pod *corev1.Pod) (finding.Evidence, bool) {
	return facts.LogEvidence(
		f, pod, "nvidia-smi: not found", `"nvidia-smi": executable file not found`, "libcuda.so.1: cannot open",
		"Found no NVIDIA driver", "No CUDA GPUs are available", "no CUDA-capable device",
	)
}

// reportWithoutDriver reports pods without a RuntimeClass whose programs find no driver, on a node whose runtime could
// not be read. If NVIDIA's runtime were the node's default, the programs would find the driver. It returns whether it
// reported any pod.
func reportWithoutDriver(f *facts.Facts, r *engine.Result, n *facts.Node, pods []*corev1.Pod) (reported bool) {
	class := f.NVIDIAClass()
	strategy, source, known := facts.DeviceStrategy(f, n)
	if class == nil || known && strategy != "envvar" || usesNRI(f) {
		return false
	}
	// Unless configured otherwise, the operator's toolkit makes NVIDIA's runtime the default. If it does not, pods must
	// set the class.
	others := slices.ContainsFunc(n.Pods, func(pod *corev1.Pod) bool {
		return pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName == class.Name && !facts.Ended(pod) &&
			facts.ComponentOf(pod.Labels, &pod.Spec) == ""
	})
	off := "" // the variable that disables this
	for _, toolkit := range facts.Current(n, facts.Toolkit) {
		if variable, is := facts.ConfiguresDefault(toolkit); !is {
			off = variable
		}
	}
	if len(facts.Current(n, facts.Toolkit)) > 0 && !others && off == "" {
		return false
	}
	for _, pod := range pods {
		e, ok := quoteNoDriver(f, pod)
		if !ok {
			continue
		}
		reported = true
		found := finding.Finding{
			Object: facts.PodObject(pod), Nodes: []string{n.Name}, Confidence: finding.Possible,
			Title: "the pod requests a GPU but has no RuntimeClass, and its program finds no GPU or no driver",
			Evidence: []finding.Evidence{e, {
				Source: "RuntimeClass " + class.Name + " .handler", Text: class.Handler,
			}},
			Fix: finding.Fix{
				Text: fmt.Sprintf("Set runtimeClassName: %s in the pod template. If other software generates the "+
					"pod, change that software's configuration. A RuntimeClass is not required if %[1]s is the "+
					"node's default runtime, or if CDI is enabled.", class.Name),
				Commands: facts.EditCommands(pod),
			},
		}
		if known {
			found.Evidence = append(found.Evidence, source)
		}
		if n.Distribution == facts.K3s || n.Distribution == facts.RKE2 { // their default is runc, without a flag
			found.Confidence = finding.Likely
		}
		if off != "" {
			found.Confidence = finding.Likely
			found.Evidence = append(found.Evidence, finding.Evidence{
				Source: "containers of the toolkit on " + n.Object().String() + " .env",
				Text:   off + " is off, so pods without a RuntimeClass are started with runc",
			})
			found.Fix.Text += " To change the default for all pods on the node, " +
				"set " + off + " to true in toolkit.env of the GPU operator's values."
			if n.Distribution == facts.MicroK8s {
				found.Fix.Text += " Then check default_runtime_name in " +
					"/var/snap/microk8s/current/args/containerd-template.toml (MicroK8s does not read " +
					"/etc/containerd), and run `snap restart microk8s.daemon-containerd`."
			}
		}
		r.Add(found)
	}
	return reported
}

// reportUnset reports pods without a RuntimeClass on a node whose runtime could not be read, if the node's distribution
// does not make NVIDIA's runtime the default and the device plugin's own pod sets the class. It returns whether it
// reported any pod.
func reportUnset(f *facts.Facts, r *engine.Result, n *facts.Node, pods []*corev1.Pod) (reported bool) {
	class := f.NVIDIAClass()
	strategy, source, known := facts.DeviceStrategy(f, n)
	if class == nil || !known || strategy != "envvar" || usesNRI(f) ||
		!slices.Contains([]facts.Distribution{facts.Talos, facts.K3s, facts.RKE2}, n.Distribution) ||
		len(facts.Current(n, facts.Toolkit)) > 0 {
		return false
	}
	var plugin *corev1.Pod
	for _, pod := range facts.Current(n, facts.DevicePlugin) {
		if name := pod.Spec.RuntimeClassName; name != nil && *name == class.Name {
			plugin = pod
		}
	}
	for _, pod := range pods {
		if plugin == nil || pod.DeletionTimestamp != nil {
			continue
		}
		reported = true
		r.Add(finding.Finding{
			Object: facts.PodObject(pod), Nodes: []string{n.Name},
			Severity: finding.Warning, Confidence: finding.Possible,
			Title: "the pod requests a GPU but has no RuntimeClass, unlike the device plugin on its node",
			Evidence: []finding.Evidence{
				finding.FieldEvidence(facts.PodObject(pod), ".spec.runtimeClassName", "(none)"),
				finding.FieldEvidence(facts.PodObject(plugin), ".spec.runtimeClassName", "%s", class.Name),
				source,
			},
			Fix: finding.Fix{
				Text: fmt.Sprintf("Run nvidia-smi to check whether the container sees its GPU. If not, set "+
					"runtimeClassName: %s in the pod template, or make it the node's default runtime.", class.Name),
				Commands: facts.EditCommands(pod),
			},
		})
	}
	return reported
}

// checkStrategyRefused reports nodes on which GPU pods get no GPUs because the toolkit's settings do not allow the
// device plugin's strategy.
func checkStrategyRefused(f *facts.Facts, r *engine.Result) {
	for _, n := range f.GPUNodes {
		found := finding.Finding{
			Object: n.Object(), Severity: finding.Warning, Confidence: finding.Likely,
			Title: "the container toolkit does not accept the way in which the device plugin passes GPUs, so pods " +
				"get none",
			Fix: finding.Fix{
				Text: "Make the two agree. Either configure the device plugin to use a strategy that the toolkit " +
					"accepts (deviceListStrategy: volume-mounts, with accept-nvidia-visible-devices-as-volume-mounts " +
					"= true, or cdi-annotations), or set accept-nvidia-visible-devices-envvar-when-unprivileged = " +
					"true in the toolkit's configuration. Then recreate the GPU pods. Do not make the containers " +
					"privileged instead: they would see all GPUs on the node.",
			},
		}
		for _, pod := range n.Pods {
			source, text := f.RefusedStrategy(pod, n)
			if text == "" || facts.Ended(pod) || facts.ComponentOf(pod.Labels, &pod.Spec) != "" {
				continue
			}
			if len(found.Evidence) == 0 {
				found.Evidence = []finding.Evidence{{Source: source, Text: text}}
			}
			found = found.ForPods(pod.Namespace + "/" + pod.Name)
			if e, ok := quoteNoDriver(f, pod); ok && found.Severity != finding.Error {
				found.Severity, found.Evidence = finding.Error, append(found.Evidence, e)
			}
		}
		if len(found.Evidence) == 0 {
			r.Pass(n.Object())
			continue
		}
		r.Add(found)
	}
}
