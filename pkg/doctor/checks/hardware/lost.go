package hardware

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

func gpuLostCheck() engine.Check {
	return engine.Check{
		ID: "hw.gpu-lost", Layer: finding.LayerHardware,
		Title: "a GPU no longer responds over PCIe",
		Needs: []engine.Need{engine.NeedNode, engine.NeedLogs},
		Reads: "the kernel log since boot (XID 79, and messages about a GPU that does not respond when the driver is loaded), the output of nvidia-smi, the configuration space of each " +
			"GPU, and, if the node was not read, its conditions and the logs of the device plugin",
		Why: "A GPU that has fallen off the bus is unusable until the node is power-cycled, and the device plugin " +
			"may fail for all GPUs on the node. Other XIDs for the same GPU in the same minute are consequences. An " +
			"XID 79 is a warning if the GPU responds to nvidia-smi again, and Info if the driver has been loaded " +
			"since.",
		Explains: facts.GPUSymptoms("hw.count", "drv.devnodes", "fab.fabricmanager"),
		Doc:      facts.XIDDoc,
		Sources: []string{"open-gpu-kernel-modules#461", "open-gpu-kernel-modules#507", "open-gpu-kernel-modules#888",
			"gpud#1209", "NVSentinel#155", "k8s-device-plugin#2038",
			"akash#209"},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				checkLost(f, r, n)
			}
		},
	}
}

func checkLost(f *facts.Facts, r *engine.Result, n *facts.Node) {
	v := n.GPUs()
	lost := map[xid.PCI]bool{}
	add := func(issue finding.Finding, p xid.PCI) {
		lost[p] = true
		r.Add(issue)
	}
	groups := facts.GroupIncidents(v.Of("hw.gpu-lost"))
	for _, g := range groups {
		// Skip duplicates, and user-space records if other evidence exists.
		if lost[g.Event.PCI] || g.FromUserSpace() && len(lostEvidence(v, g.Event.PCI)) > 0 {
			continue
		}
		severity, title, fix := finding.Error, "the GPU has fallen off the bus", lostFix(n, g.Event.PCI)
		told := g.Incidents[0].Primary.Condition
		switch answers := v.Answers(g.Event.PCI) || g.Event.PCI == (xid.PCI{}) && allRespond(v); {
		case answers && told != "":
			severity, title = finding.Warning,
				"the GPU has fallen off the bus according to a node condition, but nvidia-smi shows all GPUs and they respond"
			fix =
				finding.Fix{Text: "The GPU responds, so the condition is stale or comes from a test: search the kernel log for the line that the condition quotes, and restart the agent that set the condition " +
					"(node-problem-detector clears a permanent condition only on restart). If nvidia-smi loses the GPU again, drain the node and have the GPU inspected.",
					Commands: []string{
						shell.OnHost(n.Name, "sudo dmesg -x | grep -e NVRM"),
						shell.Command("kubectl describe node %s", n.Name),
					}}
		case answers:
			severity, title = finding.Warning,
				"the GPU has fallen off the bus according to the kernel log, but responds to nvidia-smi"
		case told != "":
			title = "the GPU has fallen off the bus according to a node condition"
		}
		issue := v.IncidentFinding(g, severity, title, fix)
		issue.Evidence = append(issue.Evidence, lostEvidence(v, g.Event.PCI)...)
		add(issue, g.Event.PCI)
	}
	bySMI := lostBySMI(v)
	for _, p := range slices.SortedFunc(
		maps.Keys(bySMI), func(a, b xid.PCI) int { return strings.Compare(a.String(), b.String()) },
	) {
		evidence := bySMI[p]
		if !lost[p] && !(p == (xid.PCI{}) && len(lost) > 0) {
			add(finding.Finding{
				Title: "nvidia-smi cannot reach the GPU: the GPU is lost", Confidence: finding.Likely,
				Object: facts.GPUObject(n, p),
				Nodes:  []string{n.Name}, Evidence: evidence, Fix: lostFix(n, p),
			}, p)
		}
	}
	for _, d := range unreadable(v) {
		if p, err := xid.ParsePCI(d.Address); err == nil && !lost[p] {
			add(finding.Finding{Title: "the GPU has fallen off the bus: its configuration space reads as all ones",
				Confidence: finding.Likely, Object: facts.GPUObject(n, p), Nodes: []string{n.Name},
				Evidence: []finding.Evidence{deviceEvidence(n, d)}, Fix: lostFix(n, p)}, p)
		}
	}
	if len(lost) == 0 {
		if e, ok := lostByLogs(f, n); ok {
			add(finding.Finding{
				Title: "a GPU on the node is lost, according to software that uses it", Confidence: finding.Likely,
				Object: n.Object(), Evidence: []finding.Evidence{e}, Fix: lostFix(n, xid.PCI{}),
			}, xid.PCI{})
		}
	}
	switch {
	case len(lost) > 0:
	case n.Host == nil:
		r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
	default:
		r.Pass(n.Object())
	}
}

func lostFix(n *facts.Node, p xid.PCI) finding.Fix {
	look, which := shell.OnHost(n.Name, "lspci -d 10de:"), ""
	if p != (xid.PCI{}) {
		look, which = shell.OnHost(n.Name, "lspci -s %s", p.WithFunction()),
			" lspci shows (rev ff) for a GPU that does not respond."
	}
	return finding.Fix{
		Text: "Cordon and drain the node, then power-cycle it (in a cloud, stop and start the instance, or replace " +
			"the node): a warm reboot often does not bring the GPU back. If the GPU is lost again, check the power " +
			"supply, risers, system firmware and PCIe power management (ASPM), and have the GPU replaced. Until " +
			"then, the other GPUs on the node may be unusable." +
			which,
		Commands: facts.Drain(n, look),
	}
}

// lostEvidence returns the evidence from nvidia-smi and the PCI bus that a GPU is lost.
func lostEvidence(v *facts.GPUView, p xid.PCI) []finding.Evidence {
	bySMI := lostBySMI(v)
	all := slices.Concat(bySMI[p], bySMI[xid.PCI{}])
	for _, d := range unreadable(v) {
		if at, err := xid.ParsePCI(d.Address); err == nil && at == p {
			all = append(all, deviceEvidence(v.Node, d))
		}
	}
	return all
}

var (
	smiLost    = regexp.MustCompile(`(?i)Unable to determine the device handle for GPU|GPU is lost`)
	smiAddress = regexp.MustCompile(`[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\.[0-7]`)
)

// lostBySMI returns the GPUs that nvidia-smi cannot reach, and nvidia-smi's messages about them. The zero address is
// the key of messages without an address.
func lostBySMI(v *facts.GPUView) map[xid.PCI][]finding.Evidence {
	found := map[xid.PCI][]finding.Evidence{}
	for line := range strings.Lines(v.SMIError) {
		if !smiLost.MatchString(line) || strings.Contains(line, "Insufficient Permissions") {
			continue
		}
		p, err := xid.ParsePCI(smiAddress.FindString(line))
		if err != nil {
			p = xid.PCI{}
		}
		found[p] = append(found[p],
			finding.Evidence{Source: "nvidia-smi on node " + v.Node.Name, Text: words.Clip(strings.TrimSpace(line))})
	}
	if v.SMI == nil {
		return found
	}
	for _, g := range v.SMI.GPUs {
		if g.Lost() && g.PCI != nil {
			found[*g.PCI] = append(found[*g.PCI], finding.Evidence{
				Source: "nvidia-smi -q -x on node " + v.Node.Name + ", gpu " + g.ID, Text: strings.Join(g.Errors, ", "),
			})
		}
	}
	return found
}

// unreadable returns the GPUs whose configuration space reads as all ones and that nvidia-smi does not show. It returns
// nil if nvidia-smi shows no GPUs at all.
func unreadable(v *facts.GPUView) []api.PCIDevice {
	if v.Node.Host == nil || v.SMI == nil || len(v.SMI.GPUs) == 0 {
		return nil
	}
	var found []api.PCIDevice
	for _, d := range v.Node.Host.Probe.PCI {
		if p, err := xid.ParsePCI(d.Address); err == nil && !d.ConfigReadable && facts.IsGPUDevice(d) &&
			d.Driver != "vfio-pci" && v.GPUAt(p) == nil {
			found = append(found, d)
		}
	}
	return found
}

func deviceEvidence(n *facts.Node, d api.PCIDevice) finding.Evidence {
	return finding.Evidence{Source: "/sys/bus/pci/devices/" + d.Address + " on node " + n.Name,
		Text: fmt.Sprintf("class %s, device %s, driver %q, configuration space reads as all ones: %t",
			d.Class, d.Device, d.Driver, !d.ConfigReadable)}
}

// lostByLogs returns a message about a lost GPU from the logs of the node's components, or from a pod that failed
// admission.
func lostByLogs(f *facts.Facts, n *facts.Node) (finding.Evidence, bool) {
	texts := []string{"GPU is lost", "GPU_IS_LOST", "Unable to determine the device handle for GPU"}
	for _, pod := range n.Pods {
		if part := facts.ComponentOf(pod.Labels, &pod.Spec); part == "" || podutils.IsPodReady(pod) &&
			part != facts.DevicePlugin {
			continue
		}
		if e, ok := facts.LogEvidence(f, pod, texts...); ok {
			return e, true
		}
	}
	for _, pod := range n.Pods {
		if pod.Status.Reason == "UnexpectedAdmissionError" && strings.Contains(pod.Status.Message, "GPU is lost") {
			return finding.FieldEvidence(facts.PodObject(pod), ".status.message", "%s", pod.Status.Message), true
		}
	}
	return finding.Evidence{}, false
}

func gpuCountCheck() engine.Check {
	return engine.Check{
		ID: "hw.count", Symptom: engine.Precise, Layer: finding.LayerHardware,
		Title: "a node has GPUs that are not usable",
		Needs: []engine.Need{engine.NeedAPI, engine.NeedNode},
		Reads: "GPUs on the PCI bus, in nvidia-smi, in the node's nvidia.com/gpu.count label and in its capacity",
		Why: "GPUs on the bus that nvidia-smi does not show have no driver or are broken. GPUs that nvidia-smi shows but the node's capacity lacks are not available to pods. GPUs that are " +
			"passed through to virtual machines, partitioned (MIG) or allocated by DRA are not counted.",
		Explains: facts.GPULost(
			"wl.pod-failing", "dp.unhealthy", "op.init-chain", "op.operand-failing", "sched.bigger-than-any-node"),
		// If the node advertises too few GPUs, pods stay Pending instead of failing.
		ExplainsAs: map[string][]string{"offered": facts.GPULost("dp.unhealthy", "sched.bigger-than-any-node")},
		Doc:        debugDoc,
		Sources:    []string{"gpu-operator: metric gpu_operator_nvidia_pci_devices_total", "k8s-device-plugin#2038"},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				checkCount(f, r, n)
			}
		},
	}
}

func checkCount(f *facts.Facts, r *engine.Result, n *facts.Node) {
	v := n.GPUs()
	fix := finding.Fix{
		Text: "Cordon the node, because pods can still be given the missing GPU. Find out why it is missing: lspci -d " +
			"10de: on the node shows the GPUs on the bus, and dmesg shows the driver's messages. When the GPU is back, " +
			"restart the device plugin pod, which counts GPUs only at startup, and uncordon the node.",
		Commands: []string{
			shell.Command("kubectl cordon %s", n.Name), shell.OnHost(n.Name, "lspci -d 10de:"),
			shell.OnHost(n.Name, "sudo dmesg | grep -e NVRM -e pcieport"),
		},
	}
	if v.SMI != nil {
		shown, onBus := len(v.SMI.GPUs), facts.GPUAddresses(n)
		var missing []string
		for _, p := range onBus {
			if v.GPUAt(p) == nil {
				missing = append(missing, p.WithFunction())
			}
		}
		if len(missing) > 0 && shown < len(onBus) {
			r.Add(finding.Finding{
				Title:      fmt.Sprintf("nvidia-smi shows %d of %s on the PCI bus", shown, count.Of(len(onBus), "GPU")),
				Confidence: finding.Likely, Object: n.Object(), Fix: fix,
				Evidence: append(facts.RejectedAlone(n), finding.Evidence{
					Source: "/sys/bus/pci/devices and nvidia-smi on node " + n.Name,
					Text:   "not in nvidia-smi: " + strings.Join(missing, ", "),
				}),
			})
			return
		}
	}
	have, evidence := counted(v)
	if offered := n.Status.Capacity["nvidia.com/gpu"]; have > 0 && offered.Value() > 0 && offered.Value() < have &&
		!partitioned(v) {
		if v.SMI != nil && len(v.SMI.GPUs) > 0 {
			fix = finding.Fix{Text: "nvidia-smi shows all GPUs: check the device plugin's log and configuration to " +
				"find out why it advertises fewer, for example because only some are selected. The plugin counts " +
				"GPUs only at startup: if a GPU was added or recovered since then, restart the plugin's pod on the " +
				"node."}
			for _, pod := range facts.Current(n, facts.DevicePlugin) {
				fix.Commands = append(fix.Commands,
					shell.Command("kubectl logs -n %s %s --all-containers --tail=100", pod.Namespace, pod.Name))
			}
		}
		r.Add(finding.Finding{
			Title:      fmt.Sprintf("the node advertises %s out of %d", count.Of(offered.Value(), "GPU"), have),
			Severity:   finding.Warning,
			Confidence: finding.Likely, As: "offered", Object: n.Object(), Fix: fix,
			Evidence: append(evidence,
				finding.FieldEvidence(n.Object(), ".status.capacity", "nvidia.com/gpu: %s", offered.String())),
		})
		return
	}
	if n.Host == nil {
		r.Unknown(n.Object(), "GPUs on the PCI bus: %s", f.WhyNoHost(n.Name))
		return
	}
	if engine.LacksPCI(r, n) {
		return
	}
	r.Pass(n.Object())
}

// counted returns the number of GPUs on the node according to nvidia-smi, or according to feature discovery if
// nvidia-smi shows none. It returns 0 if neither reports a number.
func counted(v *facts.GPUView) (int64, []finding.Evidence) {
	if v.SMI != nil && len(v.SMI.GPUs) > 0 {
		return int64(len(v.SMI.GPUs)), []finding.Evidence{
			{
				Source: "nvidia-smi -q -x on node " + v.Node.Name,
				Text:   fmt.Sprintf("%d <gpu> elements", len(v.SMI.GPUs)),
			},
		}
	}
	count, err := strconv.ParseInt(v.Node.Labels["nvidia.com/gpu.count"], 10, 32)
	if err != nil {
		return 0, nil
	}
	return count, facts.LabelEvidence(v.Node, "nvidia.com/gpu.count")
}

// partitioned reports whether the node advertises its GPUs as resources other than nvidia.com/gpu, or has MIG enabled.
func partitioned(v *facts.GPUView) bool {
	for name := range v.Node.Status.Capacity {
		if name != "nvidia.com/gpu" && facts.IsGPUResource(name) {
			return true
		}
	}
	if c := v.Node.Labels["nvidia.com/mig.config"]; c != "" && c != "all-disabled" {
		return true
	}
	if v.Node.Labels["nvidia.com/mig.strategy"] == "single" &&
		strings.Contains(v.Node.Labels["nvidia.com/gpu.product"], "MIG") {
		return true
	}
	return v.SMI != nil &&
		slices.ContainsFunc(v.SMI.GPUs, func(g nvidiasmi.GPU) bool { return facts.Yes(g.MIG.Enabled) })
}
