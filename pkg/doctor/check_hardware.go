package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// notBuilt, of the catalog's hardware and driver layers:
//   - hw.nvlink does not read `nvidia-smi nvlink -s`: the XML has no links, and the helper starts nvidia-smi once. It
//     judges by XIDs and SXids.
//   - hw.acs-iommu does not run `nvidia-smi topo -p2p r`, for the same reason, and cannot show whether GPUs have NVLink
//     between them.
//   - wl.cuda-oom's part on the node (which process holds which memory) is of the workload layer.
func hardwareChecks() []Check {
	return []Check{
		gpuLostCheck(), gpuCountCheck(), rowRemapCheck(), eccCheck(), nvlinkCheck(), xidCheck(), recoveryCheck(),
		throttleCheck(), pcieCheck(), acsCheck(),
	}
}

// xidDoc is NVIDIA's description of XIDs, and debugDoc its guide to what to do about broken GPUs.
const (
	xidDoc   = "https://docs.nvidia.com/deploy/xid-errors/"
	debugDoc = "https://docs.nvidia.com/deploy/gpu-debug-guidelines/"
	remapDoc = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
)

// gpuSymptoms returns the findings of other layers that follow from a GPU that does not work.
func gpuSymptoms(more ...string) []string {
	return append(gpuLost(more...),
		"node.condition", "node.not-ready", "sched.node-state", "sched.taint", "dp.unhealthy", "dp.unhealthy-xid",
		"dp.not-running",
		"dp.capacity-zero", "dp.none", "dp.nvml-missing", "op.init-chain", "op.operand-failing", "op.clusterpolicy",
		"mig.manager-failed", "gfd.labels",
		"obs.dcgm-crash", "dra.unallocatable", "dra.prepare", "rt.sandbox-failed", "wl.pod-failing", "wl.cuda-error",
		"wl.cpu-mode", "wl.probe-failing",
		"sched.unschedulable", "sched.nodes-unavailable", "sched.unbalanced",
	)
}

// drain returns the commands that take a node out of use before its GPU is reset.
func drain(n *Node, more ...string) []string {
	return append([]string{
		command("kubectl cordon %s", n.Name),
		command("kubectl drain %s --ignore-daemonsets --delete-emptydir-data", n.Name),
	}, more...)
}

// resetGPU returns the command that resets one GPU, or all where none is named. It fails while something uses them; a
// reboot does the same.
func resetGPU(n *Node, p xid.PCI) string {
	if p == (xid.PCI{}) {
		return onHost(n.Name, "sudo nvidia-smi --gpu-reset")
	}
	return onHost(n.Name, "sudo nvidia-smi --gpu-reset -i %s", p.WithFunction())
}

// reboot returns the command that reboots a node.
func reboot(n *Node) string { return onHost(n.Name, "sudo systemctl reboot") }

// uncordon returns the command that lets a node take pods again.
func uncordon(n *Node) string { return command("kubectl uncordon %s", n.Name) }

// incidentFinding returns what all findings about incidents have in common.
func (v *gpuView) incidentFinding(g sameKind, severity Severity, title string, fix Fix) Finding {
	f := Finding{
		Severity: severity, Title: title, Object: gpuObject(v.node, g.event.PCI), Nodes: []string{v.node.Name},
		Evidence: v.evidence(g), Fix: fix,
		written: g.fromUserSpace(), ofRun: v.ofOpenRun(g),
	}
	if g.event.Kind == xid.KindSXid {
		f.Object = Object{Kind: "NVSwitch", Name: v.node.Name + "/" + g.event.PCI.String()}
	}
	if v.healthy(g.event) {
		f.times = v.times(g) // so that it is over, and explains only what came about then
	}
	switch {
	case v.past(g):
		f.Severity, f.Confidence = Info, Certain
		f.Title += ", more than a day ago; nvidia-smi shows the GPU well now"
		f.Fix = Fix{Text: "Nothing is to be done now. If it comes back, the GPU needs a look."}
	case v.over(g):
		f.Severity, f.Confidence = Info, Possible
		f.Title += ", before the driver was loaded last; the GPU answers since"
	case g.fromUserSpace():
		f.Confidence = Possible
		f.Title = "the kernel log tells of " + codeName(g.event) + ", but a program wrote that line, not the driver"
		if f.Severity == Error {
			f.Severity = Warning
		}
		f.Fix = Fix{
			Text:     "Find out who writes it: this tool, or another that tests how faults are found. Detectors that read the log act on it as on a real one. A driver writes with the facility kern, programs with user.",
			Commands: []string{onHost(v.node.Name, "sudo dmesg -x | grep -e NVRM -e nvswitch")},
		}
	case g.incidents[0].primary.condition != "":
		f.Confidence, f.written = Likely, true // a detector's word: it does not tell who wrote the line
	}
	if n := g.count(); n > 1 {
		f.Evidence[0].Source += fmt.Sprintf(" (the newest of %d)", n)
	}
	return f
}

// codeName names a code: "XID 79 (GPU has fallen off the bus)".
func codeName(e xid.Event) string {
	switch e.Kind {
	case xid.KindSXid:
		return fmt.Sprintf("SXid %d", e.Code)
	case xid.KindFallenOff:
		return "a GPU that has fallen off the bus"
	}
	if code, known := xid.Lookup(e.Code); known {
		return fmt.Sprintf("XID %d (%s)", e.Code, strings.TrimSuffix(code.Description, "."))
	}
	return fmt.Sprintf("XID %d", e.Code)
}

// recovery turns the driver's words for what a GPU needs into ours; empty when it needs nothing. Sources: XID 154,
// nvidia-smi -q.
func recovery(action string) (need string, severity Severity) {
	action = strings.ToLower(action)
	switch {
	case action == "" || action == "none":
		return "", ""
	case strings.Contains(action, "reboot"):
		return "a reboot of the node", Error
	case strings.Contains(action, "drain and reset"):
		return "a reset, once its workloads are gone", Warning
	case strings.Contains(action, "reset"), strings.Contains(action, "flr"):
		return "a reset", Error
	case strings.Contains(action, "drain p2p"):
		return "its peer-to-peer traffic drained", Warning
	case strings.Contains(action, "imex"):
		return "its IMEX domain recovered", Warning
	}
	return "", ""
}

func recoveryCheck() Check {
	return Check{
		ID: "hw.recovery-action", Layer: LayerHardware,
		Title: "the driver says that a GPU needs a reset or a reboot",
		Needs: []Need{NeedNode},
		Reads: "nvidia-smi -q -x: gpu_recovery_action; gpu_reset_status of drivers before R555",
		Why: "The driver remembers what a GPU needs after an error. Until that is done, workloads fail on the GPU, or run without the memory or links that the error took. " +
			"Where the XID that led to it is still in the kernel log, that is told instead.",
		Explains: gpuSymptoms(),
		Doc:      debugDoc, Sources: []string{"open-gpu-kernel-modules#1080", "NVIDIA XID catalog: 154"},
		Run: func(f *Facts, r *Result) {
			eachSMI(f, r, func(n *Node, v *gpuView) {
				for _, g := range v.smi.GPUs {
					if v.troubled(g) {
						r.Pass(smiObject(n, g))
						continue
					}
					checkRecovery(r, n, g)
				}
			})
		},
	}
}

// troubled reports whether another check of this layer tells why a GPU needs a reset.
func (v *gpuView) troubled(g nvidiasmi.GPU) bool {
	if _, found := remapFinding(v.node, g); found {
		return true
	}
	if f, found := eccFinding(v.node, g); found && f.Severity != Info {
		return true
	}
	for _, group := range groupIncidents(v.incidents) {
		if g.PCI == nil || group.event.PCI.String() != g.PCI.String() || v.over(group) || v.past(group) {
			continue
		}
		severity := Error
		switch ownerOfCode(group.event) {
		case "hw.xid-recent":
			severity, _, _ = judge(v.node, group)
		case "hw.nvlink":
			severity, _ = linkError(group.event)
		case "hw.row-remap":
			if group.event.Code == 63 {
				severity = Info
			}
		}
		if severity != Info {
			return true
		}
	}
	return false
}

func checkRecovery(r *Result, n *Node, g nvidiasmi.GPU) {
	need, severity := recovery(g.RecoveryAction)
	evidence := []Evidence{smiEvidence(n, g, "gpu_recovery_action", g.RecoveryAction)}
	switch {
	case need != "":
	case yes(g.ResetRequired):
		need, severity, evidence = "a reset", Error, []Evidence{smiEvidence(n, g, "reset_required", "Yes")}
	case yes(g.DrainAndReset):
		need, severity, evidence = "a reset, once its workloads are gone", Warning,
			[]Evidence{smiEvidence(n, g, "drain_and_reset_recommended", "Yes")}
	default:
		r.Pass(smiObject(n, g))
		return
	}
	var at xid.PCI
	if g.PCI != nil {
		at = *g.PCI
	}
	last := resetGPU(n, at)
	if strings.Contains(need, "reboot") {
		last = reboot(n)
	}
	r.Add(Finding{
		Severity: severity, Title: "the driver says that the GPU needs " + need, Object: smiObject(n, g),
		Nodes: []string{n.Name}, Evidence: evidence,
		Fix: Fix{
			Text:     "Drain the node, do what the driver asks for, and uncordon it.",
			Commands: drain(n, last, uncordon(n)),
		},
	})
}

// gpuAddresses returns those of the node's GPUs that the NVIDIA driver should have, by the PCI bus: not those given to
// virtual machines.
func gpuAddresses(n *Node) []xid.PCI {
	var all []xid.PCI
	for _, d := range n.Host.Probe.PCI {
		if p, err := xid.ParsePCI(d.Address); err == nil && IsGPUDevice(d) && d.Driver != "vfio-pci" &&
			!slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}
