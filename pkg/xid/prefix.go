package xid

import (
	"regexp"
	"strings"
	"time"
)

// Format is the log format of a line.
type Format string

const (
	FormatNone  Format = "none"  // only the driver's text
	FormatWrite Format = "write" // <4>text: the bytes for a write to /dev/kmsg
	FormatKmsg  Format = "kmsg"  // 4,344,5240688,-;text: read from /dev/kmsg
	// FormatDmesg is "[12345.678901] text", with or without -x, or with a host as in journalctl -o short-monotonic.
	FormatDmesg   Format = "dmesg"
	FormatCtime   Format = "ctime"   // [Tue Nov  3 10:11:12 2026] text: dmesg -T
	FormatSyslog  Format = "syslog"  // Nov  3 10:11:12 host kernel: text: syslog files and journalctl
	FormatISO     Format = "iso"     // 2026-11-03T10:11:12.345+00:00 host kernel: text
	FormatUnknown Format = "unknown" // an unknown prefix
)

// Prefix is the part of a line before the driver's text.
type Prefix struct {
	Format Format
	// Form is the form of a record written to /dev/kmsg, as far as it can be determined from the line. It is FormModule
	// for a kernel record.
	Form Form
	// Priority is facility*8+level, or -1 if the line does not contain it.
	Priority int
	// Uptime is the time since boot. Time is the wall-clock time. A syslog line has no year, so its time is in the year
	// 2000, UTC.
	HasUptime bool
	Uptime    time.Duration
	Time      time.Time
}

const (
	formPattern   = `(kernel: |\[ *\d+\.\d+\] )?$`
	decorPattern  = `^(?:[a-z0-9]+ *:[a-z]+ *: )?` // dmesg -x: "kern  :warn  : "
	uptimePattern = `\[ *(\d{1,9})\.(\d{6})\]`
	callerPattern = `(?: ?\[ *[TC]\d+\])?` // CONFIG_PRINTK_CALLER
	datePattern   = `([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)`
	hostPattern   = ` \S+ (?:kernel(?:\[\d+\])?: )?`
)

var (
	driverTag   = regexp.MustCompile(`(?:^|[ ;>\]:])(NVRM: |nvidia-nvswitch\d+: )`)
	writePrefix = regexp.MustCompile(`^<(\d{1,3})>` + formPattern)
	kmsgPrefix  = regexp.MustCompile(`^(\d{1,4}),\d+,(\d{1,15}),[^;]*;` + formPattern)
	dmesgPrefix = regexp.MustCompile(
		decorPattern + uptimePattern + callerPattern + `(?: |` + hostPattern + `)` + formPattern,
	)
	ctimePrefix = regexp.MustCompile(
		decorPattern + `\[[A-Z][a-z]{2} ` + datePattern + ` (\d{4})\]` + callerPattern + ` ` + formPattern,
	)
	syslogPrefix = regexp.MustCompile(`^` + datePattern + hostPattern + formPattern)
	isoPrefix    = regexp.MustCompile(
		`^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?(?:` + hostPattern + `| )` + formPattern,
	)
	nonePrefix = regexp.MustCompile(`^` + formPattern)
)

// splitLine splits a line into its prefix and the driver's text. ok is false if there is no driver text.
func splitLine(line string) (p Prefix, text string, ok bool) {
	line = strings.TrimRight(line, "\r\n")
	at := driverTag.FindStringSubmatchIndex(line)
	if at == nil {
		return Prefix{}, "", false
	}
	before, text := line[:at[2]], line[at[2]:]
	p = prefixOf(before)
	switch p.Format {
	case FormatKmsg:
		text = unescape(text)
	case FormatSyslog, FormatISO:
		if strings.HasPrefix(text, "NVRM: The NVIDIA GPU") { // rsyslog escapes newlines in octal
			text = strings.ReplaceAll(text, "#012", "\n")
		}
	}
	// Some injectors write NVRM: twice, because journald strips one of the two.
	if strings.HasPrefix(text, "NVRM: NVRM: ") {
		text = text[len("NVRM: "):]
	}
	return p, text, true
}

func prefixOf(s string) Prefix {
	p := Prefix{Form: FormPlain, Priority: -1}
	setForm := func(s string) {
		switch {
		case s == "kernel: ":
			p.Form = FormKernel
		case s != "":
			p.Form = FormBracket
		}
	}
	if m := nonePrefix.FindStringSubmatch(s); m != nil && !strings.HasPrefix(m[1], "[") {
		p.Format = FormatNone
		setForm(m[1])
	} else if m := writePrefix.FindStringSubmatch(s); m != nil {
		p.Format, p.Priority = FormatWrite, atoi(m[1])
		setForm(m[2])
	} else if m := kmsgPrefix.FindStringSubmatch(s); m != nil {
		p.Format, p.Priority = FormatKmsg, atoi(m[1])
		p.HasUptime, p.Uptime = true, parseDigits(m[2], time.Microsecond)
		if p.Priority < 8 {
			p.Form = FormModule
		}
		setForm(m[3])
	} else if m := dmesgPrefix.FindStringSubmatch(s); m != nil {
		p.Format, p.HasUptime = FormatDmesg, true
		p.Uptime = parseDigits(m[1], time.Second) + parseDigits(m[2], time.Microsecond)
		setForm(m[3])
	} else if m := ctimePrefix.FindStringSubmatch(s); m != nil {
		p.Format = FormatCtime
		p.Time, _ = time.Parse("Jan _2 15:04:05 2006", m[1]+" "+m[2])
		setForm(m[3])
	} else if m := syslogPrefix.FindStringSubmatch(s); m != nil {
		p.Format = FormatSyslog
		p.Time, _ = time.Parse("Jan _2 15:04:05 2006", m[1]+" 2000") // a leap year, so that February 29 parses
		setForm(uptimeIsNoForm(m[2]))
	} else if m := isoPrefix.FindStringSubmatch(s); m != nil {
		p.Format = FormatISO
		p.Time, _ = time.Parse("2006-01-02T15:04:05", m[1])
		if m[2] != "" {
			p.Time = p.Time.Add(parseDigits((m[2] + "00000000")[:9], time.Nanosecond))
		}
		setForm(uptimeIsNoForm(m[4]))
	} else {
		p.Format = FormatUnknown
	}
	return p
}

// uptimeIsNoForm returns "" if the prefix starts with a bracket, and otherwise the prefix itself. After "host kernel:
// ", a bracket is the uptime in the kernel's console format, not FormBracket.
func uptimeIsNoForm(s string) string {
	if strings.HasPrefix(s, "[") {
		return ""
	}
	return s
}

// parseDigits parses a number of units. It supports up to 15 digits for microseconds and up to 9 for larger units, so
// that the result cannot overflow.
func parseDigits(digits string, unit time.Duration) time.Duration {
	var n time.Duration
	for i := range len(digits) {
		n = n*10 + time.Duration(digits[i]-'0')
	}
	return n * unit
}
