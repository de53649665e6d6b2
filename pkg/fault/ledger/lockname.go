package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName is the maximum length of a Kubernetes object name.
const maxName = 253

// lockName returns the name of the target's Lease. A hash makes the name unique.
func lockName(t Target) string {
	sum := sha256.Sum256([]byte(path(t)))
	hash := hex.EncodeToString(sum[:8])
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, strings.ToLower(path(t)))
	readable = readable[:min(len(readable), maxName-len(hash)-1)]
	return strings.Trim(readable, "-") + "-" + hash
}
