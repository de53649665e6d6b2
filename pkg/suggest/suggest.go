// Package suggest finds the intended name for a misspelled one, for messages such as "did you mean ...?". It is pure.
package suggest

import (
	"strings"

	"github.com/agext/levenshtein"
)

// Nearest returns the name that the user most likely meant by the string wrote, ignoring case. It returns "" if no name
// is similar. If several names are equally similar, it returns the first.
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
