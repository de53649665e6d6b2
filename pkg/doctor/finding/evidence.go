package finding

import (
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Clipped returns the evidence with its text kept short.
func Clipped(e Evidence) Evidence {
	e.Text = words.Clip(e.Text)
	return e
}

// FieldEvidence quotes a field of an object.
func FieldEvidence(o Object, field, format string, args ...any) Evidence {
	return Evidence{Source: o.String() + " " + field, Text: words.Clip(fmt.Sprintf(format, args...))}
}
