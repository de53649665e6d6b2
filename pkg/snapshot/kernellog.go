package snapshot

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// dmesgPriority is the priority for lines without one: warning, like most of the driver's messages.
const dmesgPriority = 4

// maxLogRecords is the maximum number of records in one log: five times as many as the helper sends.
const maxLogRecords = 10_000

// ParseKernelLog parses kernel.log: one record per line as SEQUENCE;PRIORITY;UPTIME;TEXT, or the output of dmesg, with
// or without -T, -x and -r. Other lines also become records, with the time of the previous line, because some driver
// messages consist of several lines. Lines from dmesg are numbered from 1. Only the last 10,000 lines are parsed.
func ParseKernelLog(text string) []api.KernelRecord {
	var all []api.KernelRecord
	var last api.KernelRecord
	for line := range strings.SplitSeq(lastRecords(text), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if strings.TrimSpace(line) == "" {
			continue
		}
		record, ok := parseRecord(line)
		if !ok {
			record = parseDmesg(line, last)
		}
		all = append(all, record)
		last = record
	}
	return all
}

// lastRecords returns the last maxLogRecords lines of a log, or all of it if it is shorter.
func lastRecords(text string) string {
	at := len(strings.TrimRight(text, "\r\n"))
	for range maxLogRecords {
		if at = strings.LastIndexByte(text[:at], '\n'); at < 0 {
			return text
		}
	}
	return text[at+1:]
}

func parseRecord(line string) (api.KernelRecord, bool) {
	parts := strings.SplitN(line, ";", 4)
	if len(parts) < 4 {
		return api.KernelRecord{}, false
	}
	sequence, err1 := strconv.ParseUint(parts[0], 10, 64)
	priority, err2 := strconv.ParseUint(parts[1], 10, 16)
	uptime, ok := microseconds(parts[2])
	if err1 != nil || err2 != nil || !ok {
		return api.KernelRecord{}, false
	}
	return api.KernelRecord{
		Sequence: sequence, Priority: int(priority), Uptime: uptime, Text: unescape(parts[3]),
	}, true
}

// microseconds parses a time. It rejects values that overflow a time.Duration (292 years).
func microseconds(text string) (time.Duration, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > int64((1<<63-1)/time.Microsecond) {
		return 0, false
	}
	return time.Duration(n) * time.Microsecond, true
}

// dmesgLine matches the priority of `dmesg -r`, the facility and level of `dmesg -x`, the time, the thread that
// some kernels add, and the text.
var dmesgLine = regexp.MustCompile(
	`^(?:<(\d{1,4})>)?(?:[a-z0-9]+ *:[a-z]+ *: *)?\[ *([^\[\]]+)\](?:\[ *[TC]\d+\])? ?(.*)$`,
)

func parseDmesg(line string, last api.KernelRecord) api.KernelRecord {
	record := api.KernelRecord{
		Sequence: last.Sequence + 1, Priority: dmesgPriority, Uptime: last.Uptime, Time: last.Time,
		Text: unescape(line),
	}
	match := dmesgLine.FindStringSubmatch(line)
	if match == nil {
		return record
	}
	if seconds, micro, ok := strings.Cut(match[2], "."); ok && len(micro) == 6 {
		uptime, ok := microseconds(seconds + micro)
		if !ok {
			return record
		}
		record.Uptime, record.Time = uptime, time.Time{}
	} else if t, err := time.Parse(time.ANSIC, match[2]); err == nil { // format of dmesg -T
		record.Time = t
	} else {
		return record
	}
	if priority, err := strconv.Atoi(match[1]); err == nil {
		record.Priority = priority
	}
	record.Text = unescape(match[3])
	return record
}

// formatKernelLog formats records for ParseKernelLog.
func formatKernelLog(records []api.KernelRecord) string {
	var b strings.Builder
	for _, r := range records {
		b.WriteString(strconv.FormatUint(r.Sequence, 10) + ";" + strconv.Itoa(max(r.Priority, 0)) + ";" +
			strconv.FormatInt(max(r.Uptime, 0).Microseconds(), 10) + ";")
		b.WriteString(escape(r.Text) + "\n")
	}
	return b.String()
}

// escaped matches the kernel's escape sequences for unprintable bytes, such as \x0a.
// https://docs.kernel.org/admin-guide/abi-testing.html, dev-kmsg
var escaped = regexp.MustCompile(`\\x[0-9a-f]{2}`)

func unescape(text string) string {
	return escaped.ReplaceAllStringFunc(text, func(code string) string {
		n, err := strconv.ParseUint(code[2:], 16, 8)
		if err != nil {
			return code
		}
		return string([]byte{byte(n)})
	})
}

// escape escapes line ends, and backslashes that would be parsed as escapes.
func escape(text string) string {
	text = escaped.ReplaceAllStringFunc(text, func(code string) string { return `\x5c` + code[1:] })
	return strings.NewReplacer("\n", `\x0a`, "\r", `\x0d`).Replace(text)
}
