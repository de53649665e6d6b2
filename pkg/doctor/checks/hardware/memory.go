package hardware

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/shell"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

func rowRemapCheck() engine.Check {
	return engine.Check{
		ID: "hw.row-remap", Layer: finding.LayerHardware,
		Title: "a GPU needs a reset to remap faulty memory rows, or has no spare rows left",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "nvidia-smi -q -x: remapped_rows, and retired_pages on GPUs older than Ampere; XIDs 63 and 64 in the kernel log since boot",
		Why: "After an uncorrectable error, the driver marks the memory row for remapping to a spare row at the next reset. Until then, the GPU works and the device plugin " +
			"reports it as healthy, but the faulty row stays in use. If remapping fails, no spare row is left and the GPU must be replaced. After the reset, XID 63 is harmless.",
		Explains: facts.GPUSymptoms(),
		Doc:      remapDoc,
		Sources: []string{
			"k8s-device-plugin#243", "k8s-device-plugin#267", "eks-node-monitoring-agent#245", "gpud#80", "gpud#108",
			"azhpc-diagnostics#75",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				checkRemap(f, r, n)
			}
		},
	}
}

func checkRemap(f *facts.Facts, r *engine.Result, n *facts.Node) {
	v := n.GPUs()
	told := map[xid.PCI]bool{}
	if v.SMI != nil {
		for _, g := range v.SMI.GPUs {
			issue, found := facts.RemapFinding(n, g)
			if !found {
				continue
			}
			if g.PCI != nil {
				told[*g.PCI] = true
				lines := linesAbout(v, *g.PCI, "hw.ecc")
				if len(lines) > 0 && !remapFailed(g) {
					continue // hw.ecc reports the memory error, which requires the same reset
				}
				issue.Evidence = slices.Concat(issue.Evidence, linesAbout(v, *g.PCI, "hw.row-remap"), lines)
			}
			r.Add(issue)
		}
	}
	for _, g := range facts.GroupIncidents(v.Of("hw.row-remap")) {
		if told[g.Event.PCI] {
			continue
		}
		switch known := v.GPUAt(g.Event.PCI); {
		case g.Event.Code == 64:
			r.Add(
				v.IncidentFinding(g, finding.Error, "remapping a row of the GPU's memory failed", facts.ReplaceFix(n)),
			)
		case known != nil && known.Remapped != nil && known.Remapped.Pending != nil:
			r.Add(v.IncidentFinding(g, finding.Info,
				"a row of the GPU's memory was remapped to a spare row, and no reset is pending",
				finding.Fix{Text: "No action is required."}))
		default:
			r.Add(v.IncidentFinding(g, finding.Warning,
				"a row of the GPU's memory is marked for remapping, which requires a reset",
				facts.PendingFix(n, g.Event.PCI)))
		}
	}
	switch {
	case n.Host == nil:
		r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
	case v.SMI == nil:
		r.Unknown(n.Object(), "nvidia-smi printed no readable output: %s", words.FirstLine(v.SMIError))
	case len(told) == 0:
		r.Pass(n.Object())
	}
}

// remapFailed reports whether remapping a row of the GPU's memory failed.
func remapFailed(g nvidiasmi.GPU) bool { return g.Remapped != nil && facts.Yes(g.Remapped.Failure) }

// linesAbout quotes up to two kernel log lines of different kinds that belong to both the GPU and the check. It skips
// incidents that are resolved or past.
func linesAbout(v *facts.GPUView, p xid.PCI, check string) []finding.Evidence {
	var all []finding.Evidence
	for _, g := range facts.GroupIncidents(v.Of(check)) {
		if g.Event.PCI == p && len(all) < 2 && !v.Over(g) && !v.Past(g) {
			all = append(all, v.Quote(g.Incidents[0].Primary))
		}
	}
	return all
}

func eccCheck() engine.Check {
	return engine.Check{
		ID: "hw.ecc", Layer: finding.LayerHardware,
		Title: "a GPU had uncorrectable memory errors",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "nvidia-smi -q -x: ecc_mode, ecc_errors; XIDs 48, 94 and 95 in the kernel log since boot",
		Why: "An uncorrectable error terminates the affected workloads (contained, 94) or all workloads on the GPU (uncontained, 95; double-bit, 48). The memory row is then marked for " +
			"remapping. Past errors (aggregate) and correctable errors are ignored. If remapping failed, or is pending without a log line that shows why, hw.row-remap reports the GPU instead.",
		Explains: facts.GPUSymptoms(),
		Doc:      remapDoc, Sources: []string{"gpud: ecc", "NVIDIA XID catalog: 48, 94, 95", "k8s-device-plugin#243"},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				checkECC(f, r, n)
			}
		},
	}
}

func checkECC(f *facts.Facts, r *engine.Result, n *facts.Node) {
	v := n.GPUs()
	told := map[xid.PCI]bool{}
	for _, g := range facts.GroupIncidents(v.Of("hw.ecc")) {
		severity, title := finding.Error,
			"the GPU had an uncorrectable memory error that terminated all its workloads"
		if g.Event.Code == 94 {
			severity, title = finding.Warning,
				"the GPU had an uncorrectable memory error; only the affected workload was terminated"
		}
		issue := v.IncidentFinding(g, severity, title, eccFix(n, g.Event.PCI))
		known := v.GPUAt(g.Event.PCI)
		if known != nil && remapFailed(*known) {
			told[g.Event.PCI] = true // hw.row-remap reports the GPU and quotes these lines
		}
		if known != nil && !told[g.Event.PCI] {
			if pending, found := facts.RemapFinding(n, *known); found {
				issue.Evidence = append(issue.Evidence, pending.Evidence...)
			}
		}
		if !told[g.Event.PCI] {
			r.Add(issue)
		}
		told[g.Event.PCI] = told[g.Event.PCI] || !v.Past(g) // for past errors, the counters show any remaining problem
	}
	problems := len(told)
	if v.SMI != nil {
		for _, g := range v.SMI.GPUs {
			if g.PCI != nil && told[*g.PCI] {
				continue
			}
			if issue, found := eccFinding(n, g); found {
				problems++
				r.Add(issue)
			}
		}
	}
	switch {
	case n.Host == nil:
		r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
	case v.SMI == nil:
		r.Unknown(n.Object(), "nvidia-smi printed no readable output: %s", words.FirstLine(v.SMIError))
	case problems == 0:
		r.Pass(n.Object())
	}
}

func eccFix(n *facts.Node, p xid.PCI) finding.Fix {
	return finding.Fix{
		Text: "Drain the node, then reset the GPU or reboot to take the faulty memory out of use. Have the GPU replaced if errors recur or if remapping fails " +
			"(nvidia-smi -q -d ROW_REMAPPER).",
		Commands: facts.Drain(n, facts.ResetGPU(n, p), facts.Uncordon(n)),
	}
}

// eccFinding returns the finding about a GPU's memory error counters.
func eccFinding(n *facts.Node, g nvidiasmi.GPU) (finding.Finding, bool) {
	issue := finding.Finding{Object: facts.SMIObject(n, g), Nodes: []string{n.Name}}
	var at xid.PCI
	if g.PCI != nil {
		at = *g.PCI
	}
	remapTells := g.Remapped != nil && (facts.Yes(g.Remapped.Pending) || facts.Yes(g.Remapped.Failure)) ||
		facts.Yes(g.Retired.Pending)
	switch {
	case facts.Yes(g.ECC.UnrepairableMemory):
		issue.Title, issue.Fix = "the GPU has memory that cannot be repaired", facts.ReplaceFix(n)
		issue.Evidence = []finding.Evidence{facts.SMIEvidence(n, g, "unrepairable_memory", "Yes")}
	case facts.Yes(g.ECC.SRAMThresholdExceeded):
		issue.Title, issue.Fix = "the GPU exceeded its SRAM error threshold and should be replaced",
			facts.ReplaceFix(n)
		issue.Evidence = []finding.Evidence{facts.SMIEvidence(n, g, "sram_threshold_exceeded", "Yes")}
	case moreThan(g.ECC.Volatile.SRAMUncorrectable, 0), moreThan(g.ECC.Volatile.DRAMUncorrectable, 0) && !remapTells:
		issue.Severity, issue.Fix = finding.Warning, eccFix(n, at)
		issue.Title = "the GPU has had uncorrectable memory errors since its driver was loaded"
		issue.Evidence = []finding.Evidence{
			facts.CountEvidence(n, g, "dram_uncorrectable", g.ECC.Volatile.DRAMUncorrectable),
			facts.CountEvidence(n, g, "sram_uncorrectable", g.ECC.Volatile.SRAMUncorrectable),
		}
	case facts.Yes(g.ECC.ChannelRepairPending), facts.Yes(g.ECC.TPCRepairPending):
		issue.Severity, issue.Fix = finding.Warning, eccFix(n, at)
		issue.Title = "the GPU needs a reset to complete a pending repair"
		issue.Evidence = []finding.Evidence{
			facts.SMIEvidence(n, g, "channel_repair_pending", yesNo(facts.Yes(g.ECC.ChannelRepairPending))),
			facts.SMIEvidence(n, g, "tpc_repair_pending", yesNo(facts.Yes(g.ECC.TPCRepairPending))),
		}
	case g.ECC.Enabled != nil && g.ECC.Pending != nil && *g.ECC.Enabled != *g.ECC.Pending:
		issue.Severity = finding.Info
		issue.Title = "the GPU's ECC mode changes at its next reset"
		issue.Fix = finding.Fix{
			Text:     "Reset the GPU when it is idle, or undo the mode change.",
			Commands: []string{facts.ResetGPU(n, at)},
		}
		issue.Evidence = []finding.Evidence{
			facts.SMIEvidence(n, g, "pending_ecc", map[bool]string{true: "Enabled", false: "Disabled"}[*g.ECC.Pending]),
		}
	default:
		return finding.Finding{}, false
	}
	return issue, true
}

func yesNo(b bool) string {
	if b {
		return "Yes"
	}
	return "No"
}

func nvlinkCheck() engine.Check {
	return engine.Check{
		ID: "hw.nvlink", Layer: finding.LayerHardware,
		Title: "an NVLink or NVSwitch had an error",
		Needs: []engine.Need{engine.NeedNode},
		Reads: "XIDs 74 and 144 to 150, and SXids of NVSwitches, in the kernel log since boot",
		Why: "A fatal link error terminates the jobs that use the link at either end, and the link may stay down " +
			"until the GPUs at both ends are reset. Errors that the driver marks as nonfatal are Info.",
		Explains: facts.GPUSymptoms("fab.fabricmanager"),
		Doc:      facts.XIDDoc, Sources: []string{
			"gpud: nvlink, sxid", "open-gpu-kernel-modules#1150", "open-gpu-kernel-modules#1355", "NVSentinel#1888",
		},
		Run: func(f *facts.Facts, r *engine.Result) {
			for _, n := range f.GPUNodes {
				v := n.GPUs()
				groups := facts.GroupIncidents(v.Of("hw.nvlink"))
				for _, g := range groups {
					severity, title := linkError(g.Event)
					r.Add(v.IncidentFinding(g, severity, title, finding.Fix{
						Text: "Drain the node, then reset all its GPUs together or reboot to retrain the links. " +
							"Check the Fabric Manager's log to see how it reacted. If the error recurs on the same " +
							"link, have the boards or cables of the link checked.",
						Commands: facts.Drain(n, shell.OnHost(n.Name, "nvidia-smi nvlink -s"),
							shell.OnHost(n.Name, "sudo journalctl -u nvidia-fabricmanager -n 50 --no-pager"),
							facts.ResetGPU(n, xid.PCI{})),
					}))
				}
				switch {
				case n.Host == nil:
					r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
				case len(groups) == 0:
					r.Pass(n.Object())
				}
			}
		},
	}
}

// linkError returns the severity and the meaning of a link error, based only on its log line.
func linkError(e xid.Event) (finding.Severity, string) {
	switch {
	case e.Kind == xid.KindSXid && e.Severity == xid.SeverityFatal:
		return finding.Error, fmt.Sprintf("an NVSwitch reports a fatal error (SXid %d)", e.Code)
	case e.Kind == xid.KindSXid:
		return finding.Info, fmt.Sprintf("an NVSwitch reports a nonfatal error (SXid %d)", e.Code)
	case e.Code != 74 && slices.Contains(facts.NVLinkCodes(), e.Code) && linkNonfatal(e.Body):
		return finding.Info, fmt.Sprintf("an NVLink of the GPU had a nonfatal error (XID %d)", e.Code)
	}
	if e.Code == 74 && !strings.Contains(e.Body, "fatal") {
		return finding.Error, "an error occurred on an NVLink of the GPU (XID 74)"
	}
	return finding.Error, fmt.Sprintf("a fatal error occurred on an NVLink of the GPU (XID %d)", e.Code)
}
