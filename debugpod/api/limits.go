package api

import (
	"unicode/utf8"
)

// MaxAnswer is the maximum size in bytes of a response, which is one line. If a Diagnosis is larger, as may happen on a
// broken node, its largest parts are omitted. Several copies of the response must fit into the debug pod's 256 MiB.
const MaxAnswer = 24 << 20

// MaxLineText is the maximum size in bytes of a log line or a small file.
const MaxLineText = 4 << 10

// maxUnits is the maximum number of units in Diagnose.Units.
const maxUnits = 16

// Shorten truncates a string to the given number of bytes, and marks the truncation with "…".
func Shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	text = text[:most]
	for range utf8.UTFMax { // do not split a character
		if last, size := utf8.DecodeLastRuneInString(text); last != utf8.RuneError || size != 1 {
			break
		}
		text = text[:len(text)-1]
	}
	return text + "…"
}
