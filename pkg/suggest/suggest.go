// Package suggest finds the name that a misspelled one was meant to be, for messages that ask "did you mean ...?".
// Pure.
package suggest

import (
	"strings"

	"github.com/agext/levenshtein"
)

// Nearest returns the name that was most likely meant by wrote, ignoring case; empty if none is near. Of several that
// are equally near it returns the first.
func Nearest(wrote string, names []string) string {
	best, least := "", 0
	for _, name := range names {
		d := levenshtein.Distance(strings.ToLower(wrote), strings.ToLower(name), nil)
		if far := min(len(name)-1, (len(name)+2)/3); d <= far && (best == "" || d < least) {
			best, least = name, d
		}
	}
	return best
}
