package baseline

import (
	"regexp"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Whole reports whether the object exists and is stored in full, so that it can be recreated.
func (b *Baseline) Whole(ref scenario.Ref) bool {
	found := b.objects[keyOf(ref)]
	return found != nil && found.hashes == nil
}

// hashed matches the hash that replaces a secret or a long value.
var hashed = regexp.MustCompile(`^sha256:[0-9a-f]{32}( \([0-9]+ bytes\))?$`)

// Hashed reports whether a value, or a nested value, was replaced by a hash.
func Hashed(value any) bool {
	switch value := value.(type) {
	case string:
		return hashed.MatchString(value)
	case map[string]any:
		for _, inner := range value {
			if Hashed(inner) {
				return true
			}
		}
	case []any:
		for _, inner := range value {
			if Hashed(inner) {
				return true
			}
		}
	}
	return false
}
