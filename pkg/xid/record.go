package xid

import (
	"fmt"
	"strings"
)

// MaxRecord is how many bytes one write to /dev/kmsg may have here, with the priority and the final newline. Newer
// kernels take 1024, but 6.1 refuses 1000 with EINVAL, and stores nothing of it; older ones and gpud set the limit at
// 976.
const MaxRecord = 976

// Facilities of syslog that matter here.
const (
	facilityKern = 0 // only the kernel itself can use it
	facilityUser = 1 // what the kernel makes of facility 0 in a write to /dev/kmsg
)

// bracket is the time in front of FormBracket. Its value means nothing; NVSentinel's own acceptance test writes this
// one.
const bracket = "[6085126.134786] "

// Kmsg is one record of the kernel log.
type Kmsg struct {
	// Facility and Level are what a reader of the log gets; the facility cannot be chosen by the writer.
	Facility int `json:"facility"`
	Level    int `json:"level"`
	// Text has no final newline. A newline within does not end the record.
	Text string `json:"text"`
}

// Record dresses the event in a form, as one write to /dev/kmsg. It refuses events with line breaks or control
// characters, and records of more than [MaxRecord] bytes.
func Record(e Event, f Form) (Kmsg, error) {
	if err := e.Check(); err != nil {
		return Kmsg{}, err
	}
	return dress(e.Text(), e.level(), f)
}

func dress(text string, level int, f Form) (Kmsg, error) {
	k := Kmsg{Facility: facilityUser, Level: level, Text: text}
	switch f {
	case FormAuto, FormKernel, "":
		k.Text = "kernel: " + text
	case FormBracket:
		k.Text = bracket + text
	case FormModule:
		k.Facility = facilityKern
	case FormPlain:
	default:
		return Kmsg{}, fmt.Errorf("unknown form %q: use auto, kernel, plain or bracket", f)
	}
	if n := len(k.Bytes()); n > MaxRecord {
		return Kmsg{},
			fmt.Errorf("the record has %d bytes, and kernels refuse more than %d: shorten the message by %d bytes",
				n, MaxRecord, n-MaxRecord)
	}
	return k, nil
}

// Bytes returns what one write(2) to /dev/kmsg takes: the priority, the text, and the newline without which no reader
// sees the record until the next one. Write it with an open and close of its own: a descriptor is limited to 10 records
// in 5 seconds, and the kernel reports success for those that it drops.
func (k Kmsg) Bytes() []byte {
	return fmt.Appendf(nil, "<%d>%s\n", k.Level, k.Text)
}

// Raw returns the record as a reader of /dev/kmsg gets it: "12,344,5240688,-;NVRM: ...", without the final newline.
func (k Kmsg) Raw(sequence, microseconds uint64) string {
	return fmt.Sprintf("%d,%d,%d,-;%s", k.Facility*8+k.Level, sequence, microseconds, escape(k.Text))
}

// escape returns what the kernel does to text in /dev/kmsg (printk.c, msg_add_ext_text): everything but printable
// ASCII, and the backslash, becomes \xNN.
func escape(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= 0x7f || c == '\\' {
			fmt.Fprintf(&b, `\x%02x`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// unescape undoes escape. What is no escape stays.
func unescape(text string) string {
	if !strings.Contains(text, `\x`) {
		return text
	}
	b := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if i+3 < len(text) && text[i] == '\\' && text[i+1] == 'x' {
			high, low := hexDigit(text[i+2]), hexDigit(text[i+3])
			if high >= 0 && low >= 0 {
				b = append(b, byte(high<<4|low))
				i += 3
				continue
			}
		}
		b = append(b, text[i])
	}
	return string(b)
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
