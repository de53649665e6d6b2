package api

import (
	"errors"
	"fmt"
	"strings"
)

// MaxKmsgRecord is the length in bytes, with priority and newline, of the longest record that every kernel stores
// completely. Until Linux 5.9, the text shared 1024 bytes with a prefix of up to 48 bytes (LOG_LINE_MAX in
// kernel/printk/printk.c); later kernels accept 1024.
const MaxKmsgRecord = 976

// MaxKmsgShown is the length in bytes of the longest escaped text that readers of /dev/kmsg see completely. Since Linux
// 6.4, they get 2048 bytes of a record (PRINTK_MESSAGE_MAX in kernel/printk/internal.h), up to 70 of which are numbers.
const MaxKmsgShown = 1900

// MaxKmsgRecords is the maximum number of records in one request.
const MaxKmsgRecords = 10_000

// maxPriority is facility 23 (local7), level 7.
const maxPriority = 23<<3 | 7

// Validate returns an error if /dev/kmsg would reject, truncate or not show a record.
func (w WriteKmsg) Validate() error {
	if len(w.Records) == 0 {
		return errors.New("there is no record to write")
	}
	if len(w.Records) > MaxKmsgRecords {
		return fmt.Errorf("%d records are more than %d", len(w.Records), MaxKmsgRecords)
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
		return fmt.Errorf("it has %d bytes, and more than %d are cut or refused by some kernels", len(r.Data),
			MaxKmsgRecord)
	case !ok:
		return errors.New("it does not begin with a priority such as <4>")
	case priority > maxPriority:
		return fmt.Errorf("its priority %d is above %d", priority, maxPriority)
	case !strings.HasSuffix(text, "\n"):
		// The kernel keeps such a record open, and readers see it only after the next one is written.
		return errors.New("it does not end with a newline")
	case strings.Trim(text, "\n") == "":
		return errors.New("it has no text")
	case strings.ContainsRune(text, 0):
		return errors.New("it contains a NUL byte, where the kernel would cut it")
	case r.Delay < 0:
		return errors.New("its delay is negative")
	}
	if _, shown := Stored(r.Data); len(shown) > MaxKmsgShown {
		return fmt.Errorf(
			"it has so many bytes that are not printable ASCII that readers would see it cut: %d bytes with escapes are more than %d",
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

// Stored returns a valid record as a reader sees it, according to devkmsg_write, vprintk_store and msg_print_ext_body
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
