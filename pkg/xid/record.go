package xid

import (
	"fmt"
	"strings"
)

// MaxRecord is the maximum size in bytes of one write to /dev/kmsg, including the priority and the final newline. Newer
// kernels accept 1024 bytes, but 6.1 rejects 1000 bytes with EINVAL and stores nothing. Older kernels and gpud limit
// records to 976 bytes.
const MaxRecord = 976

// Relevant syslog facilities.
const (
	facilityKern = 0 // reserved for the kernel
	facilityUser = 1 // the facility that the kernel substitutes for 0 in a write to /dev/kmsg
)

// bracket is the timestamp in FormBracket. Its value is taken from NVSentinel's acceptance test, and has no meaning.
const bracket = "[6085126.134786] "

// Kmsg is one kernel log record.
type Kmsg struct {
	// Facility and Level are the values received by a log reader. The writer cannot choose the facility.
	Facility int `json:"facility"`
	Level    int `json:"level"`
	// Text has no trailing newline. A newline within the text does not end the record.
	Text string `json:"text"`
}

// Record formats the event as one write to /dev/kmsg. It rejects events with line breaks or control characters, and
// records of more than [MaxRecord] bytes.
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
		return Kmsg{}, fmt.Errorf("unknown form %q; supported values: auto, kernel, plain, bracket", f)
	}
	if n := len(k.Bytes()); n > MaxRecord {
		return Kmsg{},
			fmt.Errorf("the record is %d bytes long, but kernels reject more than %d: shorten the message by %d bytes",
				n, MaxRecord, n-MaxRecord)
	}
	return k, nil
}

// Bytes returns the bytes for one write(2) to /dev/kmsg: the priority, the text, and a newline. Without the newline,
// readers see the record only after the next record is written. Open and close /dev/kmsg for each record: a file
// descriptor is limited to 10 records in 5 seconds, and the kernel reports success for the records that it drops.
func (k Kmsg) Bytes() []byte {
	return fmt.Appendf(nil, "<%d>%s\n", k.Level, k.Text)
}

// Raw returns the record as read from /dev/kmsg, without the trailing newline: "12,344,5240688,-;NVRM: ...".
func (k Kmsg) Raw(sequence, microseconds uint64) string {
	return fmt.Sprintf("%d,%d,%d,-;%s", k.Facility*8+k.Level, sequence, microseconds, escape(k.Text))
}

// escape escapes text as the kernel does in /dev/kmsg (printk.c, msg_add_ext_text): backslashes and everything except
// printable ASCII become \xNN.
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

// unescape reverses escape. It keeps invalid escapes.
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
