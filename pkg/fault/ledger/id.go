package ledger

import (
	"fmt"
	"io"
	"strings"
)

// idAlphabet has no vowels, so that no words come out, and nothing that is read for something else (0 and o, 1 and l
// and i).
const idAlphabet = "23456789bcdfghjkmnpqrstvwxz"

// idLength gives 387 million IDs for each fault: a collision, which Create survives, is a rare thing.
const idLength = 6

// NewID returns an ID for a run: the kind of fault and six characters from random. It fails only when random does.
func NewID(fault string, random io.Reader) (string, error) {
	const usable = 256 / len(idAlphabet) * len(idAlphabet) // above it, a byte modulo 27 would favor the first letters
	var id strings.Builder
	id.WriteString(fault + "-")
	for one := make([]byte, 1); id.Len() < len(fault)+1+idLength; {
		if _, err := io.ReadFull(random, one); err != nil {
			return "", fmt.Errorf("make an ID for the run: %w", err)
		}
		if int(one[0]) < usable {
			id.WriteByte(idAlphabet[int(one[0])%len(idAlphabet)])
		}
	}
	return id.String(), nil
}
