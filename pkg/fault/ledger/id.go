package ledger

import (
	"fmt"
	"io"
	"strings"
)

// idAlphabet contains no vowels, so that IDs do not contain words, and no characters that are easily confused (0 and o;
// 1, l, and i).
const idAlphabet = "23456789bcdfghjkmnpqrstvwxz"

// idLength allows 387 million IDs for each fault, so collisions are rare. Create handles a collision.
const idLength = 6

// NewID returns an ID for a run: the kind of fault and six characters from random. It returns an error only if reading
// random fails.
func NewID(fault string, random io.Reader) (string, error) {
	const usable = 256 / len(idAlphabet) * len(idAlphabet) // larger bytes would bias the modulo
	var id strings.Builder
	id.WriteString(fault + "-")
	for one := make([]byte, 1); id.Len() < len(fault)+1+idLength; {
		if _, err := io.ReadFull(random, one); err != nil {
			return "", fmt.Errorf("generate an ID for the run: %w", err)
		}
		if int(one[0]) < usable {
			id.WriteByte(idAlphabet[int(one[0])%len(idAlphabet)])
		}
	}
	return id.String(), nil
}
