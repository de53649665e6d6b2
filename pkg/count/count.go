// Package count formats numbers with their nouns: "1 pod", "2 pods".
package count

import (
	"strconv"
	"strings"
)

// Of returns a number with its noun, which is singular if the number is 1.
func Of[N int | int32 | int64 | uint32 | uint64](n N, noun string) string {
	if n != 1 {
		switch {
		case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "ch"):
			noun += "es"
		default:
			noun += "s"
		}
	}
	return strconv.FormatInt(int64(n), 10) + " " + noun
}
