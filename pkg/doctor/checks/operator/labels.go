package operator

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

func migManagerCheck() engine.Check {
	return engine.Check{
		ID:      "mig.manager-failed",
		Symptom: engine.Explained, Layer: finding.LayerOperator,
		From:  []string{"api/pods"},
		Title: "the MIG manager could not partition a node's GPUs as requested",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "node labels nvidia.com/mig.config and nvidia.com/mig.config.state, and the log of the node's MIG manager",
		Why: "The MIG manager reports the state of the requested configuration in a node label. It fails if a process uses a GPU, if the GPU does not support the configuration, or if a " +
			"required reboot does not happen. A configuration that is being applied is not an error.",
		Explains: facts.GPULost("sched.node-selector", "sched.wrong-resource-name", "mig.strategy-mismatch", "dp.none",
			"dp.not-running", "dp.capacity-zero", "dp.unhealthy", "op.operand-failing", "op.clusterpolicy",
			"gfd.labels"),
		Doc: "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html",
		Sources: []string{
			"mig-parted#157", "mig-parted#357", "gpu-operator#322", "gpu-operator#603", "gpu-operator#646",
			"gpu-operator#1310", "gpu-operator#2376",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/nodes") {
				return
			}
			for _, n := range f.GPUNodes {
				checkMIGManager(f, r, n)
			}
		},
	}
}

func checkMIGManager(f *facts.Facts, r *engine.Result, n *facts.Node) {
	const state, config = "nvidia.com/mig.config.state", "nvidia.com/mig.config"
	pods := facts.Current(n, facts.MIGManager)
	found := finding.Finding{Object: n.Object(), Evidence: facts.LabelEvidence(n, config, state)}
	switch {
	case n.Labels[state] == "failed":
		found.Title = "the MIG manager failed to apply the requested MIG configuration"
		if facts.GPUsOf(n.Status.Allocatable) > 0 {
			found.Severity = finding.Warning // the previous configuration is still in use
		}
	case (n.Labels[state] == "pending" || n.Labels[state] == "rebooting") && len(pods) == 0 && !r.Lacks(f, "api/pods"):
		found.Title, found.Severity, found.Confidence =
			"a MIG configuration is requested, but no MIG manager is running on the node to apply it", finding.Warning,
			finding.Likely
	case n.Labels[state] == "pending":
		e, gaveUp := gaveUpMIG(f, pods)
		if !gaveUp {
			r.Pass(n.Object()) // the MIG manager is still working
			return
		}
		found.Title, found.Confidence = "the MIG manager gave up applying the requested MIG configuration", finding.Likely
		found.Evidence = append(found.Evidence, e)
		if facts.GPUsOf(n.Status.Allocatable) > 0 {
			found.Severity = finding.Warning
		}
	default:
		r.Pass(n.Object())
		return
	}
	inUse := false
	for _, pod := range pods {
		if e, ok := facts.LogEvidence(
			f,
			pod,
			"error setting MIGConfig",
			"in use by another client",
			"Error applying MIG configuration",
			"error:",
			"level=error",
			"level=fatal",
		); ok && !slices.Contains(found.Evidence, e) {
			found.Evidence = append(found.Evidence, e)
		}
		inUse = inUse || strings.Contains(found.Evidence[len(found.Evidence)-1].Text, "in use by")
		engine.LacksLog(f, r, pod)
	}
	found.Fix = finding.Fix{
		Text: "Fix the cause that the manager's log shows: a configuration that the GPU does not support, processes " +
			"that use the GPUs (add host services to the manager's gpu-clients ConfigMap), or a required reboot " +
			"(WITH_REBOOT=true in migManager.env). Then request the configuration again.",
	}
	if inUse {
		found.Fix.Commands = []string{
			shell.Command("kubectl drain %s --ignore-daemonsets --delete-emptydir-data", n.Name),
		}
	}
	if want := n.Labels[config]; want != "" {
		found.Fix.Commands = append(found.Fix.Commands,
			shell.Command("kubectl label node %s %s-", n.Name, config),
			shell.Command("kubectl label node %s %s=%s", n.Name, config, want))
	}
	if inUse {
		found.Fix.Commands = append(found.Fix.Commands, facts.Uncordon(n))
	}
	if len(pods) == 0 {
		found.Fix = finding.Fix{Text: "Enable the MIG manager, or partition the GPUs manually and remove the label.",
			Commands: append(facts.ChangeOperator(f, "migManager.enabled", true),
				shell.Command("kubectl label node %s %s-", n.Name, config))}
	}
	r.Add(found)
}

// gaveUpMIG returns the error after which a MIG manager stopped without reporting a state. The manager is now waiting
// for the next label change.
func gaveUpMIG(f *facts.Facts, pods []*corev1.Pod) (finding.Evidence, bool) {
	for _, pod := range pods {
		for _, l := range f.LogsOf(pod) {
			if l.Previous {
				continue
			}
			failed, waits := "", false
			for line := range strings.Lines(l.Text) {
				switch {
				case strings.Contains(line, "Updating to MIG config"):
					failed, waits = "", false
				case strings.Contains(line, "level=error"), strings.Contains(line, "Failed to apply MIG config"),
					strings.Contains(line, "error setting MIGConfig"):
					failed = strings.TrimRight(line, "\r\n")
				case strings.Contains(line, "Waiting for change to"):
					waits = true
				}
			}
			if failed != "" && waits {
				return finding.Evidence{
					Source: "log of Pod " + l.Namespace + "/" + l.Pod + ", container " + l.Container,
					Text:   words.Clip(failed),
				}, true
			}
		}
	}
	return finding.Evidence{}, false
}

func gfdCheck() engine.Check {
	return engine.Check{
		ID:    "gfd.labels",
		Layer: finding.LayerOperator,
		Title: "GPU feature discovery is running, but its labels are missing",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs},
		Reads: "the nvidia.com/gpu.product label of nodes that run GPU feature discovery, and the logs of GPU " +
			"feature discovery and NFD's master",
		Why: "GPU feature discovery passes its labels to NFD. It finds no GPU if it starts before the driver is ready, and NFD rejects labels in namespaces that are not configured. " +
			"Workloads that select nodes by GPU model then match no node. A cluster without feature discovery needs no labels.",
		Explains: []string{"sched.node-selector"},
		Doc:      "https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md",
		Sources: []string{
			"gpu-feature-discovery#5", "gpu-feature-discovery#36", "gpu-feature-discovery#71",
			"gpu-feature-discovery#75", "k8s-device-plugin#733",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, n := range f.GPUNodes {
				checkGFD(f, r, n)
			}
		},
	}
}

func checkGFD(f *facts.Facts, r *engine.Result, n *facts.Node) {
	pods := slices.DeleteFunc(facts.Current(n, facts.FeatureDiscovery),
		func(pod *corev1.Pod) bool { return facts.UpFor(f, pod) < facts.OperandGrace })
	if n.Labels["nvidia.com/gpu.product"] != "" {
		r.Pass(n.Object())
		return
	}
	if len(pods) == 0 || !facts.Alive(n) {
		return // not deployed on the node, or reported by a symptom check
	}
	if slices.ContainsFunc(
		f.Component(facts.NFD), func(pod *corev1.Pod) bool { _, bad := facts.OperandTrouble(f, pod); return bad },
	) {
		return // NFD writes the labels, and a symptom check reports why it fails
	}
	pod := pods[0]
	found := finding.Finding{
		Severity: finding.Warning, Confidence: finding.Likely, Object: n.Object(),
		Title: "GPU feature discovery is running on the node, but the node has no nvidia.com/gpu.product label",
		Evidence: []finding.Evidence{
			finding.FieldEvidence(n.Object(), ".metadata.labels", "no nvidia.com/gpu.product"),
		},
		Fix: finding.Fix{
			Text:     "Restart GPU feature discovery: it may have started before the driver was ready.",
			Commands: []string{facts.RestartPod(pod.Namespace, pod.Name)},
		},
	}
	for _, master := range f.Component(facts.NFD) {
		if e, ok := facts.LogEvidence(
			f, master, "Namespace 'nvidia.com' is not allowed", `Namespace "nvidia.com" is not allowed`,
			"namespace is not allowed",
		); ok {
			found.Confidence, found.Title = finding.Certain,
				"node feature discovery rejects the labels from GPU feature discovery"
			found.Evidence = append(found.Evidence, e)
			found.Fix = finding.Fix{
				Text: "Allow the nvidia.com namespace in NFD's master (nfd-master.conf: extraLabelNs: [nvidia.com]), " +
					"then restart " +
					facts.OwnerOf(
						master,
					) + ".",
				Commands: editConfigMaps(master),
				Values:   "node-feature-discovery:\n  master:\n    config:\n      extraLabelNs: [\"nvidia.com\"]\n",
			}
			r.Add(found)
			return
		}
	}
	if e, ok := facts.LogEvidence(
		f, pod, "could not load NVML library", "failed to initialize NVML", "Incompatible strategy detected",
		"no labels generated", "No labels generated",
	); ok {
		found.Confidence = finding.Certain
		found.Evidence = append(found.Evidence, e)
		if strings.Contains(e.Text, "could not load NVML library") {
			found.Title = "GPU feature discovery found no driver when it started, so the node has no label " +
				"nvidia.com/gpu.product"
		}
	} else {
		engine.LacksLog(f, r, pod)
		found.Evidence = append(found.Evidence, facts.LastLines(f, pod, facts.MainContainer(pod), 2)...)
	}
	r.Add(found)
}

func peermemCheck() engine.Check {
	return engine.Check{
		ID:    "rdma.peermem",
		Layer: finding.LayerNetwork, Symptom: engine.Explained,
		Title: "the nvidia_peermem module, which lets network cards read GPU memory, cannot be loaded",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedLogs, engine.NeedNode},
		Reads: "the nvidia-peermem-ctr container of driver pods, logs of GPU pods, loaded modules and the kernel log " +
			"of GPU nodes",
		Why: "The module must be built against the loaded network driver (MOFED), and fails to load if that driver was installed later. With open kernel modules and Linux 5.12 or later, DMA-BUF " +
			"replaces the module. Only an observed failure is reported; a node without the module is healthy.",
		Explains: []string{"op.operand-failing", "op.clusterpolicy"},
		Doc:      "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html",
		Sources:  []string{"gpu-operator#251", "gpu-operator#588", "gpu-operator#2868", "nccl#1537", "nccl#1939"},
		Run: func(f *facts.Facts, r *engine.Result) {
			if r.Lacks(f, "api/pods") {
				return
			}
			for _, n := range f.GPUNodes {
				checkPeermem(f, r, n)
			}
		},
	}
}

func checkPeermem(f *facts.Facts, r *engine.Result, n *facts.Node) {
	if n.Host != nil {
		for _, m := range n.Host.Probe.Modules {
			if m.Name == "nvidia_peermem" {
				r.Pass(n.Object())
				return
			}
		}
	}
	var evidence []finding.Evidence
	ready, failed, severity := false, false, finding.Warning
	for _, pod := range facts.Current(n, facts.Driver) {
		for _, s := range pod.Status.ContainerStatuses {
			if s.Name != "nvidia-peermem-ctr" {
				continue
			}
			if ready = s.Ready; ready {
				break
			}
			if e, ok := facts.LogEvidence(
				f, pod, "could not insert 'nvidia_peermem'", "could not insert 'nvidia-peermem'",
				"Module nvidia-peermem not found", "Module nvidia_peermem not found",
			); ok {
				failed, severity = true, finding.Error // the driver's pod is not ready, and neither is the operator
				evidence = append(evidence, facts.PodEvidence(f, pod, s)...)
				if !slices.Contains(evidence, e) {
					evidence = append(evidence, e)
				}
			}
		}
	}
	if ready {
		r.Pass(n.Object())
		return
	}
	for _, pod := range n.Pods {
		if !facts.Ended(pod) && f.AsksForGPU(pod) {
			if e, ok := facts.LogEvidence(f, pod, "GPU Direct RDMA Disabled for HCA"); ok && len(evidence) < 3 {
				evidence = append(evidence, e)
			}
		}
	}
	if len(evidence) == 0 {
		r.Pass(n.Object())
		return
	}
	fix := finding.Fix{
		Text: "With open kernel modules and Linux 5.12 or later, use DMA-BUF instead of nvidia_peermem. Otherwise, " +
			"rebuild the driver now that the network driver is loaded: delete the driver's pod when no pod uses the " +
			"node's GPUs. If the host has its own MOFED, set driver.rdma.useHostMofed.",
		Commands: facts.ChangeOperator(f, "driver.rdma.enabled", true),
	}
	if pods := facts.Current(n, facts.Driver); failed {
		fix.Commands = []string{facts.RestartPod(pods[0].Namespace, pods[0].Name)}
	}
	r.Add(finding.Finding{
		Severity: severity, Confidence: finding.Likely, Object: n.Object(),
		Title: "network cards cannot read GPU memory directly (GPUDirect RDMA)", Evidence: evidence,
		Fix: fix,
	})
}

// editConfigMaps returns the commands for editing the ConfigMaps that a pod mounts.
func editConfigMaps(pod *corev1.Pod) (commands []string) {
	for _, v := range pod.Spec.Volumes {
		if v.ConfigMap != nil {
			commands = append(
				commands,
				shell.Command("kubectl edit configmap -n %s %s", pod.Namespace, v.ConfigMap.Name),
			)
		}
	}
	return commands
}
