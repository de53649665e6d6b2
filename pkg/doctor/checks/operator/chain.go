package operator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// link is a step in the chain of the operator's init containers, each of which waits for the previous step.
type link struct {
	name string
	// part is the component whose pods perform the step, and main is the name of the container that performs it. Both
	// are empty for steps that the init container itself performs.
	part facts.Component
	main string
	// waits is the name of the init container with which other pods wait for the step.
	waits string
	file  string // the file in /run/nvidia/validations that the init container waits for
}

func chainLinks() []link {
	return []link{
		{"driver", facts.Driver, "nvidia-driver-ctr", "driver-validation", "driver-ready"},
		{"container toolkit", facts.Toolkit, "nvidia-container-toolkit-ctr", "toolkit-validation", "toolkit-ready"},
		{"CUDA validation", "", "", "cuda-validation", "cuda-ready"},
		{"device plugin validation", "", "", "plugin-validation", "plugin-ready"},
		{"vGPU manager", facts.Driver, "nvidia-vgpu-manager-ctr", "vgpu-manager-validation", vgpuReady},
	}
}

// vgpuReady is the file of the vGPU manager, the driver for nodes that run virtual machines.
const vgpuReady = "vgpu-manager-ready"

// linkState is a link's state on a node.
type linkState int

const (
	linkAbsent linkState = iota // nothing on the node shows the link's state
	linkDone
	linkStarting
	linkBroken
)

func initChainCheck() engine.Check {
	return engine.Check{
		ID: "op.init-chain", Symptom: engine.Explained, Layer: finding.LayerOperator,
		Title: "the startup chain of the GPU operator's pods is blocked",
		// A driver that is still being built also explains other findings.
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs, engine.NeedNode}, InfoExplains: true,
		Reads: "the driver-validation, toolkit-validation, cuda-validation and plugin-validation init containers of " +
			"the operator's pods on each GPU node, the containers in the driver and toolkit pods, their last log " +
			"lines, the files in /run/nvidia/validations, and the operator's DaemonSets and the node's taints",
		Why: "Each operand waits in an init container until the previous link has written its file. The links are " +
			"driver, container toolkit, CUDA and device plugin. One broken link therefore blocks all later pods. " +
			"Only the first broken link is reported. A link's pod never starts if a taint keeps its DaemonSet off " +
			"the node, or if the label nvidia.com/gpu.deploy.driver=false does. The driver may take 20 minutes, the " +
			"limit of its startup probe, and any other step 2 minutes.",
		Explains: blocked(),
		ExplainsAs: map[string][]string{
			ofDriver: blocked("rt.handler-missing"), ofLabel: blocked("rt.handler-missing", "op.deploy-label-off"),
		},
		Doc: "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/troubleshooting.html",
		Sources: []string{"gpu-operator#161", "gpu-operator#280", "gpu-operator#378", "gpu-operator#448",
			"gpu-operator#487", "gpu-operator#579", "gpu-operator#1043",
			"gpu-operator#1518", "gpu-operator#1982", "azure-nvidia-robotics-reference-architecture#441",
			"cloud-native-stack#95"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, n := range f.GPUNodes {
				if !hasChain(n) {
					continue
				}
				if !facts.Alive(n) {
					r.Unknown(n.Object(), "the node is not Ready: its pods' status is out of date")
					continue
				}
				if !checkMarker(f, r, n) && !checkTaint(f, r, n) {
					checkChain(f, r, n)
				}
			}
		},
	}
}

// ofDriver is the kind (Finding.As) of findings about the link that the toolkit waits for before it configures the
// runtime.
const ofDriver = "driver"

// ofLabel is the kind (Finding.As) of findings about a node whose validation waits for a driver container that a label
// keeps off the node.
const ofLabel = "label"

// checkMarker reports a node whose driver validation is waiting for the operator's driver container, although a label
// keeps that container off the node.
func checkMarker(f *facts.Facts, r *engine.Result, n *facts.Node) bool {
	policy, ok := facts.ClusterPolicy(f)
	if !ok || facts.PolicyOff(f, "driver") || !facts.WithoutDriverPod(n) || !facts.AwaitsDriver(n) {
		return false
	}
	for _, pod := range facts.Current(n, facts.Toolkit) {
		for _, s := range pod.Status.InitContainerStatuses {
			if s.Name != "driver-validation" || s.State.Running == nil ||
				f.Now.Sub(s.State.Running.StartedAt.Time) < facts.DriverGrace {
				continue
			}
			found := finding.Finding{
				Object: n.Object(), Confidence: finding.Likely, As: ofLabel,
				Title: "the GPU operator's pods are waiting for its driver container, which a label keeps off the node",
				Cause: "The ClusterPolicy lets the operator manage drivers. If the operator's validation finds no " +
					"driver on the host, it waits for what the driver container creates: the file .driver-ctr-ready " +
					"in /run/nvidia/validations, and the driver's root in /run/nvidia/driver. On this node, nothing " +
					"creates them.",
				Evidence: append(facts.LabelEvidence(n, "nvidia.com/gpu.deploy.driver"), finding.Evidence{
					Source: "ClusterPolicy " + policy.GetName() + " .spec.driver.enabled", Text: "true, or not set",
				}),
				Fix: finding.Fix{
					Text: "Find out what should install the driver on this node, and whether nvidia-smi works there. " +
						"If another program installs the driver, let that program also create " +
						"/run/nvidia/validations/.driver-ctr-ready and mount the driver's root (/ for a driver on " +
						"the host) at /run/nvidia/driver. If this applies to all GPU nodes, disable the operator's " +
						"driver (driver.enabled=false). Remove the label only if the node has no other driver and " +
						"should get the operator's.",
					Commands: []string{
						shell.Command("kubectl logs %s -n %s -c %s --tail=5", pod.Name, pod.Namespace, s.Name),
						shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", n.Name),
						shell.OnHost(n.Name, "nvidia-smi"),
					},
				},
			}
			found.Evidence = append(found.Evidence, facts.LastLines(f, pod, s.Name, 2)...)
			r.Add(found.ForPods(pod.Namespace + "/" + pod.Name))
			return true
		}
	}
	return false
}

// checkTaint reports a DaemonSet of the operator that a taint keeps off the node, if other operands on the node are
// waiting for its pod.
func checkTaint(f *facts.Facts, r *engine.Result, n *facts.Node) bool {
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		owner, kept := metav1.GetControllerOf(d), facts.Untolerated(n, d)
		if len(kept) == 0 || owner == nil || len(scheduler.MissingLabels(d.Spec.Template.Spec, n)) > 0 {
			continue
		}
		path := map[string]string{
			"ClusterPolicy": ".spec.daemonsets.tolerations", "NVIDIADriver": ".spec.tolerations",
		}[owner.Kind]
		e := waitingFor(f, n, d.Name)
		if path == "" || e.Text == "" {
			continue
		}
		field := owner.Kind + " " + owner.Name + " " + path
		taints, values := facts.TaintsText(kept), toleration("nvidia.com/gpu", corev1.TaintEffectNoSchedule)
		if kept[0].Key == "nvidia.com/gpu" { // otherwise the default, which the list replaces
			values = ""
		}
		for i := range kept {
			values += toleration(kept[i].Key, kept[i].Effect)
		}
		r.Add(finding.Finding{
			Object: n.Object(), As: ofDriver,
			Title: "the DaemonSet " + d.Name + " does not tolerate the node's taint " + taints +
				", and the GPU operator's other pods are waiting for its pod",
			Cause: "The operator takes the DaemonSet's tolerations only from " + field + ".",
			Evidence: []finding.Evidence{
				finding.FieldEvidence(n.Object(), ".spec.taints", "%s", taints),
				{Source: "DaemonSet " + d.Name + " .spec.template.spec.tolerations", Text: tolerationText(d)},
				e,
			},
			Fix: finding.Fix{
				Text: "Add the tolerations below to " + field + ". If a tool such as Helm manages this object, set " +
					"them there (in the operator's chart: daemonsets.tolerations). If the list has them already, the " +
					"operator's log shows why it does not apply them. Keep the taint, and do not edit the DaemonSet: " +
					"the operator would undo the change.",
				Values:   values,
				Commands: []string{shell.Command("kubectl edit %s %s", strings.ToLower(owner.Kind), owner.Name)},
			},
		})
		return true
	}
	return false
}

// toleration returns a list item in YAML. The strings are quoted, because a bundle can contain any text.
func toleration(key string, effect corev1.TaintEffect) string {
	return fmt.Sprintf("- {key: %q, operator: Exists, effect: %q}\n", key, effect)
}

// waitingFor returns evidence that an operand on the node is waiting for a DaemonSet's pod. Its init container is named
// after the DaemonSet: driver-validation, toolkit-validation, vgpu-devices-validation, vfio-pci-validation.
func waitingFor(f *facts.Facts, n *facts.Node, name string) (e finding.Evidence) {
	for _, pod := range n.Pods {
		if owner := metav1.GetControllerOf(pod); owner != nil && owner.Name == name {
			return finding.Evidence{} // the pod is older than the taint
		}
		t, _ := facts.OperandTrouble(f, pod)
		what, ok := strings.CutSuffix(t.Container, "-validation")
		if what = strings.TrimSuffix(strings.TrimSuffix(what, "-pci"), "s"); ok && len(t.Evidence) > 0 &&
			strings.Contains(name, what) {
			e = t.Evidence[0]
		}
	}
	return e
}

// blocked returns the IDs of the findings to expect while the operator's pods are waiting.
func blocked(more ...string) []string {
	return facts.GPULost(append(more, "op.operand-failing", "op.clusterpolicy", "dp.not-running", "dp.capacity-zero",
		"dp.none", "dp.unhealthy", "gfd.labels", "obs.dcgm-crash", "mig.manager-failed", "share.mps",
		"wl.cuda-vs-driver")...)
}

// hasChain reports whether the operator runs pods on the node.
func hasChain(n *facts.Node) bool {
	return slices.ContainsFunc(n.Pods, func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
			return slices.ContainsFunc(chainLinks(), func(l link) bool { return l.waits == c.Name })
		})
	})
}

func checkChain(f *facts.Facts, r *engine.Result, n *facts.Node) {
	for _, l := range chainLinks() {
		state, t := l.state(f, n)
		as := ""
		if l.part == facts.Driver && facts.AwaitsDriver(n) {
			as = ofDriver
		}
		switch {
		case state == linkBroken && l.file == "plugin-ready" &&
			(facts.GPUsOf(n.Status.Allocatable) == 0 || !facts.PluginReady(n)):
			return // a consequence, reported by the device plugin checks
		case state == linkBroken:
			found := l.finding(f, n, t)
			found.As = as
			r.Add(found)
			return
		case state == linkStarting:
			r.Add(finding.Finding{
				Severity: finding.Info, Confidence: finding.Likely, Object: n.Object(), Evidence: t.Evidence, As: as,
				Title: "the GPU operator is still starting its " + l.name + ", and the other operands are " +
					"waiting for it",
				Fix: finding.Fix{Text: "Wait: compiling a driver takes up to 20 minutes."},
			})
			return
		}
	}
	r.Pass(n.Object())
}

// state returns a link's state on a node, and the trouble of the pod that shows this state.
func (l link) state(f *facts.Facts, n *facts.Node) (linkState, facts.PodTrouble) {
	if l.part != "" {
		for _, pod := range facts.Current(n, l.part) {
			if l.file == vgpuReady && !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
				return c.Name == l.main
			}) {
				continue // the driver's pod, which has been checked
			}
			if state, t := l.made(f, pod); state != linkDone {
				return state, t
			}
		}
	}
	state, t := l.awaited(f, n)
	if state == linkBroken && t.Waits && l.part != "" {
		for _, pod := range facts.Current(n, l.part) {
			if own, bad := facts.OperandTrouble(f, pod); bad && !own.Waits {
				return state, own // another container of the pod fails
			}
		}
	}
	return state, t
}

// made returns a link's state according to the pod that performs the step.
func (l link) made(f *facts.Facts, pod *corev1.Pod) (linkState, facts.PodTrouble) {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Ready && (s.Name == l.main || len(pod.Spec.Containers) == 1) {
			return linkDone, facts.PodTrouble{}
		}
	}
	t, bad := facts.OperandTrouble(f, pod)
	switch {
	case !bad && podutils.IsPodReady(pod):
		return linkDone, t
	case !bad:
		t.Evidence = []finding.Evidence{finding.FieldEvidence(facts.PodObject(pod), ".status.phase", "%s, created %s",
			pod.Status.Phase,
			pod.CreationTimestamp.UTC().Format(time.RFC3339))}
		return linkStarting, t
	case t.Init && !slices.Contains([]string{"k8s-driver-manager", "mofed-validation"}, t.Container) && t.Waits:
		return linkStarting, t // the pod is waiting for an earlier link, which has been checked
	}
	return linkBroken, t
}

// awaited returns a link's state according to the init containers that wait for the step. If any of them has completed,
// the step is done.
func (l link) awaited(f *facts.Facts, n *facts.Node) (linkState, facts.PodTrouble) {
	state, found := linkAbsent, facts.PodTrouble{}
	for _, pod := range n.Pods {
		if facts.Ended(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		for _, s := range pod.Status.InitContainerStatuses {
			if s.Name != l.waits {
				continue
			}
			if s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
				return linkDone, facts.PodTrouble{}
			}
			t, bad := facts.OperandTrouble(f, pod)
			switch {
			case bad && l.blames(t, s.Name):
				if l.justMade(f, n) {
					state, found = max(state, linkStarting), t
				} else if state != linkBroken || found.Waits && !t.Waits { // a failure is more informative than a wait
					state, found = linkBroken, t
				}
			case state == linkAbsent && s.State.Running != nil:
				t.Evidence = facts.PodEvidence(f, pod, s)
				state, found = linkStarting, t
			}
		}
	}
	return state, found
}

// blames reports whether this link causes a pod's trouble: the link's init container is waiting or failing, and the
// reason is not an image or a volume. An unknown runtime handler counts as a toolkit failure.
func (l link) blames(t facts.PodTrouble, waiting string) bool {
	switch {
	case t.Reason == "FailedCreatePodSandBox":
		return l.part == facts.Toolkit && len(t.Evidence) > 0 &&
			slices.ContainsFunc(t.Evidence, func(e finding.Evidence) bool {
				return strings.Contains(e.Text, "no runtime for") || strings.Contains(e.Text, "RuntimeHandler") ||
					strings.Contains(e.Text, "runtime handler")
			})
	case t.Container != waiting, strings.Contains(t.Reason, "Image"), t.Reason == "FailedMount":
		return false
	}
	return true
}

// justMade reports whether the pod that performs the step became ready so recently that the waiting pods may not have
// noticed yet.
func (l link) justMade(f *facts.Facts, n *facts.Node) bool {
	if l.part == "" {
		return false
	}
	return slices.ContainsFunc(facts.Current(n, l.part),
		func(pod *corev1.Pod) bool { up := facts.UpFor(f, pod); return up > 0 && up < facts.OperandGrace })
}

func (l link) finding(f *facts.Facts, n *facts.Node, t facts.PodTrouble) finding.Finding {
	found := finding.Finding{
		Object: n.Object(), Evidence: t.Evidence, Confidence: finding.Likely,
		Title: "the GPU operator's pods are waiting for the " + l.name + ", the first broken link in the startup chain",
		Fix:   l.fix(f, t),
	}
	if t.Container == "mofed-validation" { // a signature explains it
		found.Evidence = append(found.Evidence,
			finding.Evidence{Source: "init container", Text: "waits in " + t.Container})
	}
	if l.file == "toolkit-ready" && slices.Contains(
		[]string{"CreateContainerError", "RunContainerError", "StartError"}, t.Reason,
	) && len(t.Evidence) > 0 {
		_, message, _ := strings.Cut(t.Evidence[0].Text, ": ")
		found.Title = "containers with GPUs cannot be created on the node: " + words.Clip(message)
		found.Fix.Text = "Fix the cause that the message names: the runtime or a hook on the node rejects the first " +
			"container that gets a GPU, and the operator's other pods are waiting for this container. The toolkit is " +
			"installed."
	}
	if !t.Waits && t.Reason != "StartError" && !strings.Contains(t.Reason, "ContainerError") &&
		!strings.Contains(t.Reason, "Image") {
		found.Crashed = t.Container
	}
	if l.part == "" {
		found.Evidence = append(found.Evidence, testPod(f, n, t.Evidence)...)
	}
	if l.file == "plugin-ready" {
		found.Severity = finding.Warning // GPUs are advertised; only the operator's own test fails
	}
	if l.file == "driver-ready" && len(facts.Current(n, facts.Driver)) == 0 {
		found.Evidence = append(facts.OperatorDenied(f), found.Evidence...)
	}
	if n.Host != nil && n.Host.Probe.Unread["validations"] == "" {
		files := strings.Join(n.Host.Probe.Validations, ", ")
		if files == "" {
			files = "(no file)"
		}
		found.Evidence = append(found.Evidence,
			finding.Evidence{Source: "nodes/" + n.Name + " /run/nvidia/validations", Text: files})
	}
	return found
}

// testPod returns the last log lines of the validator's test pod, which contain the reason for its failure. It returns
// nil unless the validator's log reports that the test failed.
func testPod(f *facts.Facts, n *facts.Node, said []finding.Evidence) []finding.Evidence {
	for _, pod := range n.Pods {
		if !facts.Ended(pod) || !slices.ContainsFunc(said, func(e finding.Evidence) bool {
			return strings.Contains(e.Text, "pod "+pod.Name+" is ")
		}) {
			continue
		}
		for s := range facts.Statuses(pod) {
			if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
				return facts.LastLines(f, pod, s.Name, 2)
			}
		}
	}
	return nil
}

func (l link) fix(f *facts.Facts, t facts.PodTrouble) finding.Fix {
	pod := t.Pod
	logs := shell.Command("kubectl logs %s -n %s", pod.Name, pod.Namespace)
	if t.Container != "" {
		logs = shell.Command("kubectl logs %s -n %s -c %s", pod.Name, pod.Namespace, t.Container)
	}
	see := []string{shell.Command("kubectl describe pod %s -n %s", pod.Name, pod.Namespace), logs}
	switch l.file {
	case "driver-ready", vgpuReady:
		text := "Fix the driver on the node: the pod's log shows why the driver fails."
		if len(f.Component(facts.Driver)) > 0 {
			return finding.Fix{Text: text, Commands: see}
		}
		text = "The operator does not install a driver here, so the node must have one: run nvidia-smi on the node, " +
			"and install a driver if it has none."
		if _, ok := facts.ClusterPolicy(f); ok && !facts.PolicyOff(f, "driver") {
			text = "The operator is configured to install the driver, but has created no pod for it. First fix the " +
				"cause that the operator's log shows. Installing a driver manually does not help."
			see = append([]string{facts.OperatorLog(f)}, see...)
		}
		if _, works := facts.LogEvidence(f, pod, "| NVIDIA-SMI "); works {
			text = "The node's driver works: the validation printed the output of nvidia-smi, and failed afterwards. " +
				"Fix the cause that its message names. Installing another driver does not help."
		}
		return finding.Fix{Text: text, Commands: see}
	case "toolkit-ready":
		return finding.Fix{
			Text:     "Fix the container toolkit, which configures the node's container runtime: its log and the pod's events show what fails.",
			Commands: see,
		}
	case "cuda-ready":
		return finding.Fix{
			Text: "A simple CUDA program does not succeed on the node although the driver and toolkit are ready. Its " +
				"log contains the CUDA error; on nodes with NVSwitches, check the Fabric Manager first.",
			Commands: see,
		}
	}
	return finding.Fix{
		Text: "The operator's validator requests a GPU, and waits while all GPUs are in use. Free a GPU, or delete " +
			"the validator's pod when a GPU is free.",
		Commands: append(see, facts.RestartPod(pod.Namespace, pod.Name)),
	}
}
