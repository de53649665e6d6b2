package baseline

import (
	"regexp"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Whole reports whether all that is kept of objects is kept of this one, so that it could be made again from it: it is
// there, and not beyond Options.Limit.
func (b *Baseline) Whole(ref scenario.Ref) bool {
	found := b.objects[keyOf(ref)]
	return found != nil && found.hashes == nil
}

// hashed is what stands in the place of a value that was secret or long.
var hashed = regexp.MustCompile(`^sha256:[0-9a-f]{32}( \([0-9]+ bytes\))?$`)

// Hashed reports whether a value of an object, or one in it, is only a hash of what it was.
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
