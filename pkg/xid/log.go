package xid

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// MaxLog is the size in bytes of the longest log that [ParseLog] reads: an excerpt is a few KiB, a whole dmesg under 2
// MiB.
const MaxLog = 16 << 20

// Entry is one record of the driver in a log.
type Entry struct {
	Line int // number of its first line in the log, from 1
	// Offset is the time since the first entry; it never falls. Lines without a time have that of the entry before.
	Offset time.Duration
	// Text is the driver's text byte for byte, with the newlines of a record of several lines.
	Text   string
	Event  Event
	Prefix Prefix
}

// Log is what [ParseLog] made of a file.
type Log struct {
	Entries []Entry
	Lines   int // all lines that are not empty
	Skipped int // lines that are not the driver's
	// Refused are lines of the driver that cannot be replayed, as they have control characters.
	Refused []Refusal
}

// Refusal is a line that cannot be replayed, and why.
type Refusal struct {
	Line int
	Err  error
}

// ParseLog reads an excerpt of a log in any of the formats that [Parse] reads, also mixed. It keeps the lines of the
// driver and joins records that a tool has printed on several lines; what is not the driver's it counts. Files that are
// compressed, binary or longer than [MaxLog] are refused.
func ParseLog(r io.Reader) (Log, error) {
	raw, err := io.ReadAll(io.LimitReader(r, MaxLog+1))
	switch {
	case err != nil:
		return Log{}, fmt.Errorf("reading the log: %w", err)
	case len(raw) > MaxLog:
		return Log{},
			fmt.Errorf("the log is longer than %d MiB: cut out the incident, as with grep -e NVRM -e nvswitch",
				MaxLog>>20)
	case bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) || bytes.HasPrefix(raw, []byte("\xfd7zXZ")) ||
		bytes.HasPrefix(raw, []byte("\x28\xb5\x2f\xfd")):
		return Log{}, errors.New("the log is compressed: unpack it first (zcat, xzcat, zstdcat)")
	case bytes.HasPrefix(raw, []byte("LPKSHHRH")):
		return Log{}, errors.New("the log is a journal file: print it first, with journalctl -k --file FILE")
	case bytes.IndexByte(raw, 0) >= 0:
		return Log{}, errors.New("the log is binary: it has NUL bytes, so it is no text")
	}
	l := reader{}
	for i, line := range strings.Split(string(raw), "\n") {
		l.add(i+1, strings.TrimRight(line, "\r"))
	}
	l.flush()
	return l.log, nil
}

// reader collects entries; torn holds the lines of a record of several lines until it is whole.
type reader struct {
	log   Log
	torn  []Entry
	clock clock
}

var fallenHead = regexp.MustCompile(`^NVRM: The NVIDIA GPU ` + addressPattern + `$`)

// fallenTail are the beginnings of the lines that follow fallenHead in one record (osapi.c).
var fallenTail = [...]string{"NVRM: (PCI ID: ", "NVRM: fallen off the bus"}

func (l *reader) add(n int, line string) {
	if strings.TrimSpace(line) == "" {
		return
	}
	l.log.Lines++
	p, text, ok := splitLine(line)
	if !ok {
		l.flush()
		l.log.Skipped++
		return
	}
	e := Entry{Line: n, Text: text, Prefix: p}
	if k := len(l.torn); k > 0 && strings.HasPrefix(text, fallenTail[k-1]) {
		if l.torn = append(l.torn, e); k < len(fallenTail) {
			return
		}
		e = l.torn[0]
		for _, next := range l.torn[1:] {
			e.Text += "\n" + next.Text
		}
		l.torn = nil
		l.keep(e)
		return
	}
	l.flush()
	if fallenHead.MatchString(text) {
		l.torn = []Entry{e}
		return
	}
	l.keep(e)
}

// flush keeps what never became a whole record, each line by itself.
func (l *reader) flush() {
	for _, e := range l.torn {
		l.keep(e)
	}
	l.torn = nil
}

func (l *reader) keep(e Entry) {
	e.Event = parseText(e.Text)
	if err := e.Event.Check(); err != nil {
		l.log.Refused = append(l.log.Refused, Refusal{e.Line, err})
		return
	}
	e.Offset = l.clock.offset(e.Prefix)
	l.log.Entries = append(l.log.Entries, e)
}

// Record dresses the entry in a form, as one write to /dev/kmsg. The text stays as it was in the log.
func (e Entry) Record(f Form) (Kmsg, error) {
	if err := parseText(e.Text).Check(); err != nil {
		return Kmsg{}, fmt.Errorf("line %d: %w", e.Line, err)
	}
	return dress(e.Text, e.Event.level(), f)
}

// clock turns the times of lines into offsets. Uptime and wall time do not mix, so each counts from where it was first
// seen.
type clock struct {
	last             time.Duration
	uptime, wall     time.Duration // offset + this = time of the line
	hasUptime, begun bool
	epoch            time.Time
}

const (
	year    = 366 * 24 * time.Hour // that of 2000, which a line without a year gets
	maxGap  = year                 // between two lines; more is a wrong clock
	maxSpan = 100 * year           // of a log, so that offsets cannot overflow
)

func (c *clock) offset(p Prefix) time.Duration {
	var at time.Duration
	switch {
	case p.HasUptime:
		if !c.hasUptime {
			c.hasUptime, c.uptime = true, p.Uptime-c.last
		}
		at = p.Uptime - c.uptime
		if at < c.last || at > c.last+maxGap || at > maxSpan { // a reboot
			c.uptime, at = p.Uptime-c.last, c.last
		}
	case !p.Time.IsZero():
		if !c.begun {
			c.begun, c.epoch, c.wall = true, p.Time, -c.last
		}
		at = p.Time.Sub(c.epoch) - c.wall
		if p.Format == FormatSyslog && at < c.last-year/2 {
			at += year // without a year, January comes before December
		}
		if at < c.last || at > c.last+maxGap || at > maxSpan {
			c.epoch, c.wall, at = p.Time, -c.last, c.last
		}
	default:
		at = c.last
	}
	c.last = at
	return at
}
