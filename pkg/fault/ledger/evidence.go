package ledger

import "encoding/json"

// Condense shortens evidence to about budget bytes. If the evidence is too long, it keeps as many items as fit from the
// start and the end, and records the number of items omitted between them. The sources of the items around the gap,
// such as "/dev/kmsg sequence 4711", still show the range.
func Condense(evidence []Evidence, budget int) []Evidence {
	total := 0
	sizes := make([]int, len(evidence))
	for i, e := range evidence {
		text, err := json.Marshal(e)
		if err != nil { // cannot happen for strings, numbers, and times
			return evidence
		}
		sizes[i] = len(text) + len(",")
		total += sizes[i]
	}
	if total <= budget || len(evidence) <= 2 {
		return evidence
	}
	first, last := 1, len(evidence)-1
	left := budget - sizes[0] - sizes[last] - len(`,"omitted":1000000`)
	for first < last-1 {
		fromEnd := first > len(evidence)-last
		next := first
		if fromEnd {
			next = last - 1
		}
		if left -= sizes[next]; left < 0 {
			break
		}
		if fromEnd {
			last--
		} else {
			first++
		}
	}
	condensed := make([]Evidence, 0, first+len(evidence)-last)
	condensed = append(condensed, evidence[:first]...)
	condensed[first-1].Omitted += last - first
	return append(condensed, evidence[last:]...)
}
