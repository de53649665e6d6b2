// Package similar tells how alike names are, for messages that ask "did you mean ...?". Pure.
package similar

import "strings"

// Nearest returns the name that was most likely meant by what somebody wrote, where case does not count; empty when
// none is near. Of several that are as near it is the first.
func Nearest(wrote string, names []string) string {
	best, least := "", 0
	for _, name := range names {
		d := Distance(strings.ToLower(wrote), strings.ToLower(name))
		if far := min(len(name)-1, (len(name)+2)/3); d <= far && (best == "" || d < least) {
			best, least = name, d
		}
	}
	return best
}

// Distance returns how many bytes have to be put in, taken out or replaced to make b of a (Levenshtein's distance).
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
