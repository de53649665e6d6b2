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
	p.line(fmt.Sprintf("The catalog of %d XIDs and %d errors of NVSwitches, as `kubectl gpu-fault xid list -o wide` prints it. `xid explain CODE` has the whole of one: "+
		"its line, what comes with it, and what each detector makes of it.", len(xid.All()), len(xid.SXids())))
	p.line("The driver itself reports 13, 31 and 43 with [`--real`](inject-xid.md#a-real-xid), so that NVML and DCGM see them too. This was verified against the project's " +
		"fake driver only, not on a GPU yet.")
	p.xids()
	p.sxids()
	p.groups()
	p.detectors()
	return p.String()
}

func (p *page) xids() {
	p.line("## XIDs by number")
	p.line("*NVIDIA* is the immediate action of NVIDIA's catalog of October 2025, *NVSentinel* the action that it recommends (NONE: the node stays as it is), " +
		"*gpud* the type of its event, *EKS* what its node monitoring agent makes of the code when DCGM tells it, *device plugin* whether the GPU counts as broken. " +
		"An empty cell: nothing, or not known. *Line* says how much is known of the text that we write: **real** was seen in the log of a machine, *rendered* comes from the " +
		"driver's format or a detector's test, *generic* is our own words, as no line of a driver is known.")
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
	p.line("## Errors of NVSwitches")
	p.line("Written as `kubectl gpu-fault xid sxid:20034 NODE`. The line names the switch and the link, and no GPU.")
	p.row("SXid", "severity", "text", "known to gpud", "line")
	p.row("--:", "---", "---", "---", "---")
	for _, s := range xid.SXids() {
		p.row(fmt.Sprint(s.Number), string(s.Severity), escape(s.Body), s.Gpud, evidence(s.Evidence))
	}
	p.end()
}

func (p *page) groups() {
	p.line("## What comes together")
	p.line("`--cascade` writes what really comes together, in order and with its delays.")
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
	p.line("What each reads decides whether it can see a line that was written to the kernel log.")
	for _, d := range xid.Detectors() {
		p.line("### " + d.Name)
		p.line("Reads " + escape(d.Reads) + ".")
		for _, note := range d.Notes {
			p.WriteString("- " + escape(note) + "\n")
		}
		if len(d.Notes) > 0 {
			p.end()
		}
		p.line("To forget what it saw: " + escape(d.Forget) + ".")
	}
}
