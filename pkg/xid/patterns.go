package xid

import (
	"regexp"
	"strconv"
	"sync"
)

// The patterns used by the detectors, verbatim if a detector's patterns are fixed. Do not clean them up.
const (
	// NVSentinel, syslog-health-monitor: applied to MESSAGE of journald entries.
	nvsentinelXID     = `NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, pid=(\d+))?(?:, name=([^,]+))?(?:, Ch ([0-9a-fA-F]+))?`
	nvsentinelNVLink5 = `NVRM: Xid \(PCI:([^)]+)\): (\d+)(?:, pid=[^,]*)?(?:, name=[^,]*)?, (\w+)\s+(\w+)\s+(\w+)\s+(\w+)\s+Link\s+(-?\d+)\s+\((0x[0-9a-fA-F]+)\s+(0x[0-9a-fA-F]+)`
	nvsentinelSXid    = `nvidia-nvswitch(\d+): SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), (Fatal|Non-fatal), Link (\d+) (.+)`
	nvsentinelFallen  = `(?s)NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+).*?fallen off the bus and is not responding to commands`
	nvsentinelUUID    = `NVRM: GPU at PCI:([0-9a-fA-F:.]+): (GPU-[0-9a-fA-F-]+)`
	nvsentinelSM      = `\(GPC\s+(\d+),\s*TPC\s+(\d+),\s*SM\s+(\d+)\)`
	nvsentinelLink    = `link\s+(\d+)\(` // the part of the pattern for the registers of XID 74 that captures the link

	// gpud: applied to the text of records in /dev/kmsg.
	gpudXID     = `NVRM: Xid \(((?:PCI:)?[0-9a-fA-F:]+)\).*?: (\d+),`
	gpudNVLink5 = `NVRM: Xid \(PCI:([0-9a-fA-F:]+)\): (\d+)(?:, pid=(\d+), name=([^,]+))?, ([A-Z_]+(?:/[A-Z_]+)?)\s+(Nonfatal|Fatal)\s+(XC[01])\s+(i\d+)\s+Link\s+(-?\d+)\s+\((0x[0-9a-fA-F]+)\s+(0x[0-9a-fA-F]+)`
	gpudLost    = `NVRM:\s+GPU ([0-9a-fA-F:]+)\.0:\s+GPU has fallen off the bus\.?`
	gpudFallen  = `(?s)NVRM:\s+The NVIDIA GPU ([0-9a-fA-F:]+)\.0.*?fallen off the bus and is not responding to commands\.`
	gpudSXid    = `SXid.*?: (\d+),`
	gpudSXidPCI = `SXid \((PCI:[0-9a-fA-F:\.]+)\)`
)

// view is the text to which a pattern is applied.
type view int

const (
	rawText        view = iota // escaped record in /dev/kmsg
	journalMessage             // MESSAGE in the journald entry
)

type pattern struct {
	name string
	view view
	re   *regexp.Regexp
}

// fixedPatterns compiles the patterns on first use, because most commands do not need them.
var fixedPatterns = sync.OnceValue(func() map[string]pattern {
	out := map[string]pattern{}
	add := func(name string, v view, expr string) { out[name] = pattern{name, v, regexp.MustCompile(expr)} }
	add("nvsentinel xid", journalMessage, nvsentinelXID)
	add("nvsentinel nvlink5", journalMessage, nvsentinelNVLink5)
	add("nvsentinel sxid", journalMessage, nvsentinelSXid)
	add("nvsentinel fallen-off", journalMessage, nvsentinelFallen)
	add("nvsentinel uuid", journalMessage, nvsentinelUUID)
	add("nvsentinel sm", journalMessage, nvsentinelSM)
	add("nvsentinel link", journalMessage, nvsentinelLink)
	add("gpud xid", rawText, gpudXID)
	add("gpud nvlink5", rawText, gpudNVLink5)
	add("gpud lost", rawText, gpudLost)
	add("gpud fallen-off", rawText, gpudFallen)
	add("gpud sxid", rawText, gpudSXid)
	add("gpud sxid pci", rawText, gpudSXidPCI)
	add("npd kmsg", rawText, npdRules)
	add("npd journald", journalMessage, npdRules)
	return out
})

// find applies a fixed pattern to the text of a record that its detector reads. It returns the match and its groups, or
// nil.
func find(name string, k Kmsg) []string {
	p := fixedPatterns()[name]
	if p.re == nil {
		return nil
	}
	return p.re.FindStringSubmatch(p.view.of(k))
}

func (v view) of(k Kmsg) string {
	if v == journalMessage {
		_, message := JournaldView(k)
		return message
	}
	return escape(k.Text)
}

// npdRule returns a typical rule for node-problem-detector, which includes no NVIDIA rules. node-problem-detector
// appends \z to every rule, so a rule must match up to the end of the line; hence the ".*".
func npdRule(e Event) string {
	switch e.Kind {
	case KindXID:
		return `NVRM: Xid \(PCI:[^)]+\): ` + strconv.Itoa(e.Code) + `,.*`
	case KindSXid:
		return `nvidia-nvswitch\d+: SXid \(PCI:[^)]+\): ` + strconv.Itoa(e.Code) + `,.*`
	case KindFallenOff, KindGPU:
		return `NVRM: .*fallen off the bus.*`
	default:
		return ""
	}
}

// npdRules combines the rules returned by npdRule for all codes, as compiled by node-problem-detector.
const npdRules = `(?:NVRM: Xid \(PCI:[^)]+\): (\d+),.*|nvidia-nvswitch\d+: SXid \(PCI:[^)]+\): (\d+),.*|NVRM: .*fallen off the bus.*)\z`
