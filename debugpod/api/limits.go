package api

import (
	"unicode/utf8"
)

// MaxAnswer is how long the line of an answer may be, in bytes: the client reads it as one line, and a sick node is
// where things are large. Of a Diagnosis that is longer the largest parts are left out. The debug pod has 256 MiB, in
// which the answer lies more than once.
const MaxAnswer = 24 << 20

// MaxLineText is how long a line of a log, or a small file, may be, in bytes.
const MaxLineText = 4 << 10

// maxUnits is how many units Diagnose.Units may name.
const maxUnits = 16

// Shorten cuts a text that is longer than most bytes, and says so with "…".
func Shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	text = text[:most]
	for range utf8.UTFMax { // not within a character
		if last, size := utf8.DecodeLastRuneInString(text); last != utf8.RuneError || size != 1 {
			break
		}
		text = text[:len(text)-1]
	}
	return text + "…"
}
