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

// MaxLog is the maximum size in bytes of a log for [ParseLog]. An excerpt is a few KiB, and an entire dmesg is less
// than 2 MiB.
const MaxLog = 16 << 20

// Entry is one driver record in a log.
type Entry struct {
	Line int // number of the record's first line in the log, starting at 1
	// Offset is the time since the first entry. It never decreases. Lines without a time use the time of the previous
	// entry.
	Offset time.Duration
	// Text is the exact driver text, including the newlines of a record with several lines.
	Text   string
	Event  Event
	Prefix Prefix
}

// Log is the result of [ParseLog].
type Log struct {
	Entries []Entry
	Lines   int // number of non-empty lines
	Skipped int // number of lines that are not from the driver
	// Refused contains the driver lines that cannot be replayed because they contain control characters.
	Refused []Refusal
}

// Refusal is a line that cannot be replayed, with the reason.
type Refusal struct {
	Line int
	Err  error
}

// ParseLog parses a log excerpt in any format or mix of formats that [Parse] supports. It keeps driver lines, joins
// records that a tool printed on several lines, and counts other lines. It rejects files that are compressed, binary or
// longer than [MaxLog].
func ParseLog(r io.Reader) (Log, error) {
	raw, err := io.ReadAll(io.LimitReader(r, MaxLog+1))
	switch {
	case err != nil:
		return Log{}, fmt.Errorf("reading the log: %w", err)
	case len(raw) > MaxLog:
		return Log{},
			fmt.Errorf("the log is larger than %d MiB: extract the incident, for example with grep -e NVRM -e nvswitch",
				MaxLog>>20)
	case bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) || bytes.HasPrefix(raw, []byte("\xfd7zXZ")) ||
		bytes.HasPrefix(raw, []byte("\x28\xb5\x2f\xfd")):
		return Log{}, errors.New("the log is compressed: decompress it first (zcat, xzcat, zstdcat)")
	case bytes.HasPrefix(raw, []byte("LPKSHHRH")):
		return Log{}, errors.New("the log is a journal file: print it first, with journalctl -k --file FILE")
	case bytes.IndexByte(raw, 0) >= 0:
		return Log{}, errors.New("the log is not text: it contains NUL bytes")
	}
	l := reader{}
	for i, line := range strings.Split(string(raw), "\n") {
		l.add(i+1, strings.TrimRight(line, "\r"))
	}
	l.flush()
	return l.log, nil
}

// reader collects entries. torn contains the lines of a multi-line record until the record is complete.
type reader struct {
	log   Log
	torn  []Entry
	clock clock
}

var fallenHead = regexp.MustCompile(`^NVRM: The NVIDIA GPU ` + addressPattern + `$`)

// fallenTail contains the prefixes of the lines that follow fallenHead in one record (osapi.c).
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

// flush adds the lines of an incomplete record as individual entries.
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

// Record formats the entry as one write to /dev/kmsg. The text is the original text from the log.
func (e Entry) Record(f Form) (Kmsg, error) {
	if err := parseText(e.Text).Check(); err != nil {
		return Kmsg{}, fmt.Errorf("line %d: %w", e.Line, err)
	}
	return dress(e.Text, e.Event.level(), f)
}

// clock converts the times of lines to offsets. Uptime and wall-clock time cannot be compared, so each is measured from
// the first line that contains it.
type clock struct {
	last             time.Duration
	uptime, wall     time.Duration // offset + this = time of the line
	hasUptime, begun bool
	epoch            time.Time
}

const (
	year    = 366 * 24 * time.Hour // the length of 2000, the year assumed for lines without a year
	maxGap  = year                 // between two lines; a larger gap indicates a wrong clock
	maxSpan = 100 * year           // for a whole log, so that offsets cannot overflow
)

func (c *clock) offset(p Prefix) time.Duration {
	var at time.Duration
	switch {
	case p.HasUptime:
		if !c.hasUptime {
			c.hasUptime, c.uptime = true, p.Uptime-c.last
		}
		at = p.Uptime - c.uptime
		if at < c.last || at > c.last+maxGap || at > maxSpan { // the node rebooted
			c.uptime, at = p.Uptime-c.last, c.last
		}
	case !p.Time.IsZero():
		if !c.begun {
			c.begun, c.epoch, c.wall = true, p.Time, -c.last
		}
		at = p.Time.Sub(c.epoch) - c.wall
		if p.Format == FormatSyslog && at < c.last-year/2 {
			at += year // in lines without a year, January follows December
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
