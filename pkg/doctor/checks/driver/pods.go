package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// The functions below return the log messages for each cause of a failing driver container. Each cause has its own
// check.

func headersTexts() []string {
	return []string{
		"Could not resolve Linux kernel version", "Unable to locate package linux-headers-", "No package kernel-devel-",
		"No match for argument: kernel-devel", "No match for argument: kernel-headers",
		"Unable to find a match: kernel-", "Unable to open the file '/lib/modules", "kernel-headers package not found",
	}
}

func secureBootTexts() []string {
	return []string{
		"Loading of unsigned module is rejected", "Key was rejected by service", "Required key not available",
		"failed to load, because it was not signed by a key that is trusted", "unsigned module loading is restricted",
	}
}

func unsupportedTexts() []string {
	return []string{
		"installed in this system is not supported by the", "requires use of the NVIDIA open kernel modules",
		"is not supported by open nvidia.ko", "not supported by the open kernel modules",
	}
}

func upgradeTexts() []string {
	return []string{
		"failed to uninstall nvidia driver components", "failed to unload driver",
		"Could not unload NVIDIA driver kernel modules", "Auto drain of the node", "auto drain is disabled",
	}
}

func buildTexts() []string {
	return []string{
		"Unable to load the kernel module 'nvidia.ko'", "GPL-incompatible module nvidia.ko",
		"An error occurred while performing the step", "Failed to build the kernel module",
		"Unable to build the NVIDIA kernel module", "modprobe: ERROR: could not insert 'nvidia'",
		"modprobe: FATAL: Module nvidia not found",
	}
}

// driverPodLog finds one of the strings in the logs of driver pods on the node that are not ready.
func driverPodLog(f *facts.Facts, n *facts.Node, texts ...string) (finding.Evidence, bool) {
	for _, pod := range n.Component(facts.Driver) {
		if podutils.IsPodReady(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		if e, ok := facts.LogEvidence(f, pod, texts...); ok {
			return e, true
		}
	}
	return finding.Evidence{}, false
}

// driverLogs returns the commands that show the logs of the node's driver pods.
func driverLogs(n *facts.Node) (all []string) {
	for _, pod := range facts.Current(n, facts.Driver) {
		all = append(all,
			shell.Command("kubectl logs -n %s %s --all-containers --tail=100", pod.Namespace, pod.Name))
	}
	return all
}

func restarts(pod *corev1.Pod) int32 {
	var n int32
	for s := range facts.Statuses(pod) {
		n += s.RestartCount
	}
	return n
}

// driverLogCheck sets the fields that all checks of driver pod logs have in common.
func driverLogCheck(c engine.Check, find func(f *facts.Facts, n *facts.Node) (finding.Finding, bool)) engine.Check {
	c.Layer, c.Needs, c.Doc = finding.LayerDriver, []engine.Need{engine.NeedLogs}, cmp.Or(c.Doc, operatorDoc)
	c.Explains = driverSymptoms(append(c.Explains, "drv.not-loaded", "drv.devnodes", "drv.uvm-missing",
		"drv.lib-mismatch", "fab.fabricmanager")...)
	c.Run = func(f *facts.Facts, r *engine.Result) {
		if r.Lacks(f, "api/pods") {
			return
		}
		for _, n := range f.GPUNodes {
			issue, found := find(f, n)
			if !found {
				unreadDriverLogs(f, r, n)
				continue
			}
			issue.Object = n.Object()
			r.Add(issue)
		}
	}
	return c
}

// unreadDriverLogs records the node as not checked if a driver pod is not ready and its log was not read. Otherwise, it
// records the node as passed.
func unreadDriverLogs(f *facts.Facts, r *engine.Result, n *facts.Node) {
	for _, pod := range n.Component(facts.Driver) {
		if !podutils.IsPodReady(pod) && pod.DeletionTimestamp == nil && len(f.LogsOf(pod)) == 0 {
			engine.LacksLog(f, r, pod)
			return
		}
	}
	r.Pass(n.Object())
}

func driverBuildCheck() engine.Check {
	return driverLogCheck(engine.Check{
		ID: "drv.build-fail", Symptom: engine.Precise, Title: "the driver's container cannot build or load the kernel module",
		Reads: "the logs of driver pods that are not ready",
		Why: "The container builds the module for the node's kernel and loads it. Other checks report the known causes (headers, Secure Boot, nouveau, a GPU that the driver does not support); " +
			"this check reports the rest, such as a driver that does not build on a newer kernel, or a conflicting driver on the host.",
		Sources: []string{
			"gpu-operator#15", "gpu-operator#83", "gpu-operator#130", "gpu-operator#180", "gpu-operator#258",
			"gpu-operator#671", "gpu-operator#751", "gpu-operator#1390",
		},
	}, func(f *facts.Facts, n *facts.Node) (finding.Finding, bool) {
		if _, exact := driverPodLog(
			f, n,
			slices.Concat(headersTexts(), secureBootTexts(), unsupportedTexts(), nouveauTexts(), upgradeTexts())...,
		); exact {
			return finding.Finding{}, false
		}
		e, ok := driverPodLog(f, n, buildTexts()...)
		if !ok {
			return finding.Finding{}, false
		}
		issue := finding.Finding{
			Title: "the driver's container cannot build or load the kernel module", Evidence: []finding.Evidence{e},
			Fix: finding.Fix{
				Text: "See the driver pod's log for the error from the compiler or modprobe. If the driver does not " +
					"support the kernel " + kernelOf(n) + " of " + osOf(n) + ", use a newer driver (driver.version " +
					"in the GPU operator's values) or an older kernel. If the host already has a driver, do not " +
					"install a second one: set driver.enabled=false.",
				Commands: driverLogs(n),
			},
		}
		if k, ok := grepKernel(
			n, "nvidia: disagrees about version", "nvidia: Unknown symbol", "nvidia: version magic",
			"NVRM: request_mem_region failed",
		); ok {
			issue.Evidence = append(issue.Evidence, k)
		}
		return issue, true
	})
}

func driverHeadersCheck() engine.Check {
	return driverLogCheck(engine.Check{
		ID: "drv.headers", Symptom: engine.Precise, Title: "the driver's container cannot find headers for the node's kernel",
		Reads: "the logs of driver pods that are not ready, and the node's kernel",
		Why:   "The container installs headers for the node's kernel from the distribution's repository, which may be unreachable, or lack headers for old, private, or very new kernels.",
		Sources: []string{
			"gpu-operator#85", "gpu-operator#155", "gpu-operator#205", "gpu-operator#300", "gpu-operator#457",
			"gpu-operator#526", "gpu-operator#541", "gpu-operator#1220",
		},
	}, func(f *facts.Facts, n *facts.Node) (finding.Finding, bool) {
		e, ok := driverPodLog(f, n, headersTexts()...)
		return finding.Finding{
			Title: "the driver's container cannot find headers for the node's kernel",
			Evidence: []finding.Evidence{
				e, finding.FieldEvidence(n.Object(), ".status.nodeInfo.kernelVersion", "%s", kernelOf(n)),
			},
			Fix: finding.Fix{
				Text: "Check in the log whether the package repository could be reached (driver.env sets a proxy). " +
					"If so, give the driver's container a package repository that contains headers for " +
					kernelOf(n) + " (" + osOf(n) +
					"): set driver.repoConfig.configMapName. Or use a precompiled driver " +
					"(driver.usePrecompiled=true, and a branch such as 580 as driver.version), if NVIDIA publishes " +
					"one for this kernel, or switch the node to a kernel from its distribution.",
				Commands: driverLogs(n),
			},
		}, ok
	})
}

func secureBootCheck() engine.Check {
	c := driverLogCheck(engine.Check{
		ID: "drv.secureboot", Title: "Secure Boot rejects the driver's module, because it is not signed with a trusted key",
		Reads: "the kernel log, the logs of driver pods that are not ready, and whether Secure Boot is on",
		Why:   "With Secure Boot, the kernel loads only modules that are signed with a trusted key. Log lines are ignored once a module is loaded.",
		Sources: []string{
			"gpu-driver-container#44", "gpu-operator#141", "gpu-operator#266", "gpu-operator#1142", "gpu-operator#1726",
			"talos#7174", "extensions#227",
		},
		Explains: []string{"drv.build-fail"},
	}, func(f *facts.Facts, n *facts.Node) (finding.Finding, bool) {
		e, ok := driverPodLog(f, n, secureBootTexts()...)
		if !ok && n.Host != nil {
			if loaded, known := moduleLoaded(n.Host, "nvidia"); known && !loaded {
				e, ok = grepKernel(n, secureBootTexts()...)
			}
		}
		issue := finding.Finding{
			Title:    "Secure Boot rejects the driver's module, because it is not signed with a key that the kernel trusts",
			Evidence: []finding.Evidence{e},
			Fix: finding.Fix{
				Text: "Use a module that is signed with a key that the kernel trusts, from the packages of " + osOf(n) +
					" (on Ubuntu, linux-modules-nvidia-*), or from a precompiled driver container. Or sign the " +
					"module and enroll the key (mokutil --import, then reboot), or disable Secure Boot in the " +
					"firmware.",
				Commands: []string{shell.OnHost(n.Name, "mokutil --sb-state")},
			},
		}
		if n.Host != nil && n.Host.Probe.SecureBoot == "disabled" || n.Distribution == facts.Talos {
			// Talos, kernel lockdown and module.sig_enforce require signatures even without Secure Boot.
			issue.Title = "the kernel rejects the driver's module, because it is not signed with a key that the " +
				"kernel trusts"
		}
		if n.Distribution == facts.Talos {
			issue.Fix.Text = "Use the driver's system extension for exactly the node's Talos release, and upgrade " +
				"both together: each release trusts only the modules that were built with it. Secure Boot is not the " +
				"cause."
		}
		if n.Host != nil && n.Host.Probe.SecureBoot != "" {
			issue.Evidence = append(issue.Evidence,
				finding.Evidence{Source: "firmware of node " + n.Name, Text: "Secure Boot: " + n.Host.Probe.SecureBoot})
		}
		return issue, ok
	})
	c.Needs = append(c.Needs, engine.NeedNode)
	return c
}

func unsupportedGPUCheck() engine.Check {
	c := driverLogCheck(engine.Check{
		ID: "drv.unsupported-gpu", Symptom: engine.Precise, Title: "the driver does not support the node's GPU",
		Reads:    "the kernel log, the logs of driver pods that are not ready, and working GPUs of the same type",
		Why:      "Each GPU needs a driver that is new enough. Blackwell works only with the open kernel modules, and GPUs before Turing only with the proprietary ones. Log lines about GPUs that nvidia-smi lists are ignored.",
		Sources:  []string{"siderolabs/extensions#227", "open-gpu-kernel-modules"},
		Explains: []string{"drv.build-fail"},
	}, func(f *facts.Facts, n *facts.Node) (finding.Finding, bool) {
		e, ok := driverPodLog(f, n, unsupportedTexts()...)
		if v := n.GPUs(); !ok && n.Host != nil && (v.SMI == nil || len(v.SMI.GPUs) < len(facts.GPUAddresses(n))) {
			e, ok = grepKernel(n, unsupportedTexts()...)
		}
		issue := finding.Finding{
			Title: "the driver does not support the node's GPU", Evidence: append(facts.RejectedAlone(n), e),
			Fix: finding.Fix{
				Text: "Install a newer driver" + versionNote(n) + ", or an older one if the GPU is older than Turing.",
			},
		}
		if containerDriver(f, n) {
			issue.Fix.Commands = facts.ChangeOperator(f, "driver.version", "VERSION")
		}
		switch {
		case words.ContainsAny(e.Text, []string{"by open nvidia.ko", "by the open kernel modules"}):
			issue.Title = "the GPU requires NVIDIA's proprietary kernel modules, but the driver uses the open ones"
			issue.Fix = finding.Fix{
				Text: "The open kernel modules support only Turing and later GPUs. Use the proprietary modules: a " +
					"driver package without -open, or, with the GPU operator, driver.kernelModuleType=proprietary " +
					"(this applies to all nodes).",
			}
		case strings.Contains(e.Text, "open kernel modules"):
			issue.Title =
				"the GPU requires NVIDIA's open kernel modules, but the driver uses the proprietary ones"
			issue.Fix = finding.Fix{
				Text: "Use the open kernel modules: the nvidia-open package, or, with the GPU operator, " +
					"driver.kernelModuleType=open.",
			}
			if containerDriver(f, n) {
				issue.Fix.Commands = facts.ChangeOperator(f, "driver.kernelModuleType", "open")
			}
		}
		return issue, ok
	})
	c.Needs = append(c.Needs, engine.NeedNode)
	return c
}

func driverImageCheck() engine.Check {
	return engine.Check{
		ID: "drv.image-tag-missing", Symptom: engine.Precise, Layer: finding.LayerDriver,
		Title: "no driver image exists for the node's operating system",
		Needs: []engine.Need{engine.NeedAPI},
		Reads: "the waiting reasons of containers in driver pods, the pods' events, and the node's operating system " +
			"and kernel",
		Why: "The image's tag contains the node's operating system (580.95.05-ubuntu24.04) or, for precompiled " +
			"drivers, its kernel. NVIDIA publishes images only for some systems and kernels. This check does not " +
			"report a registry that cannot be reached.",
		Explains: driverSymptoms("drv.not-loaded", "drv.devnodes", "drv.uvm-missing", "img.not-found"),
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/platform-support.html",
		Sources: []string{"gpu-operator#170", "gpu-operator#273", "gpu-operator#308", "gpu-operator#418",
			"gpu-operator#560", "gpu-operator#647", "gpu-operator#690", "gpu-operator#1212", "gpu-operator#1623",
			"gpu-operator#2016"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, n := range f.GPUNodes {
				if e, image, ok := missingImage(f, n); ok {
					r.Add(driverImageFinding(f, n, e, image))
					continue
				}
				r.Pass(n.Object())
			}
		},
	}
}

// missingImage returns the kubelet's message about a driver image that does not exist in the registry, and the image
// name.
func missingImage(f *facts.Facts, n *facts.Node) (finding.Evidence, string, bool) {
	absent := func(text string) bool {
		return words.ContainsAny(text, []string{"not found", "manifest unknown", "NotFound", "no matching manifest"}) &&
			!words.ContainsAny(text, []string{"i/o timeout", "no such host"})
	}
	for _, pod := range n.Component(facts.Driver) {
		if podutils.IsPodReady(pod) {
			continue
		}
		for s := range facts.Statuses(pod) {
			w := s.State.Waiting
			if w == nil ||
				w.Reason != "ImagePullBackOff" && w.Reason != "ErrImagePull" && w.Reason != "InvalidImageName" {
				continue
			}
			if absent(w.Message) {
				return finding.FieldEvidence(facts.PodObject(pod),
					".status.containerStatuses["+s.Name+"].state.waiting", "%s: %s",
					w.Reason, w.Message), s.Image, true
			}
			for _, e := range f.EventsOfPod(pod) {
				if strings.Contains(e.Message, "Failed to pull image") && absent(e.Message) {
					return finding.Clipped(facts.Quote(e)), s.Image, true
				}
			}
		}
	}
	return finding.Evidence{}, "", false
}

// precompiledElsewhere returns, in parentheses, the kernel of another node that runs a precompiled driver for the same
// branch and operating system. It returns "" if there is no such node.
func precompiledElsewhere(f *facts.Facts, image, kernel string) string {
	before, after, _ := strings.Cut(image, kernel)
	for _, n := range f.GPUNodes {
		for _, pod := range facts.Current(n, facts.Driver) {
			runs := kernelOf(n) != "" && kernelOf(n) != kernel && podutils.IsPodReady(pod)
			if runs && slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
				return c.Image == before+kernelOf(n)+after
			}) {
				return " (" + kernelOf(n) + ", as on node " + n.Name + ")"
			}
		}
	}
	return ""
}

func driverImageFinding(f *facts.Facts, n *facts.Node, e finding.Evidence, image string) finding.Finding {
	if image != "" && !strings.HasPrefix(image, "nvcr.io/nvidia/") {
		return finding.Finding{
			Title:  "the registry does not have the driver image for the node's operating system and kernel",
			Object: n.Object(),
			Evidence: []finding.Evidence{e, finding.FieldEvidence(n.Object(), ".status.nodeInfo",
				"osImage: %s, kernelVersion: %s", n.Status.NodeInfo.OSImage, kernelOf(n))},
			Fix: finding.Fix{
				Text: fmt.Sprintf("The image %s does not exist in this registry. Copy it there, or correct "+
					"driver.repository, driver.image and driver.version. NVIDIA publishes images for some operating "+
					"systems in nvcr.io/nvidia, and none for vGPU: build a missing image for %s yourself, and push "+
					"it.", image, osOf(n)),
				Commands: []string{shell.Command("kubectl get node %s --show-labels", n.Name)},
			},
		}
	}
	if kernel := kernelOf(n); kernel != "" && strings.Contains(image, kernel) {
		found := finding.Finding{
			Title: "no precompiled driver image exists for the node's kernel", Object: n.Object(),
			Evidence: []finding.Evidence{
				e, finding.FieldEvidence(n.Object(), ".status.nodeInfo", "kernelVersion: %s", kernel),
			},
			Fix: finding.Fix{
				Text: fmt.Sprintf("The image %s does not exist: NVIDIA publishes precompiled drivers only for some "+
					"kernels, and often some time after the kernel's release. Wait for the image, or boot a kernel "+
					"for which an image exists%s, and hold the kernel's package. Or set driver.usePrecompiled=false, "+
					"so that the driver is built on the node, and set driver.version to a full version: a branch "+
					"alone (such as 535) works only with precompiled "+
					"images.", image, precompiledElsewhere(f, image, kernel)),
			},
		}
		if branch := facts.PolicyString(f, "spec", "driver", "version"); strings.Contains(branch, ".") {
			found.Fix.Commands = facts.ChangeOperator(f, "driver.usePrecompiled", false)
		} else if policy, ok := facts.ClusterPolicy(f); ok {
			found.Fix.Commands = []string{shell.Command(
				"kubectl get clusterpolicy %s -o jsonpath='{.spec.driver}{\"\\n\"}'", policy.GetName(),
			)}
		}
		return found
	}
	return finding.Finding{
		Title: "no driver image exists for the node's operating system", Object: n.Object(),
		Evidence: []finding.Evidence{e,
			finding.FieldEvidence(n.Object(), ".status.nodeInfo", "osImage: %s, kernelVersion: %s",
				n.Status.NodeInfo.OSImage, kernelOf(n))},
		Fix: finding.Fix{
			Text: fmt.Sprintf("The image %s does not exist. Choose a driver.version that NVIDIA publishes for %s; if none exists, install the driver on the host and set driver.enabled=false. "+
				"With driver.usePrecompiled=true, the tag contains the kernel, and most kernels have no image.", image,
				osOf(n)),
			Commands: []string{shell.Command("kubectl get node %s --show-labels", n.Name)},
		},
	}
}

func driverUpgradeCheck() engine.Check {
	return engine.Check{
		ID: "drv.upgrade-stuck", Symptom: engine.Precise, Layer: finding.LayerDriver, From: []string{"api/pods"},
		Title: "a driver upgrade is stuck",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "the node's labels nvidia.com/gpu-driver-upgrade-state and nvidia.com/gpu.deploy.*, and the logs of driver pods that are not ready",
		Why: "The driver can be replaced only when nothing uses it. Pods that use GPUs, even without requesting one, " +
			"keep the old module loaded. The upgrade-failed state remains until the user acts; other states are " +
			"Info, because an upgrade may take an hour.",
		Explains: driverSymptoms("drv.not-loaded", "drv.devnodes", "drv.uvm-missing", "drv.build-fail",
			"op.deploy-label-off"),
		Doc: "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-driver-upgrades.html",
		Sources: []string{
			"gpu-operator#367", "gpu-operator#416", "gpu-operator#426", "gpu-operator#454", "gpu-operator#901",
			"gpu-operator#2166", "k8s-driver-manager#166",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				checkUpgrade(f, r, n)
			}
		},
	}
}

// upgradeState is the label with which the operator tracks the driver upgrade on a node.
const upgradeState = "nvidia.com/gpu-driver-upgrade-state"

func checkUpgrade(f *facts.Facts, r *engine.Result, n *facts.Node) {
	state := n.Labels[upgradeState]
	issue := finding.Finding{Object: n.Object(), Evidence: facts.LabelEvidence(n, upgradeState), Fix: finding.Fix{
		Text: "Find the pods and processes that use GPUs on the node, and terminate them when their work can be " +
			"interrupted (or let the operator drain each node during upgrades: " +
			"driver.upgradePolicy.drain.enable=true).",
		Commands: []string{shell.Command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", n.Name)},
	}}
	if state != "" {
		issue.Fix.Text += " Then set the label to retry the upgrade."
		issue.Fix.Commands = append(issue.Fix.Commands,
			shell.Command("kubectl label node %s --overwrite %s=upgrade-required", n.Name, upgradeState))
	}
	said, says := driverPodLog(f, n, upgradeTexts()...)
	switch {
	case says:
		issue.Title, issue.Evidence = "the driver cannot be upgraded, because it is still in use",
			append(issue.Evidence, said)
	case state == "upgrade-failed":
		issue.Title, issue.Confidence = "the upgrade of the node's driver failed", finding.Certain
	case state != "" && state != "upgrade-done":
		issue.Severity, issue.Title = finding.Info, "the node's driver is being upgraded"
		issue.Fix = finding.Fix{
			Text: "Wait until the state is upgrade-done. If it does not change for more than an hour, check the operator's log.",
		}
	case slices.ContainsFunc(deployLabels(n),
		func(v string) bool { return strings.Contains(v, "paused-for-driver-upgrade") }) && state == "upgrade-done":
		issue.Severity, issue.Title = finding.Warning,
			"operator components are still paused on the node, although its driver upgrade is complete"
		issue.Fix = finding.Fix{
			Text: "When the node's GPU pods can be interrupted, restart the driver's pod there. This reloads the " +
				"driver, and the pod's driver manager resets the nvidia.com/gpu.deploy.* labels.",
		}
		for _, pod := range n.Component(facts.Driver) {
			issue.Fix.Commands = append(issue.Fix.Commands, facts.RestartPod(pod.Namespace, pod.Name))
		}
	default:
		unreadDriverLogs(f, r, n)
		return
	}
	r.Add(issue)
}

// deployLabels returns the values of the labels with which the operator schedules its operands.
func deployLabels(n *facts.Node) []string {
	var all []string
	for label, value := range n.Labels {
		if strings.HasPrefix(label, "nvidia.com/gpu.deploy.") {
			all = append(all, value)
		}
	}
	return all
}
