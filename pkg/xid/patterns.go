package xid

import (
	"regexp"
	"strconv"
	"sync"
)

// The patterns of the detectors, word for word where a detector has fixed ones. They are facts, so keep them as ugly as
// they are.
const (
	// NVSentinel, syslog-health-monitor: applied to MESSAGE of journald's entries.
	nvsentinelXID     = `NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, pid=(\d+))?(?:, name=([^,]+))?(?:, Ch ([0-9a-fA-F]+))?`
	nvsentinelNVLink5 = `NVRM: Xid \(PCI:([^)]+)\): (\d+)(?:, pid=[^,]*)?(?:, name=[^,]*)?, (\w+)\s+(\w+)\s+(\w+)\s+(\w+)\s+Link\s+(-?\d+)\s+\((0x[0-9a-fA-F]+)\s+(0x[0-9a-fA-F]+)`
	nvsentinelSXid    = `nvidia-nvswitch(\d+): SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), (Fatal|Non-fatal), Link (\d+) (.+)`
	nvsentinelFallen  = `(?s)NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+).*?fallen off the bus and is not responding to commands`
	nvsentinelUUID    = `NVRM: GPU at PCI:([0-9a-fA-F:.]+): (GPU-[0-9a-fA-F-]+)`
	nvsentinelSM      = `\(GPC\s+(\d+),\s*TPC\s+(\d+),\s*SM\s+(\d+)\)`
	nvsentinelLink    = `link\s+(\d+)\(` // the part of its pattern for the registers of 74 that tells the link

	// gpud: applied to the text of records in /dev/kmsg.
	gpudXID     = `NVRM: Xid \(((?:PCI:)?[0-9a-fA-F:]+)\).*?: (\d+),`
	gpudNVLink5 = `NVRM: Xid \(PCI:([0-9a-fA-F:]+)\): (\d+)(?:, pid=(\d+), name=([^,]+))?, ([A-Z_]+(?:/[A-Z_]+)?)\s+(Nonfatal|Fatal)\s+(XC[01])\s+(i\d+)\s+Link\s+(-?\d+)\s+\((0x[0-9a-fA-F]+)\s+(0x[0-9a-fA-F]+)`
	gpudLost    = `NVRM:\s+GPU ([0-9a-fA-F:]+)\.0:\s+GPU has fallen off the bus\.?`
	gpudFallen  = `(?s)NVRM:\s+The NVIDIA GPU ([0-9a-fA-F:]+)\.0.*?fallen off the bus and is not responding to commands\.`
	gpudSXid    = `SXid.*?: (\d+),`
	gpudSXidPCI = `SXid \((PCI:[0-9a-fA-F:\.]+)\)`
)

// view is the text that a pattern is applied to.
type view int

const (
	rawText        view = iota // the record in /dev/kmsg, with its escapes
	journalMessage             // MESSAGE of journald's entry
)

type pattern struct {
	name string
	view view
	re   *regexp.Regexp
}

// fixedPatterns compiles the patterns on first use only: most runs of the program judge nothing.
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

// find applies a fixed pattern to what its detector reads of a record: nil, or the match and its groups.
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

// npdRule returns what operators usually write for node-problem-detector, which ships no rule for NVIDIA. It appends \z
// to every rule, so that one which does not run to the end of the line never fires; hence the ".*".
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

// npdRules are all rules of npdRule as node-problem-detector compiles them, for any code.
const npdRules = `(?:NVRM: Xid \(PCI:[^)]+\): (\d+),.*|nvidia-nvswitch\d+: SXid \(PCI:[^)]+\): (\d+),.*|NVRM: .*fallen off the bus.*)\z`
