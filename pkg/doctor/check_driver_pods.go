package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Each thing that a driver's container fails for has a check; its log is asked for the most exact one first.

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

// driverPodSays finds a text in the logs of the node's driver pods that do not work now.
func driverPodSays(f *Facts, n *Node, texts ...string) (Evidence, bool) {
	for _, pod := range n.Component(Driver) {
		if podReady(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		if e, ok := logEvidence(f, pod, texts...); ok {
			return e, true
		}
	}
	return Evidence{}, false
}

func restarts(pod *corev1.Pod) int32 {
	var n int32
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		n += s.RestartCount
	}
	return n
}

// driverLogCheck fills in what the checks of driver pods' logs have in common.
func driverLogCheck(c Check, find func(f *Facts, n *Node) (Finding, bool)) Check {
	c.Layer, c.Needs, c.Doc = LayerDriver, []Need{NeedLogs}, cmp.Or(c.Doc, operatorDoc)
	c.Explains = driverSymptoms(append(c.Explains, "drv.not-loaded", "drv.devnodes", "drv.uvm-missing",
		"drv.lib-mismatch", "fab.fabricmanager")...)
	c.Run = func(f *Facts, r *Result) {
		if r.Lacks(f, "api/pods") {
			return
		}
		for _, n := range f.GPUNodes {
			finding, found := find(f, n)
			if !found {
				unreadDriverLogs(f, r, n)
				continue
			}
			finding.Object = n.Object()
			r.Add(finding)
		}
	}
	return c
}

// unreadDriverLogs records driver pods that do not work and whose log was not read.
func unreadDriverLogs(f *Facts, r *Result, n *Node) {
	for _, pod := range n.Component(Driver) {
		if !podReady(pod) && pod.DeletionTimestamp == nil && len(f.LogsOf(pod)) == 0 {
			lacksLog(f, r, pod)
			return
		}
	}
	r.Pass(n.Object())
}

func driverBuildCheck() Check {
	return driverLogCheck(Check{
		ID: "drv.build-fail", Title: "the driver's container cannot build or load the kernel module",
		Reads: "the logs of driver pods that are not ready",
		Why: "The container builds the module for the node's kernel and loads it. Which of the known reasons it has is told by other checks (headers, Secure Boot, nouveau, a GPU that the driver does not know); " +
			"this one tells of the rest, such as a driver that does not build on a newer kernel, or one on the host in its way.",
		Sources: []string{
			"gpu-operator#15", "gpu-operator#83", "gpu-operator#130", "gpu-operator#180", "gpu-operator#258",
			"gpu-operator#671", "gpu-operator#751", "gpu-operator#1390",
		},
	}, func(f *Facts, n *Node) (Finding, bool) {
		if _, exact := driverPodSays(
			f, n,
			slices.Concat(headersTexts(), secureBootTexts(), unsupportedTexts(), nouveauTexts(), upgradeTexts())...,
		); exact {
			return Finding{}, false
		}
		e, ok := driverPodSays(f, n, buildTexts()...)
		if !ok {
			return Finding{}, false
		}
		finding := Finding{
			Title: "the driver's container cannot build or load the kernel module", Evidence: []Evidence{e},
			Fix: Fix{
				Text: "Use a newer driver, which knows the kernel " + kernelOf(n) + " of " + osOf(n) +
					", or an older kernel. If the node has a driver of its own, do not install a second one: driver.enabled=false.",
				Commands: changeOperator(f, "driver.version", "VERSION"),
			},
		}
		if k, ok := grepKernel(
			n, "nvidia: disagrees about version", "nvidia: Unknown symbol", "nvidia: version magic",
			"NVRM: request_mem_region failed",
		); ok {
			finding.Evidence = append(finding.Evidence, k)
		}
		return finding, true
	})
}

func driverHeadersCheck() Check {
	return driverLogCheck(Check{
		ID: "drv.headers", Title: "the driver's container finds no headers for the node's kernel",
		Reads: "the logs of driver pods that are not ready, and the node's kernel",
		Why:   "The container installs headers of the node's kernel from the distribution's repository. It has none for old, private or very new kernels, or cannot be reached.",
		Sources: []string{
			"gpu-operator#85", "gpu-operator#155", "gpu-operator#205", "gpu-operator#300", "gpu-operator#457",
			"gpu-operator#526", "gpu-operator#541", "gpu-operator#1220",
		},
	}, func(f *Facts, n *Node) (Finding, bool) {
		e, ok := driverPodSays(f, n, headersTexts()...)
		return Finding{
			Title:    "the driver's container finds no headers for the node's kernel",
			Evidence: []Evidence{e, fieldEvidence(n.Object(), ".status.nodeInfo.kernelVersion", "%s", kernelOf(n))},
			Fix: Fix{
				Text: "Give the driver's container a repository that has headers for " + kernelOf(n) + " (" + osOf(n) +
					"): driver.repoConfig.configMapName. Or use a precompiled driver (driver.usePrecompiled=true), if NVIDIA " +
					"publishes one for that kernel, or move the node to a kernel of its distribution.",
				Commands: changeOperator(f, "driver.usePrecompiled", true),
			},
		}, ok
	})
}

func secureBootCheck() Check {
	c := driverLogCheck(Check{
		ID: "drv.secureboot", Title: "Secure Boot refuses the driver's module, because no trusted key has signed it",
		Reads: "the kernel log, the logs of driver pods that are not ready, whether Secure Boot is on",
		Why:   "With Secure Boot the kernel loads only modules that are signed by a key it knows. Lines from before a module was loaded are over.",
		Sources: []string{
			"gpu-driver-container#44", "gpu-operator#141", "gpu-operator#266", "gpu-operator#1142", "gpu-operator#1726",
			"talos#7174", "extensions#227",
		},
		Explains: []string{"drv.build-fail"},
	}, func(f *Facts, n *Node) (Finding, bool) {
		e, ok := driverPodSays(f, n, secureBootTexts()...)
		if !ok && n.Host != nil {
			if loaded, known := moduleLoaded(n.Host, "nvidia"); known && !loaded {
				e, ok = grepKernel(n, secureBootTexts()...)
			}
		}
		finding := Finding{
			Title:    "Secure Boot refuses the driver's module, because no key that the kernel trusts has signed it",
			Evidence: []Evidence{e},
			Fix: Fix{
				Text: "Use a module that is signed: packages of " + osOf(n) +
					" (on Ubuntu, linux-modules-nvidia-*), or a precompiled driver container. Or sign the module and enrol the key (mokutil --import, then reboot), or switch " +
					"Secure Boot off in the firmware.",
				Commands: []string{onHost(n.Name, "mokutil --sb-state")},
			},
		}
		if n.Host != nil && n.Host.Probe.SecureBoot != "" {
			finding.Evidence = append(finding.Evidence,
				Evidence{Source: "firmware of node " + n.Name, Text: "Secure Boot: " + n.Host.Probe.SecureBoot})
		}
		return finding, ok
	})
	c.Needs = append(c.Needs, NeedNode)
	return c
}

func unsupportedGPUCheck() Check {
	c := driverLogCheck(Check{
		ID: "drv.unsupported-gpu", Title: "the driver does not support the node's GPU",
		Reads:    "the kernel log, and the logs of driver pods that are not ready",
		Why:      "Each GPU needs a driver that is new enough. Blackwell works with the open kernel modules only, GPUs before Turing with the proprietary ones only. Lines about GPUs that nvidia-smi shows are over.",
		Sources:  []string{"siderolabs/extensions#227", "open-gpu-kernel-modules"},
		Explains: []string{"drv.build-fail"},
	}, func(f *Facts, n *Node) (Finding, bool) {
		e, ok := driverPodSays(f, n, unsupportedTexts()...)
		if v := n.gpus(); !ok && n.Host != nil && (v.smi == nil || len(v.smi.GPUs) < len(gpuAddresses(n))) {
			e, ok = grepKernel(n, unsupportedTexts()...)
		}
		finding := Finding{
			Title: "the driver does not support the node's GPU", Evidence: []Evidence{e},
			Fix: Fix{
				Text: "Install a newer driver" + versionNote(n) + ", or an older one if the GPU is older than Turing.",
			},
		}
		if containerDriver(f, n) {
			finding.Fix.Commands = changeOperator(f, "driver.version", "VERSION")
		}
		if strings.Contains(e.Text, "open kernel modules") {
			finding.Title =
				"the GPU works with NVIDIA's open kernel modules only, and the driver uses the proprietary ones"
			finding.Fix = Fix{
				Text:     "Use the open kernel modules: the package nvidia-open, or with the GPU operator driver.kernelModuleType=open.",
				Commands: changeOperator(f, "driver.kernelModuleType", "open"),
			}
		}
		return finding, ok
	})
	c.Needs = append(c.Needs, NeedNode)
	return c
}

func driverImageCheck() Check {
	return Check{
		ID: "drv.image-tag-missing", Layer: LayerDriver,
		Title: "there is no image of the driver for the node's system",
		Needs: []Need{NeedAPI},
		Reads: "what containers of driver pods wait for, their events, and the node's system and kernel",
		Why: "The operator puts the node's system into the image's tag (580.95.05-ubuntu24.04), or its kernel with precompiled drivers. NVIDIA publishes images for some of these only. A registry that cannot be reached is " +
			"another fault, and not told here.",
		Explains: driverSymptoms("drv.not-loaded", "drv.devnodes", "drv.uvm-missing", "img.not-found"),
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/platform-support.html",
		Sources: []string{"gpu-operator#170", "gpu-operator#273", "gpu-operator#308", "gpu-operator#418",
			"gpu-operator#560", "gpu-operator#647", "gpu-operator#690", "gpu-operator#1212", "gpu-operator#1623",
			"gpu-operator#2016"},
		Run: func(f *Facts, r *Result) {
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

// missingImage returns what the kubelet says of a driver's image that the registry does not have.
func missingImage(f *Facts, n *Node) (Evidence, string, bool) {
	absent := func(text string) bool {
		return containsAny(text, []string{"not found", "manifest unknown", "NotFound", "no matching manifest"}) &&
			!containsAny(text, []string{"i/o timeout", "no such host"})
	}
	for _, pod := range n.Component(Driver) {
		if podReady(pod) {
			continue
		}
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			w := s.State.Waiting
			if w == nil ||
				w.Reason != "ImagePullBackOff" && w.Reason != "ErrImagePull" && w.Reason != "InvalidImageName" {
				continue
			}
			if absent(w.Message) {
				return fieldEvidence(PodObject(pod), ".status.containerStatuses["+s.Name+"].state.waiting", "%s: %s",
					w.Reason, w.Message), s.Image, true
			}
			for _, e := range f.EventsOfPod(pod) {
				if strings.Contains(e.Message, "Failed to pull image") && absent(e.Message) {
					return clipped(Quote(e)), s.Image, true
				}
			}
		}
	}
	return Evidence{}, "", false
}

func driverImageFinding(f *Facts, n *Node, e Evidence, image string) Finding {
	return Finding{
		Title: "there is no image of the driver for the node's system", Object: n.Object(),
		Evidence: []Evidence{e, fieldEvidence(n.Object(), ".status.nodeInfo", "osImage: %s, kernelVersion: %s",
			n.Status.NodeInfo.OSImage, kernelOf(n))},
		Fix: Fix{
			Text: fmt.Sprintf("The image %s does not exist. Choose a driver.version that NVIDIA publishes for %s; where there is none, install the driver on the host and set driver.enabled=false. "+
				"With driver.usePrecompiled=true the tag has the kernel, and most kernels have no image.", image,
				osOf(n)),
			Commands: append([]string{command("kubectl get node %s --show-labels", n.Name)},
				changeOperator(f, "driver.enabled", false)...),
		},
	}
}

func driverUpgradeCheck() Check {
	return Check{
		ID: "drv.upgrade-stuck", Layer: LayerDriver, From: []string{"api/pods"},
		Title: "an upgrade of the driver does not get on",
		Needs: []Need{NeedAPI, NeedLogs},
		Reads: "the node's labels nvidia.com/gpu-driver-upgrade-state and nvidia.com/gpu.deploy.*, and the logs of driver pods that are not ready",
		Why: "The driver can be exchanged only when nothing uses it. Pods that hold GPUs, also those that do not ask for one, keep the old module loaded. The state upgrade-failed stays until somebody acts; other states " +
			"are told as information, as an upgrade may take an hour.",
		Explains: driverSymptoms("drv.not-loaded", "drv.devnodes", "drv.uvm-missing", "drv.build-fail",
			"op.deploy-label-off"),
		Doc: "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-driver-upgrades.html",
		Sources: []string{
			"gpu-operator#367", "gpu-operator#416", "gpu-operator#426", "gpu-operator#454", "gpu-operator#901",
			"gpu-operator#2166", "k8s-driver-manager#166",
		},
		Run: func(f *Facts, r *Result) {
			for _, n := range f.GPUNodes {
				checkUpgrade(f, r, n)
			}
		},
	}
}

// The label by which the operator upgrades drivers node by node.
const upgradeState = "nvidia.com/gpu-driver-upgrade-state"

func checkUpgrade(f *Facts, r *Result, n *Node) {
	finding := Finding{Object: n.Object(), Evidence: labelEvidence(n, upgradeState), Fix: Fix{
		Text: "End the pods that use GPUs on the node, or let the operator do it (driver.upgradePolicy.drain.enable=true); then have it try again, by the label.",
		Commands: append(changeOperator(f, "driver.upgradePolicy.drain.enable", true),
			command("kubectl get pods -A -o wide --field-selector spec.nodeName=%s", n.Name),
			command("kubectl label node %s --overwrite %s=upgrade-required", n.Name, upgradeState)),
	}}
	state := n.Labels[upgradeState]
	said, says := driverPodSays(f, n, upgradeTexts()...)
	switch {
	case says:
		finding.Title, finding.Evidence = "the driver cannot be upgraded, because something still uses it",
			append(finding.Evidence, said)
	case state == "upgrade-failed":
		finding.Title, finding.Confidence = "the upgrade of the node's driver failed", Certain
	case state != "" && state != "upgrade-done":
		finding.Severity, finding.Title = Info, "the node's driver is being upgraded"
		finding.Fix = Fix{
			Text: "Wait until the state is upgrade-done; if it stays for more than an hour, look at the operator's log.",
		}
	case slices.ContainsFunc(deployLabels(n),
		func(v string) bool { return strings.Contains(v, "paused-for-driver-upgrade") }) && state == "upgrade-done":
		finding.Severity, finding.Title = Warning,
			"parts of the operator are still paused on the node, though no upgrade of its driver goes on"
		finding.Fix = Fix{
			Text: "Restart the driver's pod on the node: its driver manager sets the labels nvidia.com/gpu.deploy.* back.",
		}
		for _, pod := range n.Component(Driver) {
			finding.Fix.Commands = append(finding.Fix.Commands, restartPod(pod.Namespace, pod.Name))
		}
	default:
		unreadDriverLogs(f, r, n)
		return
	}
	r.Add(finding)
}

// deployLabels returns the values of the labels by which the operator places its parts.
func deployLabels(n *Node) []string {
	var all []string
	for label, value := range n.Labels {
		if strings.HasPrefix(label, "nvidia.com/gpu.deploy.") {
			all = append(all, value)
		}
	}
	return all
}
