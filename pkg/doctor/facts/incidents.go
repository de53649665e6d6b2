package facts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// XIDDoc is NVIDIA's description of XIDs, and debugDoc its guide to what to do about broken GPUs.
const (
	XIDDoc = "https://docs.nvidia.com/deploy/xid-errors/"
)

// GPUSymptoms returns the findings of other layers that follow from a GPU that does not work.
func GPUSymptoms(more ...string) []string {
	return append(GPULost(more...),
		"node.condition", "node.not-ready", "sched.node-state", "sched.taint", "dp.unhealthy", "dp.unhealthy-xid",
		"dp.not-running",
		"dp.capacity-zero", "dp.none", "dp.nvml-missing", "op.init-chain", "op.operand-failing", "op.clusterpolicy",
		"mig.manager-failed", "gfd.labels",
		"obs.dcgm-crash", "dra.unallocatable", "dra.prepare", "rt.sandbox-failed", "wl.pod-failing", "wl.cuda-error",
		"wl.cpu-mode", "wl.probe-failing",
		"sched.unschedulable", "sched.nodes-unavailable", "sched.unbalanced",
	)
}

// Drain returns the commands that take a node out of use before its GPU is reset.
func Drain(n *Node, more ...string) []string {
	return append([]string{
		shell.Command("kubectl cordon %s", n.Name),
		shell.Command("kubectl drain %s --ignore-daemonsets --delete-emptydir-data", n.Name),
	}, more...)
}

// ResetGPU returns the command that resets one GPU, or all where none is named. It fails while something uses them; a
// reboot does the same.
func ResetGPU(n *Node, p xid.PCI) string {
	if p == (xid.PCI{}) {
		return shell.OnHost(n.Name, "sudo nvidia-smi --gpu-reset")
	}
	return shell.OnHost(n.Name, "sudo nvidia-smi --gpu-reset -i %s", p.WithFunction())
}

// Reboot returns the command that reboots a node.
func Reboot(n *Node) string { return shell.OnHost(n.Name, "sudo systemctl reboot") }

// Uncordon returns the command that lets a node take pods again.
func Uncordon(n *Node) string { return shell.Command("kubectl uncordon %s", n.Name) }

// IncidentFinding returns what all findings about incidents have in common.
func (v *GPUView) IncidentFinding(
	g SameKind, severity finding.Severity, title string, fix finding.Fix,
) finding.Finding {
	f := finding.Finding{
		Severity: severity, Title: title, Object: GPUObject(v.Node, g.Event.PCI), Nodes: []string{v.Node.Name},
		Evidence: v.evidence(g), Fix: fix,
		Written: g.FromUserSpace(), OfRun: v.ofOpenRun(g),
	}
	if g.Event.Kind == xid.KindSXid {
		f.Object = finding.Object{Kind: "NVSwitch", Name: v.Node.Name + "/" + g.Event.PCI.String()}
	}
	if v.healthy(g.Event) {
		f.Times = v.times(g) // so that it is over, and explains only what came about then
	}
	switch {
	case v.Past(g):
		f.Severity, f.Confidence = finding.Info, finding.Certain
		f.Title += ", more than a day ago; nvidia-smi shows the GPU well now"
		f.Fix = finding.Fix{Text: "Nothing is to be done now. If it comes back, the GPU needs a look."}
	case v.Over(g):
		f.Severity, f.Confidence = finding.Info, finding.Possible
		f.Title += ", before the driver was loaded last; the GPU answers since"
	case g.FromUserSpace():
		f.Confidence = finding.Possible
		f.Title = "the kernel log tells of " + CodeName(g.Event) + ", but a program wrote that line, not the driver"
		if f.Severity == finding.Error {
			f.Severity = finding.Warning
		}
		f.Fix = finding.Fix{
			Text:     "Find out who writes it: this tool, or another that tests how faults are found. Detectors that read the log act on it as on a real one. A driver writes with the facility kern, programs with user.",
			Commands: []string{shell.OnHost(v.Node.Name, "sudo dmesg -x | grep -e NVRM -e nvswitch")},
		}
	case g.Incidents[0].Primary.Condition != "":
		f.Confidence, f.Written = finding.Likely, true // a detector's word: it does not tell who wrote the line
	}
	if n := g.Count(); n > 1 {
		f.Evidence[0].Source += fmt.Sprintf(" (the newest of %d)", n)
	}
	return f
}

// CodeName names a code: "XID 79 (GPU has fallen off the bus)".
func CodeName(e xid.Event) string {
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

// Recovery turns the driver's words for what a GPU needs into ours; empty when it needs nothing. Sources: XID 154,
// nvidia-smi -q.
func Recovery(action string) (need string, severity finding.Severity) {
	action = strings.ToLower(action)
	switch {
	case action == "" || action == "none":
		return "", ""
	case strings.Contains(action, "reboot"):
		return "a reboot of the node", finding.Error
	case strings.Contains(action, "drain and reset"):
		return "a reset, once its workloads are gone", finding.Warning
	case strings.Contains(action, "reset"), strings.Contains(action, "flr"):
		return "a reset", finding.Error
	case strings.Contains(action, "drain p2p"):
		return "its peer-to-peer traffic drained", finding.Warning
	case strings.Contains(action, "imex"):
		return "its IMEX domain recovered", finding.Warning
	}
	return "", ""
}

// GPUAddresses returns those of the node's GPUs that the NVIDIA driver should have, by the PCI bus: not those given to
// virtual machines.
func GPUAddresses(n *Node) []xid.PCI {
	var all []xid.PCI
	for _, d := range n.Host.Probe.PCI {
		if p, err := xid.ParsePCI(d.Address); err == nil && IsGPUDevice(d) && d.Driver != "vfio-pci" &&
			!slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// RemapFinding tells of rows or pages of memory that a GPU has to take out of use, or cannot; false when there are
// none.
func RemapFinding(n *Node, g nvidiasmi.GPU) (finding.Finding, bool) {
	issue := finding.Finding{Object: SMIObject(n, g), Nodes: []string{n.Name}}
	var at xid.PCI
	if g.PCI != nil {
		at = *g.PCI
	}
	switch m := g.Remapped; {
	case m != nil && Yes(m.Failure):
		issue.Title, issue.Fix = "the GPU's memory has an error for which no spare row is left", ReplaceFix(n)
		issue.Evidence = []finding.Evidence{
			SMIEvidence(n, g, "remapped_row_failure", "Yes"), CountEvidence(n, g, "remapped_row_unc", m.Uncorrectable),
		}
	case m != nil && Yes(m.Pending):
		issue.Severity, issue.Fix = finding.Warning, PendingFix(n, at)
		issue.Title = "a row of the GPU's memory waits for a reset to be replaced by a spare one"
		issue.Evidence = []finding.Evidence{
			SMIEvidence(n, g, "remapped_row_pending", "Yes"), CountEvidence(n, g, "remapped_row_unc", m.Uncorrectable),
		}
	case Yes(g.Retired.Pending):
		issue.Severity, issue.Fix = finding.Warning, PendingFix(n, at)
		issue.Title = "a page of the GPU's memory waits for a reset to be retired"
		issue.Evidence = []finding.Evidence{
			SMIEvidence(n, g, "pending_retirement", "Yes"), CountEvidence(n, g, "retired_count", g.Retired.DoubleBit),
		}
	default:
		return finding.Finding{}, false
	}
	return issue, true
}

// CountEvidence quotes a number of nvidia-smi's XML; nil is N/A.
func CountEvidence(n *Node, g nvidiasmi.GPU, element string, count *int64) finding.Evidence {
	if count == nil {
		return SMIEvidence(n, g, element, "N/A")
	}
	return SMIEvidence(n, g, element, strconv.FormatInt(*count, 10))
}

// PendingFix says how bad memory is taken out of use.
func PendingFix(n *Node, p xid.PCI) finding.Fix {
	return finding.Fix{
		Text: "Drain the node when it suits, and reset the GPU or reboot: that takes the bad memory out of use. If it comes back again and again, have the GPU replaced.",
		Commands: Drain(n, ResetGPU(n, p), shell.OnHost(n.Name, "nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT"),
			Uncordon(n)),
	}
}

// ReplaceFix says what to do with a GPU that has to be replaced.
func ReplaceFix(n *Node) finding.Fix {
	return finding.Fix{
		Text:     "Cordon and drain the node, and have the GPU replaced (RMA); nvidia-bug-report.sh collects what its vendor asks for.",
		Commands: Drain(n, shell.OnHost(n.Name, "sudo nvidia-bug-report.sh")),
	}
}
