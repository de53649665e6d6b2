package xid

import (
	"regexp"
	"strings"
	"time"
)

// Format is the kind of log that a line comes from.
type Format string

const (
	FormatNone  Format = "none"  // the driver's text alone
	FormatWrite Format = "write" // <4>text: the bytes for a write to /dev/kmsg
	FormatKmsg  Format = "kmsg"  // 4,344,5240688,-;text: read from /dev/kmsg
	// [12345.678901] text, also with -x, or with a host as of journalctl -o short-monotonic
	FormatDmesg   Format = "dmesg"
	FormatCtime   Format = "ctime"   // [Tue Nov  3 10:11:12 2026] text: dmesg -T
	FormatSyslog  Format = "syslog"  // Nov  3 10:11:12 host kernel: text: syslog files and journalctl
	FormatISO     Format = "iso"     // 2026-11-03T10:11:12.345+00:00 host kernel: text
	FormatUnknown Format = "unknown" // something else in front of the text
)

// Prefix is what stands before the driver's text on a line.
type Prefix struct {
	Format Format
	// Form is that of a record written to /dev/kmsg, as far as the line shows it; FormModule for a record of the
	// kernel.
	Form Form
	// Priority is facility*8+level, or -1 if the line does not tell it.
	Priority int
	// Uptime is the time since boot, Time that of the wall. A syslog line has no year: it is then 2000, in UTC.
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

// splitLine finds the driver's text in a line and says what stands before it. ok is false if there is none.
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
		if strings.HasPrefix(text, "NVRM: The NVIDIA GPU") { // rsyslog escapes a newline in octal
			text = strings.ReplaceAll(text, "#012", "\n")
		}
	}
	// Some injectors write NVRM: twice, so that journald leaves one.
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
		p.Time, _ = time.Parse("Jan _2 15:04:05 2006", m[1]+" 2000") // a leap year, so that 29 February parses
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

// uptimeIsNoForm: behind "host kernel: " a bracket is the uptime that the kernel's console format has, not FormBracket.
func uptimeIsNoForm(s string) string {
	if strings.HasPrefix(s, "[") {
		return ""
	}
	return s
}

// parseDigits is for at most 15 digits of microseconds, 9 of other units, so that it cannot overflow.
func parseDigits(digits string, unit time.Duration) time.Duration {
	var n time.Duration
	for i := range len(digits) {
		n = n*10 + time.Duration(digits[i]-'0')
	}
	return n * unit
}
