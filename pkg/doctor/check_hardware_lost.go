package doctor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

func gpuLostCheck() Check {
	return Check{
		ID: "hw.gpu-lost", Layer: LayerHardware,
		Title: "a GPU no longer answers over PCIe",
		Needs: []Need{NeedNode, NeedLogs},
		Reads: "the kernel log since boot (XID 79, and the record of a GPU that does not answer when the driver is loaded), what nvidia-smi says, the configuration space of each " +
			"GPU, and, where the node was not read, its conditions and the logs of the device plugin",
		Why: "A GPU that fell off the bus is gone until the node is power-cycled, and the device plugin may then fail for all GPUs of the node. Other XIDs of the same GPU in the same " +
			"minute follow from it. An XID 79 whose GPU answers nvidia-smi now is told as a warning, and not at all as a problem when the driver was loaded since.",
		Explains: gpuSymptoms("hw.count", "drv.devnodes", "fab.fabricmanager"),
		Doc:      xidDoc,
		Sources: []string{"open-gpu-kernel-modules#461", "open-gpu-kernel-modules#507", "open-gpu-kernel-modules#888",
			"gpud#1209", "NVSentinel#155", "k8s-device-plugin#2038",
			"akash#209"},
		Run: func(f *Facts, r *Result) {
			for _, n := range f.GPUNodes {
				checkLost(f, r, n)
			}
		},
	}
}

func checkLost(f *Facts, r *Result, n *Node) {
	v := n.gpus()
	lost := map[xid.PCI]bool{}
	add := func(finding Finding, p xid.PCI) {
		lost[p] = true
		r.Add(finding)
	}
	groups := groupIncidents(v.of("hw.gpu-lost"))
	for _, g := range groups {
		// What else says so says it better
		if lost[g.event.PCI] || g.fromUserSpace() && len(v.lostEvidence(g.event.PCI)) > 0 {
			continue
		}
		severity, title, fix := Error, "the GPU has fallen off the bus", lostFix(n, g.event.PCI)
		told := g.incidents[0].primary.condition
		switch answers := v.answers(g.event.PCI) || g.event.PCI == (xid.PCI{}) && v.allAnswer(); {
		case answers && told != "":
			severity, title = Warning,
				"the GPU has fallen off the bus according to a condition of the node, but nvidia-smi shows all GPUs and they answer"
			fix =
				Fix{Text: "The GPU answers, so that the condition is old, or a test's: look for the line that it quotes in the kernel log, and restart the agent that set the condition " +
					"(node-problem-detector takes a permanent condition back only then). Only if nvidia-smi loses the GPU again, have the node drained and the GPU looked at.",
					Commands: []string{
						onHost(n.Name, "sudo dmesg -x | grep -e NVRM"), command("kubectl describe node %s", n.Name),
					}}
		case answers:
			severity, title = Warning,
				"the GPU has fallen off the bus according to the kernel log, but nvidia-smi shows it and it answers"
		case told != "":
			title = "the GPU has fallen off the bus according to a condition of the node"
		}
		finding := v.incidentFinding(g, severity, title, fix)
		finding.Evidence = append(finding.Evidence, v.lostEvidence(g.event.PCI)...)
		add(finding, g.event.PCI)
	}
	bySMI := v.lostBySMI()
	for _, p := range slices.SortedFunc(
		maps.Keys(bySMI), func(a, b xid.PCI) int { return strings.Compare(a.String(), b.String()) },
	) {
		evidence := bySMI[p]
		if !lost[p] && !(p == (xid.PCI{}) && len(lost) > 0) {
			add(Finding{
				Title: "nvidia-smi cannot reach the GPU: it is lost", Confidence: Likely, Object: gpuObject(n, p),
				Nodes: []string{n.Name}, Evidence: evidence, Fix: lostFix(n, p),
			}, p)
		}
	}
	for _, d := range v.unreadable() {
		if p, err := xid.ParsePCI(d.Address); err == nil && !lost[p] {
			add(Finding{Title: "the configuration space of the GPU reads as all ones: it has fallen off the bus",
				Confidence: Likely, Object: gpuObject(n, p), Nodes: []string{n.Name},
				Evidence: []Evidence{deviceEvidence(n, d)}, Fix: lostFix(n, p)}, p)
		}
	}
	if len(lost) == 0 {
		if e, ok := lostByLogs(f, n); ok {
			add(Finding{
				Title: "a GPU of the node is lost, as software that uses it says", Confidence: Likely,
				Object: n.Object(), Evidence: []Evidence{e}, Fix: lostFix(n, xid.PCI{}),
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

func lostFix(n *Node, p xid.PCI) Fix {
	look, which := onHost(n.Name, "lspci -d 10de:"), ""
	if p != (xid.PCI{}) {
		look, which = onHost(n.Name, "lspci -s %s", p.WithFunction()),
			" lspci shows (rev ff) for a GPU that does not answer."
	}
	return Fix{
		Text: "Cordon and drain the node, then power-cycle it: a warm reboot often does not bring the GPU back. If it happens again, look at power supply, risers, the system's firmware " +
			"and PCIe power management (ASPM), and have the GPU replaced. The other GPUs of the node may be unusable until then." +
			which,
		Commands: drain(n, look),
	}
}

// lostEvidence returns what else says that the GPU is lost.
func (v *gpuView) lostEvidence(p xid.PCI) []Evidence {
	bySMI := v.lostBySMI()
	all := slices.Concat(bySMI[p], bySMI[xid.PCI{}])
	for _, d := range v.unreadable() {
		if at, err := xid.ParsePCI(d.Address); err == nil && at == p {
			all = append(all, deviceEvidence(v.node, d))
		}
	}
	return all
}

var (
	smiLost    = regexp.MustCompile(`(?i)Unable to determine the device handle for GPU|GPU is lost`)
	smiAddress = regexp.MustCompile(`[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\.[0-7]`)
)

// lostBySMI returns the GPUs that nvidia-smi cannot reach, and its words; the zero address is a GPU that it does not
// name.
func (v *gpuView) lostBySMI() map[xid.PCI][]Evidence {
	found := map[xid.PCI][]Evidence{}
	for line := range strings.Lines(v.smiError) {
		if !smiLost.MatchString(line) || strings.Contains(line, "Insufficient Permissions") {
			continue
		}
		p, err := xid.ParsePCI(smiAddress.FindString(line))
		if err != nil {
			p = xid.PCI{}
		}
		found[p] = append(found[p],
			Evidence{Source: "nvidia-smi on node " + v.node.Name, Text: clip(strings.TrimSpace(line))})
	}
	if v.smi == nil {
		return found
	}
	for _, g := range v.smi.GPUs {
		if g.Lost() && g.PCI != nil {
			found[*g.PCI] = append(found[*g.PCI], Evidence{
				Source: "nvidia-smi -q -x on node " + v.node.Name + ", gpu " + g.ID, Text: strings.Join(g.Errors, ", "),
			})
		}
	}
	return found
}

// unreadable are GPUs whose configuration space reads as all ones, and that nvidia-smi does not show either. Where no
// device at all can be read, it was the reading that failed.
func (v *gpuView) unreadable() []api.PCIDevice {
	if v.node.Host == nil || v.smi == nil || len(v.smi.GPUs) == 0 {
		return nil
	}
	var found []api.PCIDevice
	for _, d := range v.node.Host.Probe.PCI {
		if p, err := xid.ParsePCI(d.Address); err == nil && !d.ConfigReadable && IsGPUDevice(d) &&
			d.Driver != "vfio-pci" && v.gpuAt(p) == nil {
			found = append(found, d)
		}
	}
	return found
}

func deviceEvidence(n *Node, d api.PCIDevice) Evidence {
	return Evidence{Source: "/sys/bus/pci/devices/" + d.Address + " on node " + n.Name,
		Text: fmt.Sprintf("class %s, device %s, driver %q, configuration space reads as all ones: %t",
			d.Class, d.Device, d.Driver, !d.ConfigReadable)}
}

// lostByLogs returns what the software on the node says of a lost GPU, of pods that are not ready now, and of
// admissions that failed.
func lostByLogs(f *Facts, n *Node) (Evidence, bool) {
	texts := []string{"GPU is lost", "GPU_IS_LOST", "Unable to determine the device handle for GPU"}
	for _, pod := range n.Pods {
		if part := ComponentOf(pod.Labels, pod.Spec); part == "" || podReady(pod) && part != DevicePlugin {
			continue
		}
		if e, ok := logEvidence(f, pod, texts...); ok {
			return e, true
		}
	}
	for _, pod := range n.Pods {
		if pod.Status.Reason == "UnexpectedAdmissionError" && strings.Contains(pod.Status.Message, "GPU is lost") {
			return fieldEvidence(PodObject(pod), ".status.message", "%s", pod.Status.Message), true
		}
	}
	return Evidence{}, false
}

func gpuCountCheck() Check {
	return Check{
		ID: "hw.count", Layer: LayerHardware,
		Title: "a node has fewer usable GPUs than GPUs",
		Needs: []Need{NeedAPI, NeedNode},
		Reads: "GPUs on the PCI bus, in nvidia-smi, in the node's label nvidia.com/gpu.count and in its capacity",
		Why: "GPUs on the bus that nvidia-smi does not show have no driver or are broken; fewer in the node's capacity than in nvidia-smi are not offered to pods. GPUs that are given to " +
			"virtual machines, that are partitioned (MIG), or that DRA hands out, are not counted.",
		Explains: gpuLost("wl.pod-failing", "dp.unhealthy", "op.init-chain", "op.operand-failing"),
		// Fewer GPUs than there are keep pods waiting, and no pod fails for it.
		ExplainsAs: map[string][]string{"offered": gpuLost("dp.unhealthy")},
		Doc:        debugDoc,
		Sources:    []string{"gpu-operator: metric gpu_operator_nvidia_pci_devices_total", "k8s-device-plugin#2038"},
		Run: func(f *Facts, r *Result) {
			for _, n := range f.GPUNodes {
				checkCount(f, r, n)
			}
		},
	}
}

func checkCount(f *Facts, r *Result, n *Node) {
	v := n.gpus()
	fix :=
		Fix{Text: "Look why a GPU is missing: lspci -d 10de: on the node shows what is on the bus, dmesg what the driver says of it. After it is back, restart the device plugin's pod, " +
			"which counts GPUs only at its start.", Commands: []string{
			onHost(n.Name, "lspci -d 10de:"), onHost(n.Name, "sudo dmesg | grep -e NVRM -e pcieport"),
		}}
	if v.smi != nil {
		shown, onBus := len(v.smi.GPUs), gpuAddresses(n)
		var missing []string
		for _, p := range onBus {
			if v.gpuAt(p) == nil {
				missing = append(missing, p.WithFunction())
			}
		}
		if len(missing) > 0 && shown < len(onBus) {
			r.Add(Finding{
				Title:      fmt.Sprintf("nvidia-smi shows %d of %s on the PCI bus", shown, count.Of(len(onBus), "GPU")),
				Confidence: Likely, Object: n.Object(), Fix: fix,
				Evidence: []Evidence{{
					Source: "/sys/bus/pci/devices and nvidia-smi on node " + n.Name,
					Text:   "not in nvidia-smi: " + strings.Join(missing, ", "),
				}},
			})
			return
		}
	}
	have, evidence := v.counted()
	if offered := n.Status.Capacity["nvidia.com/gpu"]; have > 0 && offered.Value() > 0 && offered.Value() < have &&
		!v.partitioned() {
		r.Add(Finding{
			Title: fmt.Sprintf("the node offers %s of %d", count.Of(offered.Value(), "GPU"), have), Severity: Warning,
			Confidence: Likely, as: "offered", Object: n.Object(), Fix: fix,
			Evidence: append(evidence,
				fieldEvidence(n.Object(), ".status.capacity", "nvidia.com/gpu: %s", offered.String())),
		})
		return
	}
	if n.Host == nil {
		r.Unknown(n.Object(), "GPUs on the PCI bus: %s", f.WhyNoHost(n.Name))
		return
	}
	if lacksPCI(r, n) {
		return
	}
	r.Pass(n.Object())
}

// counted returns how many GPUs the node has: by nvidia-smi, else by feature discovery; 0 when nobody counted.
func (v *gpuView) counted() (int64, []Evidence) {
	if v.smi != nil && len(v.smi.GPUs) > 0 {
		return int64(len(v.smi.GPUs)), []Evidence{
			{
				Source: "nvidia-smi -q -x on node " + v.node.Name,
				Text:   fmt.Sprintf("%d <gpu> elements", len(v.smi.GPUs)),
			},
		}
	}
	count, err := strconv.ParseInt(v.node.Labels["nvidia.com/gpu.count"], 10, 32)
	if err != nil {
		return 0, nil
	}
	return count, labelEvidence(v.node, "nvidia.com/gpu.count")
}

// partitioned reports whether GPUs of the node are offered otherwise than as nvidia.com/gpu, or were when they were
// counted.
func (v *gpuView) partitioned() bool {
	for name := range v.node.Status.Capacity {
		if name != "nvidia.com/gpu" && IsGPUResource(name) {
			return true
		}
	}
	if c := v.node.Labels["nvidia.com/mig.config"]; c != "" && c != "all-disabled" {
		return true
	}
	if v.node.Labels["nvidia.com/mig.strategy"] == "single" &&
		strings.Contains(v.node.Labels["nvidia.com/gpu.product"], "MIG") {
		return true
	}
	return v.smi != nil && slices.ContainsFunc(v.smi.GPUs, func(g nvidiasmi.GPU) bool { return yes(g.MIG.Enabled) })
}
