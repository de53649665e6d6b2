package xid

import "strings"

// JournaldView returns what journald makes of a record of the kernel log: SYSLOG_IDENTIFIER and MESSAGE of its entry,
// which has _TRANSPORT=kernel in any case.
//
// For the kernel's own facility the identifier is "kernel" and the text stays whole. For all others, so for all that
// user space writes to /dev/kmsg, journald takes a leading "word:" for the identifier and cuts it off with one blank:
// "NVRM: Xid ..." becomes "Xid ...", which no detector looks for. (systemd, journald-kmsg.c and
// syslog_parse_identifier; measured on 252.)
func JournaldView(k Kmsg) (identifier, message string) {
	if k.Facility == facilityKern {
		return "kernel", k.Text
	}
	// journald reads the word in the escaped text of /dev/kmsg, in which a newline is no white space.
	const white = " \t\n\r"
	text := escape(k.Text)
	rest := strings.TrimLeft(text, white)
	word, _, _ := strings.Cut(rest, " ") // the other white space is escaped
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
