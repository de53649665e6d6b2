package facts

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// XIDDoc is the URL of NVIDIA's XID documentation.
const (
	XIDDoc = "https://docs.nvidia.com/deploy/xid-errors/"
)

// GPUSymptoms returns the IDs of findings in other layers that follow from a faulty GPU.
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

// Drain returns the commands that cordon and drain a node before its GPU is reset.
func Drain(n *Node, more ...string) []string {
	return append([]string{
		shell.Command("kubectl cordon %s", n.Name),
		shell.Command("kubectl drain %s --ignore-daemonsets --delete-emptydir-data", n.Name),
	}, more...)
}

// ResetGPU returns the command that resets one GPU, or all GPUs if p is the zero value. The reset fails while a process
// is using the GPUs; a reboot has the same effect.
func ResetGPU(n *Node, p xid.PCI) string {
	for _, pod := range Current(n, Driver) {
		if MainContainer(pod) == "nvidia-driver-ctr" { // the node itself has no nvidia-smi
			format, args := "kubectl exec -n %s %s -c nvidia-driver-ctr -- nvidia-smi --gpu-reset",
				[]any{pod.Namespace, pod.Name}
			if p != (xid.PCI{}) {
				format, args = format+" -i %s", append(args, p.WithFunction())
			}
			return shell.Command(format, args...)
		}
	}
	if p == (xid.PCI{}) {
		return shell.OnHost(n.Name, "sudo nvidia-smi --gpu-reset")
	}
	return shell.OnHost(n.Name, "sudo nvidia-smi --gpu-reset -i %s", p.WithFunction())
}

// Reboot returns the command that reboots a node.
func Reboot(n *Node) string { return shell.OnHost(n.Name, "sudo systemctl reboot") }

// Uncordon returns the command that makes a node schedulable again.
func Uncordon(n *Node) string { return shell.Command("kubectl uncordon %s", n.Name) }

// IncidentFinding returns a finding with the fields that all findings about incidents share.
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
		f.Times = v.times(g) // a finding with times is in the past, and explains only problems from those times
	}
	switch {
	case v.Past(g):
		f.Severity, f.Confidence = finding.Info, finding.Certain
		f.Title += ", more than a day ago; nvidia-smi now shows a healthy GPU"
		f.Fix = finding.Fix{Text: "No action is required. If the error recurs, inspect the GPU."}
	case v.Over(g):
		f.Severity, f.Confidence = finding.Info, finding.Possible
		f.Title += ", before the driver was last loaded; the GPU has responded since"
		f.Fix = finding.Fix{Text: "No action is required now. If the error recurs: " + fix.Text}
	case g.FromUserSpace():
		f.Confidence = finding.Possible
		f.Title = "the kernel log reports " + CodeName(g.Event) + ", but the line was written by a program, not by " +
			"the driver"
		if f.Severity == finding.Error {
			f.Severity = finding.Warning
		}
		f.Fix = finding.Fix{
			Text: "Find out what wrote the line: this tool, or another tool that tests fault detection. Detectors " +
				"that read the log react to the line as if it were a real error. The driver logs with the kern " +
				"facility; programs log with the user facility.",
			Commands: []string{shell.OnHost(v.Node.Name, "sudo dmesg -x | grep -e NVRM -e nvswitch")},
		}
	case g.Incidents[0].Primary.Condition != "":
		// A detector's condition does not identify the program that wrote the line.
		f.Confidence, f.Written = finding.Likely, true
	}
	if n := g.Count(); n > 1 {
		f.Evidence[0].Source += fmt.Sprintf(" (the newest of %d)", n)
	}
	return f
}

// CodeName returns a code with its description: "XID 79 (GPU has fallen off the bus)".
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

// Recovery describes the recovery action that the driver reports in XID 154 or nvidia-smi -q, or returns "" if none is
// needed.
func Recovery(action string) (need string, severity finding.Severity) {
	action = strings.ToLower(action)
	switch {
	case action == "" || action == "none":
		return "", ""
	case strings.Contains(action, "reboot"):
		return "a reboot of the node", finding.Error
	case strings.Contains(action, "drain and reset"):
		return "a reset after its workloads have terminated", finding.Warning
	case strings.Contains(action, "reset"), strings.Contains(action, "flr"):
		return "a reset", finding.Error
	case strings.Contains(action, "drain p2p"):
		return "its peer-to-peer traffic drained", finding.Warning
	case strings.Contains(action, "imex"):
		return "its IMEX domain recovered", finding.Warning
	}
	return "", ""
}

// GPUAddresses returns the PCI addresses of the node's GPUs that the NVIDIA driver should manage. It omits GPUs that
// are passed through to virtual machines.
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

// rejected matches the kernel log line about a GPU that the driver rejects.
var rejected = regexp.MustCompile(`NVRM: The NVIDIA GPU (\S+) \(PCI ID:\s*10de:([0-9a-f]{4})`)

// RejectedAlone returns evidence that the driver rejects a GPU but works with other GPUs on the node that have the same
// PCI ID. The title and fix come from a signature.
func RejectedAlone(n *Node) []finding.Evidence {
	if n.Host == nil {
		return nil
	}
	for _, k := range slices.Backward(n.Host.KernelLog) {
		m := rejected.FindStringSubmatch(k.Text)
		if m == nil {
			continue
		}
		works := 0
		for _, d := range n.Host.Probe.PCI {
			p, err := xid.ParsePCI(d.Address)
			if at, bad := xid.ParsePCI(m[1]); err == nil && bad == nil && p != at && d.Device == "0x"+m[2] &&
				n.GPUs().GPUAt(p) != nil {
				works++
			}
		}
		if works > 0 {
			return []finding.Evidence{{
				Source: "nvidia-smi and PCI devices of " + n.Object().String(),
				Text:   fmt.Sprintf("conflict: %s rejected, others with its PCI ID that work: %d", m[1], works),
			}}
		}
	}
	return nil
}

// RemapFinding returns the finding about memory rows or pages that a GPU must retire or cannot retire. It returns false
// if there are none.
func RemapFinding(n *Node, g nvidiasmi.GPU) (finding.Finding, bool) {
	issue := finding.Finding{Object: SMIObject(n, g), Nodes: []string{n.Name}}
	var at xid.PCI
	if g.PCI != nil {
		at = *g.PCI
	}
	switch m := g.Remapped; {
	case m != nil && Yes(m.Failure):
		issue.Title, issue.Fix = "the GPU's memory has an error, and no spare row is left to replace the bad "+
			"row", ReplaceFix(n)
		issue.Evidence = []finding.Evidence{
			SMIEvidence(n, g, "remapped_row_failure", "Yes"), CountEvidence(n, g, "remapped_row_unc", m.Uncorrectable),
		}
	case m != nil && Yes(m.Pending):
		issue.Severity, issue.Fix = finding.Warning, PendingFix(n, at)
		issue.Title = "a row of the GPU's memory must be replaced by a spare row, which requires a reset"
		issue.Evidence = []finding.Evidence{
			SMIEvidence(n, g, "remapped_row_pending", "Yes"), CountEvidence(n, g, "remapped_row_unc", m.Uncorrectable),
		}
	case Yes(g.Retired.Pending):
		issue.Severity, issue.Fix = finding.Warning, PendingFix(n, at)
		issue.Title = "a page of the GPU's memory must be retired, which requires a reset"
		issue.Evidence = []finding.Evidence{
			SMIEvidence(n, g, "pending_retirement", "Yes"), CountEvidence(n, g, "retired_count", g.Retired.DoubleBit),
		}
	default:
		return finding.Finding{}, false
	}
	return issue, true
}

// CountEvidence returns a number from nvidia-smi's XML output as evidence. A nil count is shown as N/A.
func CountEvidence(n *Node, g nvidiasmi.GPU, element string, count *int64) finding.Evidence {
	if count == nil {
		return SMIEvidence(n, g, element, "N/A")
	}
	return SMIEvidence(n, g, element, strconv.FormatInt(*count, 10))
}

// PendingFix returns the fix that retires bad memory.
func PendingFix(n *Node, p xid.PCI) finding.Fix {
	return finding.Fix{
		Text: "Drain the node at a convenient time, and reset the GPU or reboot the node to retire the bad memory. " +
			"If the problem keeps recurring, have the GPU replaced.",
		Commands: Drain(n, ResetGPU(n, p), shell.OnHost(n.Name, "nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT"),
			Uncordon(n)),
	}
}

// ReplaceFix returns the fix for a GPU that must be replaced.
func ReplaceFix(n *Node) finding.Fix {
	return finding.Fix{
		Text: "Cordon and drain the node, and have the GPU replaced (RMA); nvidia-bug-report.sh collects the data " +
			"that the vendor needs.",
		Commands: Drain(n, shell.OnHost(n.Name, "sudo nvidia-bug-report.sh")),
	}
}
