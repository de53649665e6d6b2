package api

import (
	"errors"
	"fmt"
	"strings"
)

// MaxKmsgRecord is the maximum length in bytes, including priority and newline, of a record that every kernel stores
// completely. Until Linux 5.9, the text shared 1024 bytes with a prefix of up to 48 bytes (LOG_LINE_MAX in
// kernel/printk/printk.c). Later kernels accept 1024.
const MaxKmsgRecord = 976

// MaxKmsgShown is the maximum length in bytes of an escaped text that readers of /dev/kmsg see completely. Since Linux
// 6.4, readers get 2048 bytes of a record (PRINTK_MESSAGE_MAX in kernel/printk/internal.h), of which the numeric prefix
// takes up to 70.
const MaxKmsgShown = 1900

// MaxKmsgRecords is the maximum number of records in one request.
const MaxKmsgRecords = 10_000

// maxPriority is facility 23 (local7), level 7.
const maxPriority = 23<<3 | 7

// Validate returns an error if /dev/kmsg would reject, truncate or not show a record.
func (w WriteKmsg) Validate() error {
	if len(w.Records) == 0 {
		return errors.New("no records to write")
	}
	if len(w.Records) > MaxKmsgRecords {
		return fmt.Errorf("too many records: %d, but the maximum is %d", len(w.Records), MaxKmsgRecords)
	}
	for i, r := range w.Records {
		if err := r.validate(); err != nil {
			return fmt.Errorf("record %d of %d: %w", i+1, len(w.Records), err)
		}
	}
	return nil
}

func (r KmsgRecord) validate() error {
	priority, text, ok := CutPriority(r.Data)
	switch {
	case len(r.Data) > MaxKmsgRecord:
		return fmt.Errorf("too long: %d bytes, but some kernels truncate or reject records of more than "+
			"%d", len(r.Data),
			MaxKmsgRecord)
	case !ok:
		return errors.New("does not begin with a priority such as <4>")
	case priority > maxPriority:
		return fmt.Errorf("priority %d is above %d", priority, maxPriority)
	case !strings.HasSuffix(text, "\n"):
		// The kernel keeps such a record open, and readers see it only after the next one is written.
		return errors.New("does not end with a newline")
	case strings.Trim(text, "\n") == "":
		return errors.New("contains no text")
	case strings.ContainsRune(text, 0):
		return errors.New("contains a NUL byte, at which the kernel would truncate the record")
	case r.Delay < 0:
		return errors.New("delay is negative")
	}
	if _, shown := Stored(r.Data); len(shown) > MaxKmsgShown {
		return fmt.Errorf(
			"too long once bytes that are not printable ASCII are escaped: readers see only %[2]d of %[1]d bytes",
			len(shown), MaxKmsgShown,
		)
	}
	return nil
}

// CutPriority splits "<4>text". The number must be decimal, without sign or space.
func CutPriority(data string) (priority int, text string, ok bool) {
	digits, text, found := strings.Cut(data, ">")
	if !found || len(digits) < 2 || len(digits) > 4 || digits[0] != '<' {
		return 0, "", false
	}
	for _, c := range digits[1:] {
		if c < '0' || c > '9' {
			return 0, "", false
		}
		priority = priority*10 + int(c-'0')
	}
	return priority, text, true
}

// Stored returns a valid record as seen by a reader, according to devkmsg_write, vprintk_store and msg_print_ext_body
// in kernel/printk/printk.c. Facility 0 is reserved for the kernel, so it becomes 1 (user). One trailing newline is
// removed. Backslashes and all characters except printable ASCII are escaped.
func Stored(data string) (priority int, text string) {
	priority, text, _ = CutPriority(data)
	if priority>>3 == 0 {
		priority |= 1 << 3
	}
	text = strings.TrimSuffix(text, "\n")
	var escaped strings.Builder
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= 127 || c == '\\' {
			fmt.Fprintf(&escaped, `\x%02x`, c)
		} else {
			escaped.WriteByte(c)
		}
	}
	return priority, escaped.String()
}
