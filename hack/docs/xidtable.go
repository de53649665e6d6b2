package main

import (
	"fmt"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// xidPage returns the page with the XID catalog.
func xidPage() string {
	var p page
	p.made()
	p.line("# XIDs")
	p.line(fmt.Sprintf("The catalog of %d XIDs and %d NVSwitch errors, as printed by `kubectl gpu-fault xid list -o wide`. `xid explain CODE` shows all details of one code: "+
		"its log line, related codes, and the reaction of each detector.", len(xid.All()), len(xid.SXids())))
	p.line("The driver itself reports 13, 31 and 43 with [`--real`](inject-xid.md#a-real-xid), so that NVML and DCGM also see them. This was verified only with the project's " +
		"fake driver, not yet on a GPU.")
	p.xids()
	p.sxids()
	p.groups()
	p.detectors()
	return p.String()
}

func (p *page) xids() {
	p.line("## XIDs by number")
	p.line("*NVIDIA* is the immediate action in NVIDIA's catalog of October 2025, *NVSentinel* is the action that NVSentinel recommends (NONE: the node is not changed), " +
		"*gpud* is the type of gpud's event, *EKS* is the reaction of EKS's node monitoring agent if DCGM reports the code, and *device plugin* shows whether the GPU becomes unhealthy. " +
		"An empty cell means none or unknown. *Line* is the source of the text that the tool writes: **real** was " +
		"seen in a machine's log, *rendered* was derived from the driver's format or a detector's test, and " +
		"*generic* is this project's own text, because no driver line is known.")
	p.row("XID", "name in the driver", "what happened", "class", "NVIDIA", "NVSentinel", "gpud", "EKS", "device plugin",
		"line")
	p.row("--:", "---", "---", "---", "---", "---", "---", "---", "---", "---")
	for _, c := range xid.All() {
		p.row(fmt.Sprint(c.Number), escape(strings.TrimPrefix(c.Name, "ROBUST_CHANNEL_")), escape(c.Description),
			escape(c.Class), escape(c.NVIDIA.Immediate),
			escape(c.Detectors[xid.IDNVSentinel].Action), c.Detectors[xid.IDGpud].Severity,
			c.Detectors[xid.IDEKS].Action,
			c.Detectors[xid.IDDevicePlugin].Action, evidence(c.Template.Evidence))
	}
	p.end()
}

func evidence(e xid.Evidence) string {
	if e == xid.Real {
		return "**real**"
	}
	return string(e)
}

func (p *page) sxids() {
	p.line("## NVSwitch errors")
	p.line("Written as `kubectl gpu-fault xid sxid:20034 NODE`. The line names the switch and the link, but no GPU.")
	p.row("SXid", "severity", "text", "known to gpud", "line")
	p.row("--:", "---", "---", "---", "---")
	for _, s := range xid.SXids() {
		p.row(fmt.Sprint(s.Number), string(s.Severity), escape(s.Body), s.Gpud, evidence(s.Evidence))
	}
	p.end()
}

func (p *page) groups() {
	p.line("## Related XIDs")
	p.line("`--cascade` writes the XIDs that occur together on real machines, in order and with their delays.")
	p.row("codes", "what", "drivers", "source")
	p.row("---", "---", "---", "---")
	for _, g := range xid.Groups() {
		var codes, drivers []string
		for _, c := range g.Codes {
			codes = append(codes, fmt.Sprint(c))
		}
		for _, d := range g.Drivers {
			drivers = append(drivers, string(d))
		}
		p.row(strings.Join(codes, ", "), escape(g.Description), strings.Join(drivers, ", "), escape(g.Source))
	}
	p.end()
}

func (p *page) detectors() {
	p.line("## Detectors")
	p.line("Whether a detector sees a line written to the kernel log depends on what it reads.")
	for _, d := range xid.Detectors() {
		p.line("### " + d.Name)
		p.line("Reads " + escape(d.Reads) + ".")
		for _, note := range d.Notes {
			p.WriteString("- " + escape(note) + "\n")
		}
		if len(d.Notes) > 0 {
			p.end()
		}
		p.line("To clear its state: " + escape(d.Forget) + ".")
	}
}
