package xid

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
)

// ErrNotDriver is the error that [Parse] returns for a line that contains no driver report.
var ErrNotDriver = errors.New("not a line from NVIDIA's driver: must contain \"NVRM:\" or \"nvidia-nvswitchN:\"")

// Parse parses one log line from /dev/kmsg, dmesg (including -T and -x), journalctl or a syslog file, or the bytes of
// one write to /dev/kmsg. A record of several lines must contain its newlines, either literally or as escaped by
// /dev/kmsg (\x0a) or rsyslog (#012). [ParseLog] joins records that a tool has split.
//
// Every line that contains NVRM: or nvidia-nvswitchN: is parsed, at least as a note, unless it contains control
// characters.
func Parse(line string) (Event, Prefix, error) {
	p, text, ok := splitLine(line)
	if !ok {
		return Event{}, Prefix{}, ErrNotDriver
	}
	e := parseText(text)
	return e, p, e.Check()
}

const (
	addressPattern = `([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F])(\.[0-7])?`
	numberPattern  = `([1-9]\d{0,4})`
)

var (
	xidLine = regexp.MustCompile(`^NVRM: Xid \((PCI:)?` + addressPattern +
		`(?: GPU-I:(\d{2,3})(?: GPU-CI:(\d{2,3}))?)?\): ` +
		numberPattern + `(?:, (.+))?$`)
	sxidLine  = regexp.MustCompile(`^nvidia-nvswitch(\d{1,3}): SXid \(PCI:` + addressPattern + `\): (\d{5}), (.+)$`)
	severe    = regexp.MustCompile(`^(Fatal|Non-fatal), (?:Link (\d{2,3}) )?(.+)$`)
	process   = regexp.MustCompile(`^pid=('<unknown>'|[1-9]\d{0,8})(?:, name=([^,]+))?(?:, (.+))?$`)
	cause     = regexp.MustCompile(`^(.+) caused by previous Xid ` + numberPattern + `$`)
	fallenOff = regexp.MustCompile(`^NVRM: The NVIDIA GPU ` + addressPattern +
		`\nNVRM: \(PCI ID: ([0-9a-f]{4}:[0-9a-f]{4})\) installed in this system has\nNVRM: fallen off the bus and is not responding to commands\.$`)
	deviceID   = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{4}$`)
	uuidLine   = regexp.MustCompile(`^NVRM: GPU at PCI:` + addressPattern + `: (GPU-\S+)$`)
	serialLine = regexp.MustCompile(`^NVRM: GPU Board Serial Number: (\S+)$`)
	gpuLine    = regexp.MustCompile(`^NVRM: GPU ` + addressPattern + `: (.+)$`)
	switchLine = regexp.MustCompile(`^nvidia-nvswitch(\d+): (?s:(.*))$`)
)

// parseText parses the driver's text, starting at NVRM: or nvidia-nvswitchN:. Unknown text becomes a note.
func parseText(text string) Event {
	for _, parse := range []func(string) (Event, bool){parseXID, parseSXid, parseFallenOff, parseCompanion} {
		// Accept the result only if formatting it reproduces the text. The notation of an address may differ, but no
		// information may be lost, such as leading zeros or an extra digit.
		if e, ok := parse(text); ok && e.Check() == nil &&
			strings.EqualFold(shortDomains(e.Text()), shortDomains(text)) {
			return e
		}
	}
	if m := switchLine.FindStringSubmatch(text); m != nil {
		if n, err := strconv.ParseUint(m[1], 10, 16); err == nil && strconv.FormatUint(n, 10) == m[1] {
			return Event{Kind: KindSwitchNote, Switch: int(n), Body: m[2]}
		}
	}
	return Event{Kind: KindNote, Body: strings.TrimPrefix(text, "NVRM: ")}
}

var longDomain = regexp.MustCompile(`\b0{1,4}([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})`)

// shortDomains shortens the 8-digit domains that nvidia-smi prints to the driver's 4 digits, for comparison.
func shortDomains(text string) string { return longDomain.ReplaceAllString(text, "$1") }

func parseXID(text string) (Event, bool) {
	m := xidLine.FindStringSubmatch(text)
	if m == nil {
		return Event{}, false
	}
	pci, err := ParsePCI(m[2] + m[3])
	if err != nil {
		return Event{}, false
	}
	e := Event{Kind: KindXID, Code: atoi(m[6]), PCI: pci}
	switch {
	case m[1] == "" && m[3] != "":
		return Event{}, false // neither the old nor the new notation
	case m[1] == "":
		e.Address = AddressOld
	case m[3] != "":
		e.Address = AddressFunction
	}
	if m[4] != "" {
		e.MIG = MIG{On: true, GI: atoi(m[4]), HasCI: m[5] != "", CI: atoi(m[5])}
	}
	e.Process, e.Body = cutProcess(m[7])
	e.cutCause()
	return e, true
}

func parseSXid(text string) (Event, bool) {
	m := sxidLine.FindStringSubmatch(text)
	if m == nil || m[3] == "" {
		return Event{}, false
	}
	pci, err := ParsePCI(m[2] + m[3])
	e := Event{Kind: KindSXid, Code: atoi(m[4]), PCI: pci, Switch: atoi(m[1])}
	e.cutSeverity(m[5])
	return e, err == nil
}

func parseFallenOff(text string) (Event, bool) {
	m := fallenOff.FindStringSubmatch(text)
	if m == nil || m[2] == "" {
		return Event{}, false
	}
	pci, err := ParsePCI(m[1] + m[2])
	return Event{Kind: KindFallenOff, PCI: pci, DeviceID: m[3]}, err == nil
}

func parseCompanion(text string) (Event, bool) {
	if m := serialLine.FindStringSubmatch(text); m != nil {
		return Event{Kind: KindSerial, Body: m[1]}, true
	}
	kind, m := KindUUID, uuidLine.FindStringSubmatch(text)
	if m == nil {
		kind, m = KindGPU, gpuLine.FindStringSubmatch(text)
	}
	if m == nil || (m[2] == "") != (kind == KindUUID) {
		return Event{}, false
	}
	pci, err := ParsePCI(m[1] + m[2])
	return Event{Kind: kind, PCI: pci, Body: m[3]}, err == nil
}

// cutProcess splits "pid=1234, name=python, text". If there is no process, it returns the whole string as text.
func cutProcess(tail string) (Process, string) {
	m := process.FindStringSubmatch(tail)
	if m == nil {
		return Process{}, tail
	}
	p := Process{Name: m[2]}
	if m[1] == "'<unknown>'" {
		p.Unknown = true
	} else {
		p.PID = atoi(m[1])
	}
	if p.check() != nil {
		return Process{}, tail
	}
	return p, m[3]
}

// cutCause removes " caused by previous Xid N" from the text of an Xid 45 and sets CausedBy.
func (e *Event) cutCause() {
	if m := cause.FindStringSubmatch(e.Body); m != nil && e.Code == 45 {
		e.Body, e.CausedBy = m[1], atoi(m[2])
	}
}

// cutSeverity splits "Fatal, Link 30 LTSSM Fault Up". Detail lines after an SXid have no severity.
func (e *Event) cutSeverity(tail string) {
	e.Body = tail
	if m := severe.FindStringSubmatch(tail); m != nil {
		e.Severity, e.Body = Severity(m[1]), m[3]
		e.HasLink, e.Link = m[2] != "", atoi(m[2])
	}
}

// atoi parses up to nine digits matched by a pattern. An empty string is 0.
func atoi(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}
