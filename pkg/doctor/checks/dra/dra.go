// Package dra checks NVIDIA's DRA driver, and its ResourceSlices and ResourceClaims.
package dra

import (
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts/scheduler"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

const (
	draDomain = "compute-domain.nvidia.com"
)

// Checks returns the checks for dynamic resource allocation: GPUs allocated to claims, and compute domains.
//
// Of a claim's CEL selectors, dra.unallocatable evaluates only comparisons of an attribute with a constant: everything
// else requires the API server's CEL environment, and an incorrect result would blame the wrong selector. dra.prepare
// does not detect prepared claims without device nodes; drv.devnodes in the driver layer reports missing device nodes.
func Checks() []engine.Check {
	return []engine.Check{unallocatableCheck(), prepareCheck(), imexCheck(), staleSliceCheck(), doubleCheck()}
}

func unallocatableCheck() engine.Check {
	return engine.Check{
		ID: "dra.unallocatable", Layer: finding.LayerDRA, From: []string{"api/pods"},
		Title: "no device is allocated to a pod's GPU claim",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "Pending pods with resource claims, their claims, DeviceClasses, ResourceSlices of NVIDIA's drivers, " +
			"the drivers' DaemonSets, labels and taints on GPU nodes, and the scheduler's messages",
		Why: "A claim needs an existing DeviceClass, a driver that offers devices in ResourceSlices, and a free " +
			"device that matches. The chart of NVIDIA's driver does not offer GPUs unless resources.gpus.enabled is " +
			"set, and selects nodes by labels. If all devices are in use, nothing is wrong with the cluster, but the " +
			"pod must wait.",
		Explains: []string{
			"sched.insufficient-gpu", "sched.unschedulable", "sched.none-advertised", "sched.all-in-use",
			"sched.waiting", "dp.none",
		},
		Doc: "https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/",
		Sources: []string{
			"dra-driver-nvidia-gpu#33", "dra-driver-nvidia-gpu#35", "dra-driver-nvidia-gpu#46",
			"dra-driver-nvidia-gpu#150", "dra-driver-nvidia-gpu#1084", "HAMi k8s-dra-driver#5", "kubernetes#126320",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			if !usesClaims(f) {
				return
			}
			for _, what := range []string{"api/resourceclaims", "api/resourceslices", "api/deviceclasses"} {
				if r.Lacks(f, what) {
					return
				}
			}
			for _, pod := range f.ClaimPods {
				if pod.Spec.NodeName == "" && len(pod.Spec.ResourceClaims) > 0 &&
					f.Now.Sub(pod.CreationTimestamp.Time) >= facts.OperandGrace {
					checkClaims(f, r, pod)
				}
			}
		},
	}
}

func usesClaims(f *facts.Facts) bool {
	return len(f.ClaimPods) > 0
}

func checkClaims(f *facts.Facts, r *engine.Result, pod *corev1.Pod) {
	said := schedulerMessages(f, pod)
	for _, wanted := range pod.Spec.ResourceClaims {
		claim := facts.ClaimOf(f, pod, wanted)
		if claim == nil {
			if e, ok := mentions(said, "resourceclaim", "resource claim"); ok && f.OffersClaims() {
				r.Add(claimFinding(pod, []finding.Evidence{e}, "the pod's resource claim does not exist",
					finding.Fix{
						Text: "Check that the claim's template exists, and check the pod's events.",
						Commands: []string{
							shell.Command("kubectl get resourceclaims,resourceclaimtemplates -n %s", pod.Namespace),
							shell.Command("kubectl describe pod %s -n %s", pod.Name, pod.Namespace),
						},
					}))
			}
			continue
		}
		if claim.Status.Allocation != nil {
			continue
		}
		for _, class := range facts.ClassesOf(claim) {
			if found, ok := checkClass(f, pod, claim, class, said); ok {
				r.Add(found)
				return
			}
		}
	}
}

// checkClass returns a finding that explains why no device in a class can be allocated to a claim.
func checkClass(
	f *facts.Facts, pod *corev1.Pod, claim *resourcev1.ResourceClaim, class string, said []finding.Evidence,
) (finding.Finding, bool) {
	object := finding.Object{Kind: "ResourceClaim", Namespace: claim.Namespace, Name: claim.Name}
	evidence := append(
		[]finding.Evidence{
			finding.FieldEvidence(object, ".spec.devices.requests[].exactly.deviceClassName", "%s", class),
		}, said...,
	)
	at := slices.IndexFunc(f.DeviceClasses, func(d resourcev1.DeviceClass) bool { return d.Name == class })
	ours := strings.HasSuffix(class, "nvidia.com") || strings.Contains(class, "gpu") && !facts.OfOthers(class)
	other := ""
	driver := facts.DRAForGPUs
	if at >= 0 {
		for _, s := range f.DeviceClasses[at].Spec.Selectors {
			if s.CEL != nil && strings.Contains(s.CEL.Expression, "nvidia.com") {
				ours = true
			}
			if s.CEL != nil && strings.Contains(s.CEL.Expression, draDomain) {
				driver = draDomain
			}
			if s.CEL == nil {
				continue
			}
			if m := ofDriver.FindStringSubmatch(s.CEL.Expression); m != nil && !strings.HasSuffix(m[1], "nvidia.com") {
				other = m[1]
			}
		}
	}
	if strings.HasPrefix(class, "compute-domain") {
		driver = draDomain
	}
	if other != "" {
		driver = other
	}
	if found, ok := ofUnmatched(f, pod, claim, class, driver, said); ok && at >= 0 && (ours || other != "") {
		return found, true
	}
	if !ours || other != "" {
		return ofOther(f, pod, other, evidence)
	}
	install :=
		[]string{shell.Command("helm install %s %s --repo %s -n %s --create-namespace --set resources.gpus.enabled=true --set gpuResourcesEnabledOverride=true",
			facts.ChartDRA, facts.ChartDRA, facts.ChartRepository(facts.ChartDRA), facts.ChartDRA)}
	if h, ok := facts.ReleaseOf(f, facts.ChartDRA); ok {
		install = []string{facts.HelmUpgrade(h, "resources.gpus.enabled=true", "gpuResourcesEnabledOverride=true")}
	} else if len(f.Component(facts.DRADriver)) > 0 { // installed, but the release is unknown
		install = []string{
			"helm list -A --filter dra # then upgrade that release to the same version with --reuse-values --set resources.gpus.enabled=true --set gpuResourcesEnabledOverride=true",
		}
	}
	total, free := 0, 0
	if at >= 0 {
		total, free = devices(f, driver, &f.DeviceClasses[at])
	}
	switch {
	case at < 0:
		var has []string
		for _, d := range f.DeviceClasses {
			has = append(has, d.Name)
		}
		evidence = append(
			evidence,
			finding.FieldEvidence(
				finding.Object{Kind: "Cluster"}, "DeviceClasses", "%s", words.OrNone(words.Joined(has)),
			),
		)
		title := "the claim names a DeviceClass that does not exist"
		text := "Specify an existing DeviceClass, or let the DRA driver's chart create this one."
		if d := scheduler.DaemonSetOf(f, nil, facts.DRADriver); d != nil && serving(f) == nil &&
			strings.HasSuffix(class, ".nvidia.com") && driver == facts.DRAForGPUs {
			title = "the DRA driver is installed without GPU support, so the DeviceClass " + class + " does not exist"
			evidence = append(evidence, finding.FieldEvidence(finding.Object{Kind: "DaemonSet",
				Namespace: d.Namespace, Name: d.Name}, ".spec.template.spec.containers", "no container gpus"))
			text = "Enable GPUs in the values of the DRA driver's chart (both values are required). Creating the " +
				"DeviceClass manually does not help: no device would match."
			if slices.ContainsFunc(f.GPUNodes, func(n *facts.Node) bool {
				return facts.GPUsOf(n.Status.Allocatable) > 0
			}) {
				text += " First disable the device plugin on the nodes whose GPUs are to be claimed (in the GPU " +
					"operator, devicePlugin.enabled=false): otherwise both allocate the same GPUs."
			}
		}
		if !strings.HasSuffix(class, "nvidia.com") { // NVIDIA's chart does not create the class
			install = []string{"kubectl get deviceclasses"}
		}
		return claimFinding(pod, evidence, title, finding.Fix{Text: text, Commands: install}), true
	case total == 0:
		evidence = append(evidence,
			finding.FieldEvidence(
				finding.Object{Kind: "Cluster"}, "ResourceSlices", "no slice of the driver %s has a device", driver,
			))
		if found, ok := excluded(f, pod, evidence); ok {
			return found, true
		}
		fix := finding.Fix{
			Text: "Run NVIDIA's DRA driver on the GPU nodes, and enable GPUs in its chart: they are disabled by " +
				"default. Disable the device plugin on them first.",
			Commands: install,
		}
		if d := serving(f); d != nil {
			fix = finding.Fix{
				Text: "The DRA driver is installed, with GPUs enabled, but its plugin offers no GPUs: the log of the " +
					"plugin's gpus container on the GPU nodes shows why. If the driver was installed after the " +
					"plugin started, restart the plugin's pods.",
				Commands: []string{
					shell.Command("kubectl logs -n %s daemonset/%s -c gpus --tail=50", d.Namespace, d.Name),
				},
			}
		}
		if driver == draDomain {
			fix = finding.Fix{
				Text:     "Run the compute domain plugin of NVIDIA's DRA driver on the GPU nodes.",
				Commands: []string{"kubectl get pods -A | grep dra-driver"},
			}
		}
		title := "no ResourceSlice offers a device for the claim"
		if len(f.GPUNodes) == 0 && serving(f) != nil && serving(f).Status.DesiredNumberScheduled == 0 {
			title = "the cluster has no GPU node, so no ResourceSlice offers a device for the claim"
			fix = finding.Fix{
				Text: "Add a GPU node, or keep at least one in the node pool: an autoscaler does not know which devices " +
					"the nodes of an empty pool would offer. GKE's autoscaler knows them if the pool's nodes have the " +
					"label cloud.google.com/gke-nvidia-gpu-dra-driver=true: set it on the node pool (--node-labels). " +
					"The driver and the claim need no change.",
			}
		}
		return claimFinding(pod, evidence, title, fix), true
	case free == 0:
		evidence = append(evidence,
			finding.FieldEvidence(finding.Object{Kind: "Cluster"}, "ResourceSlices", "%s of %s, all allocated",
				count.Of(total, "device"), driver))
		if driver == draDomain && strings.Contains(class, "channel") {
			return channelsTaken(f, pod, evidence), true
		}
		found := claimFinding(pod, evidence, "the claim is waiting, because all devices are in use",
			finding.Fix{Text: "Free a GPU, or add nodes.", Commands: []string{"kubectl get resourceclaims -A"}})
		found.Severity = finding.Warning
		return found, true
	}
	if len(said) == 0 || slices.ContainsFunc(scheduler.Pending(f), func(p scheduler.PendingPod) bool {
		return p.Pod == pod && p.Id != "" && p.Id != "sched.waiting" // for a reason other than the claim
	}) {
		return finding.Finding{}, false
	}
	found := claimFinding(pod, append(evidence, finding.FieldEvidence(finding.Object{Kind: "Cluster"}, "ResourceSlices",
		"%s of %s, %d not allocated", count.Of(total, "device"), driver, free)),
		"some devices are not allocated, but the scheduler cannot allocate any of them to the claim", finding.Fix{
			Text: "Compare the claim's selectors, count and constraints with the attributes and taints of the " +
				"devices, and the pod's node selector with the devices' nodes.",
			Commands: []string{
				shell.Command("kubectl get resourceclaim %s -n %s -o yaml", claim.Name, claim.Namespace),
				"kubectl get resourceslices -o yaml",
			},
		})
	found.Confidence = finding.Possible
	if _, ok := mentions(said, "cannot allocate all claims"); ok {
		found.Confidence = finding.Likely
	} else {
		found.Severity = finding.Warning // the pod may be pending for another reason
	}
	return found, true
}

// ofDriver matches the driver that a DeviceClass selects.
var ofDriver = regexp.MustCompile(`device\.driver == ["']([\w.-]+)["']`)

// ofOther returns the finding about a claim for a GPU whose driver is not NVIDIA's and offers no devices.
func ofOther(
	f *facts.Facts, pod *corev1.Pod, driver string, evidence []finding.Evidence,
) (found finding.Finding, ok bool) {
	total, _ := devices(f, driver, nil)
	if driver == "" || !strings.Contains(driver, "gpu") && !facts.OfOthers(driver) || total > 0 {
		return found, false
	}
	evidence = append(evidence, finding.FieldEvidence(finding.Object{Kind: "Cluster"}, "ResourceSlices",
		"no slice of the driver %s has a device", driver))
	return claimFinding(pod, evidence, "no ResourceSlice of "+driver+" offers a device for the claim",
		finding.Fix{
			Text: "Run the vendor's DRA driver on the GPU nodes. If its pods are running there, their logs show why " +
				"they publish no devices.",
			Commands: []string{"kubectl get pods -A -o wide", "kubectl get resourceslices"},
		}), true
}

// serving returns the DaemonSet of the DRA driver if its GPU plugin is enabled, or nil.
func serving(f *facts.Facts) *appsv1.DaemonSet {
	var n *facts.Node
	if len(f.GPUNodes) > 0 {
		n = f.GPUNodes[0]
	}
	d := scheduler.DaemonSetOf(f, n, facts.DRADriver)
	if d == nil || !slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return c.Name == "gpus"
	}) {
		return nil
	}
	return d
}

// excluded returns a finding about a pod whose claim no device matches, because labels or taints keep the DRA driver's
// DaemonSet off all GPU nodes.
func excluded(f *facts.Facts, pod *corev1.Pod, evidence []finding.Evidence) (finding.Finding, bool) {
	if f.Missing("api/daemonsets") != "" || len(f.GPUNodes) == 0 {
		return finding.Finding{}, false
	}
	n := f.GPUNodes[0]
	d := scheduler.DaemonSetOf(f, n, facts.DRADriver)
	if d == nil || d.Status.DesiredNumberScheduled > 0 {
		return finding.Finding{}, false
	}
	why, e := scheduler.Excludes(d, n)
	if why == "" {
		return finding.Finding{}, false
	}
	object := finding.Object{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name}
	evidence = append(evidence, finding.FieldEvidence(object, ".status.desiredNumberScheduled", "0"), e)
	found := claimFinding(pod, evidence,
		"the DRA driver runs on no GPU node, because "+why+": no device is offered for the claim",
		scheduler.LetIn("DRA driver", d, n))
	found.Confidence = finding.Likely
	for _, n := range f.GPUNodes {
		found.Nodes = append(found.Nodes, n.Name)
	}
	return found, true
}

func claimFinding(pod *corev1.Pod, evidence []finding.Evidence, title string, fix finding.Fix) finding.Finding {
	return finding.Finding{
		Object: facts.PodObject(pod), Confidence: finding.Certain, Title: title, Evidence: evidence, Fix: fix,
	}
}

// schedulerMessages quotes the scheduler's message that explains why a pod is not scheduled.
func schedulerMessages(f *facts.Facts, pod *corev1.Pod) []finding.Evidence {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return []finding.Evidence{{
				Source: facts.PodObject(pod).String() +
					" .status.conditions[PodScheduled]", Time: c.LastTransitionTime.Time,
				Text: words.Clip(c.Message),
			}}
		}
	}
	for _, e := range f.EventsOfPod(pod) {
		if e.Reason == "FailedScheduling" {
			return []finding.Evidence{finding.Clipped(facts.Quote(e))}
		}
	}
	return nil
}

func mentions(said []finding.Evidence, texts ...string) (finding.Evidence, bool) {
	for _, e := range said {
		for _, text := range texts {
			if strings.Contains(e.Text, text) {
				return e, true
			}
		}
	}
	return finding.Evidence{}, false
}

func prepareCheck() engine.Check {
	return engine.Check{
		ID: "dra.prepare", Symptom: engine.Precise, Layer: finding.LayerDRA, From: []string{"api/pods"},
		Title:    "the DRA driver cannot prepare a pod's claim on its node",
		Needs:    []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads:    "FailedPrepareDynamicResources events of pods that are not ready, DRA driver pods on their nodes, sockets in the kubelet's plugins_registry",
		Why:      "The driver's plugin on the node must prepare an allocated claim before the pod starts. Events of pods that are ready or no longer exist are ignored.",
		Explains: []string{"wl.pod-failing", "rt.sandbox-failed"},
		Doc:      "https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/",
		Sources: []string{"dra-driver-nvidia-gpu#4", "dra-driver-nvidia-gpu#99", "dra-driver-nvidia-gpu#222",
			"dra-driver-nvidia-gpu#736", "dra-driver-nvidia-gpu#814", "kubernetes#133920",
			"dra-driver-nvidia-gpu#1380"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if !usesClaims(f) || r.Lacks(f, "api/events") || r.Lacks(f, "api/pods") {
				return
			}
			for _, pod := range f.ClaimPods {
				if pod.Spec.NodeName != "" && len(pod.Spec.ResourceClaims) > 0 && !podutils.IsPodReady(pod) &&
					pod.DeletionTimestamp == nil {
					checkPrepare(f, r, pod)
				}
			}
		},
	}
}

var deadlocks = regexp.MustCompile(`^v1\.34\.[01](\D|$)`)

// deadlocked reports whether the kubelet calls a driver unregistered although the driver has published devices on the
// node and has run for at least 30 minutes. It returns true only for kubelet releases with the bug kubernetes#133920.
func deadlocked(f *facts.Facts, n *facts.Node, message string) bool {
	_, rest, _ := strings.Cut(message, "DRA driver ")
	driver, _, unregistered := strings.Cut(rest, " is not registered")
	return unregistered && deadlocks.MatchString(n.Status.NodeInfo.KubeletVersion) &&
		slices.ContainsFunc(facts.Current(n, facts.DRADriver), func(plugin *corev1.Pod) bool {
			return podutils.IsPodReady(plugin) && f.Age(plugin) >= 30*time.Minute
		}) &&
		slices.ContainsFunc(f.ResourceSlices, func(s resourcev1.ResourceSlice) bool {
			return s.Spec.Driver == driver && s.Spec.NodeName != nil && *s.Spec.NodeName == n.Name
		})
}

func checkPrepare(f *facts.Facts, r *engine.Result, pod *corev1.Pod) {
	for _, e := range f.EventsOfPod(pod) {
		if e.Reason != "FailedPrepareDynamicResources" ||
			!strings.Contains(e.Message, "nvidia.com") && !facts.NvidiaClaims(f, pod) {
			continue
		}
		found := finding.Finding{
			Object: facts.PodObject(pod), Nodes: []string{pod.Spec.NodeName},
			Title:    "the DRA driver cannot prepare the pod's claim",
			Evidence: []finding.Evidence{finding.Clipped(facts.Quote(e))},
			Fix: finding.Fix{
				Text: "Fix the cause named at the end of the message. If it names no cause, restart the driver's " +
					"plugin on the node. If the error persists, delete the pod, and the claim if no other pod uses " +
					"it, so that another device is allocated.",
			},
		}
		if onlyOne(f, pod) {
			found.Fix.Text = "Fix the cause named at the end of the message. If it names no cause, restart the driver's " +
				"plugin on the node. Deleting the pod or the claim does not help, because no other device is of " +
				"this kind. If the error persists, update the DRA driver, or claim a device of another kind."
		}
		if strings.Contains(e.Message, "empty device edits") {
			found.Title = "the DRA driver's plugin on the node knows no device files of the GPU"
			found.Confidence = finding.Likely
			found.Cause = "The plugin reads the driver's files when it starts. Either the GPU driver or the container " +
				"toolkit of the node was replaced since, or they were not ready at that time."
			found.Fix.Text = "Once the GPU driver and the toolkit of the node are ready, restart the DRA driver's " +
				"plugin there, which then reads the files again. Deleting the claim does not help."
		}
		if strings.Contains(e.Message, "is not registered") {
			found.Title = "the DRA driver is not registered with the kubelet of the pod's node"
			found.Fix.Text =
				"Restart the driver's plugin on the node so that it registers. If the plugin has no pod there, find out why its DaemonSet excludes the node."
		}
		n := f.Node(pod.Spec.NodeName)
		if n != nil && deadlocked(f, n, e.Message) {
			found.Title = "the kubelet has lost the connection to the DRA driver, because of a bug in Kubernetes " +
				"1.34.0 and 1.34.1"
			found.Confidence = finding.Likely
			version := n.Status.NodeInfo.KubeletVersion
			found.Evidence = append(found.Evidence,
				finding.FieldEvidence(n.Object(), ".status.nodeInfo.kubeletVersion", "%s", version))
			found.Fix = finding.Fix{
				Text: "Restart the kubelet on the node, and upgrade the nodes to Kubernetes 1.34.2 or later. In " +
					"earlier 1.34 releases, the kubelet deadlocks when its connection to a driver has been idle for " +
					"30 minutes.",
			}
			if !strings.Contains(version, "+") { // k3s, RKE2 and k0s have no unit for the kubelet
				found.Fix.Commands = []string{shell.OnHost(n.Name, "sudo systemctl restart kubelet")}
			}
			r.Add(found)
			return
		}
		if n != nil {
			for _, plugin := range facts.Current(n, facts.DRADriver) {
				found.Evidence = append(found.Evidence, facts.LastLines(f, plugin, facts.MainContainer(plugin), 1)...)
				found.Fix.Commands = append(found.Fix.Commands, facts.RestartPod(plugin.Namespace, plugin.Name))
			}
			if len(facts.Current(n, facts.DRADriver)) == 0 {
				found.Evidence = append(
					found.Evidence, finding.FieldEvidence(n.Object(), "pods", "no DRA driver pod"),
				)
				found.Fix.Commands = append(found.Fix.Commands, "kubectl get daemonsets -A | grep dra-driver")
			}
			if n.Host != nil {
				for _, s := range n.Host.Probe.DevicePlugins {
					if strings.Contains(s.Path, "plugins_registry") && strings.Contains(s.Path, "nvidia") {
						found.Evidence = append(found.Evidence,
							finding.FieldEvidence(n.Object(), s.Path, "created %s",
								s.Modified.UTC().Format("2006-01-02T15:04:05Z")))
					}
				}
			}
		}
		r.Add(found)
		return
	}
	r.Pass(facts.PodObject(pod))
}
