package xid

import "strings"

// JournaldView returns the SYSLOG_IDENTIFIER and MESSAGE of journald's entry for a kernel log record. The entry always
// has _TRANSPORT=kernel.
//
// For the kernel facility, the identifier is "kernel" and the message is the whole text. For all other facilities, and
// therefore for everything that user space writes to /dev/kmsg, journald uses a leading "word:" as the identifier and
// strips it along with one space: "NVRM: Xid ..." becomes "Xid ...", which no detector matches. (Source: systemd,
// journald-kmsg.c and syslog_parse_identifier; measured on 252.)
func JournaldView(k Kmsg) (identifier, message string) {
	if k.Facility == facilityKern {
		return "kernel", k.Text
	}
	// journald parses the escaped text of /dev/kmsg, in which a newline is not white space.
	const white = " \t\n\r"
	text := escape(k.Text)
	rest := strings.TrimLeft(text, white)
	word, _, _ := strings.Cut(rest, " ") // other white space is escaped
	identifier, ok := strings.CutSuffix(word, ":")
	if !ok {
		return "", k.Text
	}
	rest = strings.TrimPrefix(rest[len(word):], " ")
	if body, isPID := strings.CutSuffix(identifier, "]"); isPID {
		if at := strings.LastIndexByte(body, '['); at >= 0 {
			identifier = body[:at]
		}
	}
	return identifier, unescape(rest)
}
