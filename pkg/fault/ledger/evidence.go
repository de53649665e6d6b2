package ledger

import "encoding/json"

// Condense returns evidence that takes at most about budget bytes of the record: all of it when it fits, otherwise as
// much of its beginning and its end as fits, and in between how many proofs were left out. The sources of the proofs
// around the gap ("/dev/kmsg sequence 4711") still say which range was seen.
func Condense(evidence []Evidence, budget int) []Evidence {
	total := 0
	sizes := make([]int, len(evidence))
	for i, e := range evidence {
		text, err := json.Marshal(e)
		if err != nil { // strings, numbers and times of this era always marshal
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
