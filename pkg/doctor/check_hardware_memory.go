package doctor

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/nvidiasmi"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

func rowRemapCheck() Check {
	return Check{
		ID: "hw.row-remap", Layer: LayerHardware,
		Title: "a GPU's memory waits for a reset to replace broken rows, or has no spare rows left",
		Needs: []Need{NeedNode},
		Reads: "nvidia-smi -q -x: remapped_rows, and retired_pages of GPUs before Ampere; XIDs 63 and 64 in the kernel log since boot",
		Why: "After an uncorrectable error the driver marks the row of memory to be replaced by a spare one, which happens at the next reset. Until then the GPU works, and the device plugin " +
			"calls it healthy, but the bad row stays in use. When remapping failed, there is no spare row, and the GPU must be replaced. XID 63 is normal once the reset is done.",
		Explains: gpuSymptoms(),
		Doc:      remapDoc,
		Sources: []string{
			"k8s-device-plugin#243", "k8s-device-plugin#267", "eks-node-monitoring-agent#245", "gpud#80", "gpud#108",
			"azhpc-diagnostics#75",
		},
		Run: func(f *Facts, r *Result) {
			for _, n := range f.GPUNodes {
				checkRemap(f, r, n)
			}
		},
	}
}

func checkRemap(f *Facts, r *Result, n *Node) {
	v := n.gpus()
	told := map[xid.PCI]bool{}
	if v.smi != nil {
		for _, g := range v.smi.GPUs {
			finding, found := remapFinding(n, g)
			if !found {
				continue
			}
			if g.PCI != nil {
				told[*g.PCI] = true
				lines := v.linesAbout(*g.PCI, "hw.ecc")
				if len(lines) > 0 && !remapFailed(g) {
					continue // the error that led to it is told, and needs the same reset
				}
				finding.Evidence = slices.Concat(finding.Evidence, v.linesAbout(*g.PCI, "hw.row-remap"), lines)
			}
			r.Add(finding)
		}
	}
	for _, g := range groupIncidents(v.of("hw.row-remap")) {
		if told[g.event.PCI] {
			continue
		}
		switch known := v.gpuAt(g.event.PCI); {
		case g.event.Code == 64:
			r.Add(v.incidentFinding(g, Error, "remapping a row of the GPU's memory failed", replaceFix(n)))
		case known != nil && known.Remapped != nil && known.Remapped.Pending != nil:
			r.Add(v.incidentFinding(g, Info,
				"a row of the GPU's memory was replaced by a spare one, and no reset is pending",
				Fix{Text: "Nothing is to be done."}))
		default:
			r.Add(v.incidentFinding(g, Warning,
				"a row of the GPU's memory is marked for replacement, which needs a reset", pendingFix(n, g.event.PCI)))
		}
	}
	switch {
	case n.Host == nil:
		r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
	case v.smi == nil:
		r.Unknown(n.Object(), "nvidia-smi says nothing that can be read: %s", firstLine(v.smiError))
	case len(told) == 0:
		r.Pass(n.Object())
	}
}

func remapFinding(n *Node, g nvidiasmi.GPU) (Finding, bool) {
	finding := Finding{Object: smiObject(n, g), Nodes: []string{n.Name}}
	var at xid.PCI
	if g.PCI != nil {
		at = *g.PCI
	}
	switch m := g.Remapped; {
	case m != nil && yes(m.Failure):
		finding.Title, finding.Fix = "the GPU's memory has an error for which no spare row is left", replaceFix(n)
		finding.Evidence = []Evidence{
			smiEvidence(n, g, "remapped_row_failure", "Yes"), countEvidence(n, g, "remapped_row_unc", m.Uncorrectable),
		}
	case m != nil && yes(m.Pending):
		finding.Severity, finding.Fix = Warning, pendingFix(n, at)
		finding.Title = "a row of the GPU's memory waits for a reset to be replaced by a spare one"
		finding.Evidence = []Evidence{
			smiEvidence(n, g, "remapped_row_pending", "Yes"), countEvidence(n, g, "remapped_row_unc", m.Uncorrectable),
		}
	case yes(g.Retired.Pending):
		finding.Severity, finding.Fix = Warning, pendingFix(n, at)
		finding.Title = "a page of the GPU's memory waits for a reset to be retired"
		finding.Evidence = []Evidence{
			smiEvidence(n, g, "pending_retirement", "Yes"), countEvidence(n, g, "retired_count", g.Retired.DoubleBit),
		}
	default:
		return Finding{}, false
	}
	return finding, true
}

// remapFailed reports whether no spare row was left for an error.
func remapFailed(g nvidiasmi.GPU) bool { return g.Remapped != nil && yes(g.Remapped.Failure) }

func countEvidence(n *Node, g nvidiasmi.GPU, element string, count *int64) Evidence {
	if count == nil {
		return smiEvidence(n, g, element, "N/A")
	}
	return smiEvidence(n, g, element, strconv.FormatInt(*count, 10))
}

func pendingFix(n *Node, p xid.PCI) Fix {
	return Fix{
		Text: "Drain the node when it suits, and reset the GPU or reboot: that takes the bad memory out of use. If it comes back again and again, have the GPU replaced.",
		Commands: drain(n, resetGPU(n, p), onHost(n.Name, "nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT"),
			uncordon(n)),
	}
}

func replaceFix(n *Node) Fix {
	return Fix{
		Text:     "Cordon and drain the node, and have the GPU replaced (RMA); nvidia-bug-report.sh collects what its vendor asks for.",
		Commands: drain(n, onHost(n.Name, "sudo nvidia-bug-report.sh")),
	}
}

// linesAbout quotes the newest line of each kind that the kernel log has about a GPU, of those that a check tells of
// and that are not over.
func (v *gpuView) linesAbout(p xid.PCI, check string) []Evidence {
	var all []Evidence
	for _, g := range groupIncidents(v.of(check)) {
		if g.event.PCI == p && len(all) < 2 && !v.over(g) && !v.past(g) {
			all = append(all, v.quote(g.incidents[0].primary))
		}
	}
	return all
}

func eccCheck() Check {
	return Check{
		ID: "hw.ecc", Layer: LayerHardware,
		Title: "a GPU had memory errors that it could not correct",
		Needs: []Need{NeedNode},
		Reads: "nvidia-smi -q -x: ecc_mode, ecc_errors; XIDs 48, 94 and 95 in the kernel log since boot",
		Why: "An uncorrectable error ends the workloads that it hits (contained, 94) or all of the GPU (uncontained, 95; a double bit error, 48). The row of memory is then marked to be " +
			"remapped. Errors of the past (aggregate), and correctable ones, say nothing about now. Where remapping failed, or is pending and no line of the log tells why, hw.row-remap tells it all.",
		Explains: gpuSymptoms(),
		Doc:      remapDoc, Sources: []string{"gpud: ecc", "NVIDIA XID catalog: 48, 94, 95", "k8s-device-plugin#243"},
		Run: func(f *Facts, r *Result) {
			for _, n := range f.GPUNodes {
				checkECC(f, r, n)
			}
		},
	}
}

func checkECC(f *Facts, r *Result, n *Node) {
	v := n.gpus()
	told := map[xid.PCI]bool{}
	for _, g := range groupIncidents(v.of("hw.ecc")) {
		severity, title := Error,
			"the GPU had a memory error that could not be corrected and that ends all its workloads"
		if g.event.Code == 94 {
			severity, title = Warning,
				"the GPU had a memory error that could not be corrected; only the workload that it hit ended"
		}
		finding := v.incidentFinding(g, severity, title, eccFix(n, g.event.PCI))
		known := v.gpuAt(g.event.PCI)
		if known != nil && remapFailed(*known) {
			told[g.event.PCI] = true // hw.row-remap tells, and quotes these lines
		}
		if known != nil && !told[g.event.PCI] {
			if pending, found := remapFinding(n, *known); found {
				finding.Evidence = append(finding.Evidence, pending.Evidence...)
			}
		}
		if !told[g.event.PCI] {
			r.Add(finding)
		}
		told[g.event.PCI] = told[g.event.PCI] || !v.past(g) // of what is past the counters tell what is left
	}
	if v.smi != nil {
		for _, g := range v.smi.GPUs {
			if g.PCI != nil && told[*g.PCI] {
				continue
			}
			if finding, found := eccFinding(n, g); found {
				r.Add(finding)
			}
		}
	}
	switch {
	case n.Host == nil:
		r.Unknown(n.Object(), "%s", f.WhyNoHost(n.Name))
	case v.smi == nil:
		r.Unknown(n.Object(), "nvidia-smi says nothing that can be read: %s", firstLine(v.smiError))
	default:
		r.Pass(n.Object())
	}
}

func eccFix(n *Node, p xid.PCI) Fix {
	return Fix{
		Text: "Drain the node, and reset the GPU or reboot, so that the bad memory is taken out of use. Have the GPU replaced if errors come back, or if remapping fails " +
			"(nvidia-smi -q -d ROW_REMAPPER).",
		Commands: drain(n, resetGPU(n, p), uncordon(n)),
	}
}

// eccFinding returns what the counters say of a GPU.
func eccFinding(n *Node, g nvidiasmi.GPU) (Finding, bool) {
	finding := Finding{Object: smiObject(n, g), Nodes: []string{n.Name}}
	var at xid.PCI
	if g.PCI != nil {
		at = *g.PCI
	}
	remapTells := g.Remapped != nil && (yes(g.Remapped.Pending) || yes(g.Remapped.Failure)) || yes(g.Retired.Pending)
	switch {
	case yes(g.ECC.UnrepairableMemory):
		finding.Title, finding.Fix = "the GPU has memory that cannot be repaired", replaceFix(n)
		finding.Evidence = []Evidence{smiEvidence(n, g, "unrepairable_memory", "Yes")}
	case yes(g.ECC.SRAMThresholdExceeded):
		finding.Title, finding.Fix = "the GPU had more errors in its SRAM than it may have: it should be replaced",
			replaceFix(n)
		finding.Evidence = []Evidence{smiEvidence(n, g, "sram_threshold_exceeded", "Yes")}
	case moreThan(g.ECC.Volatile.SRAMUncorrectable, 0), moreThan(g.ECC.Volatile.DRAMUncorrectable, 0) && !remapTells:
		finding.Severity, finding.Fix = Warning, eccFix(n, at)
		finding.Title = "the GPU had memory errors that could not be corrected since its driver was loaded"
		finding.Evidence = []Evidence{
			countEvidence(n, g, "dram_uncorrectable", g.ECC.Volatile.DRAMUncorrectable),
			countEvidence(n, g, "sram_uncorrectable", g.ECC.Volatile.SRAMUncorrectable),
		}
	case yes(g.ECC.ChannelRepairPending), yes(g.ECC.TPCRepairPending):
		finding.Severity, finding.Fix = Warning, eccFix(n, at)
		finding.Title = "the GPU waits for a reset to repair itself"
		finding.Evidence = []Evidence{
			smiEvidence(n, g, "channel_repair_pending", yesNo(yes(g.ECC.ChannelRepairPending))),
			smiEvidence(n, g, "tpc_repair_pending", yesNo(yes(g.ECC.TPCRepairPending))),
		}
	case g.ECC.Enabled != nil && g.ECC.Pending != nil && *g.ECC.Enabled != *g.ECC.Pending:
		finding.Severity = Info
		finding.Title = "the GPU changes whether it corrects memory errors at its next reset"
		finding.Fix = Fix{
			Text: "Reset the GPU when nothing uses it, or set the mode back.", Commands: []string{resetGPU(n, at)},
		}
		finding.Evidence = []Evidence{
			smiEvidence(n, g, "pending_ecc", map[bool]string{true: "Enabled", false: "Disabled"}[*g.ECC.Pending]),
		}
	default:
		return Finding{}, false
	}
	return finding, true
}

func yesNo(b bool) string {
	if b {
		return "Yes"
	}
	return "No"
}

func nvlinkCheck() Check {
	return Check{
		ID: "hw.nvlink", Layer: LayerHardware,
		Title: "an NVLink, or an NVSwitch, had an error",
		Needs: []Need{NeedNode},
		Reads: "XIDs 74 and 144 to 150, and SXids of NVSwitches, in the kernel log since boot",
		Why: "A fatal error of a link ends the jobs that use it, on both ends, and the link may stay down until the GPUs at both ends are reset. Errors that the driver calls non-fatal are " +
			"told as information.",
		Explains: gpuSymptoms("fab.fabricmanager"),
		Doc:      xidDoc, Sources: []string{
			"gpud: nvlink, sxid", "open-gpu-kernel-modules#1150", "open-gpu-kernel-modules#1355", "NVSentinel#1888",
		},
		Run: func(f *Facts, r *Result) {
			for _, n := range f.GPUNodes {
				v := n.gpus()
				groups := groupIncidents(v.of("hw.nvlink"))
				for _, g := range groups {
					severity, title := linkError(g.event)
					r.Add(v.incidentFinding(g, severity, title, Fix{
						Text: "Drain the node, and reset all its GPUs together, or reboot, so that the links are trained again. Look at the Fabric Manager's log for what it did about it. If it " +
							"happens again on the same link, have the boards or the cables of that link checked.",
						Commands: drain(n, onHost(n.Name, "nvidia-smi nvlink -s"),
							onHost(n.Name, "sudo journalctl -u nvidia-fabricmanager -n 50 --no-pager"),
							resetGPU(n, xid.PCI{})),
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

// linkError returns how bad an error of a link is, as far as its line does.
func linkError(e xid.Event) (Severity, string) {
	switch {
	case e.Kind == xid.KindSXid && e.Severity == xid.SeverityFatal:
		return Error, fmt.Sprintf("an NVSwitch reports a fatal error (SXid %d)", e.Code)
	case e.Kind == xid.KindSXid:
		return Info, fmt.Sprintf("an NVSwitch reports an error that is not fatal (SXid %d)", e.Code)
	case e.Code != 74 && slices.Contains(nvlinkCodes(), e.Code) && linkNonfatal(e.Body):
		return Info, fmt.Sprintf("an NVLink of the GPU had an error that is not fatal (XID %d)", e.Code)
	}
	return Error, fmt.Sprintf("an NVLink of the GPU had a fatal error (XID %d)", e.Code)
}
