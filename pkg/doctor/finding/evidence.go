package finding

import (
	"fmt"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Clipped returns the evidence with its text shortened.
func Clipped(e Evidence) Evidence {
	e.Text = words.Clip(e.Text)
	return e
}

// FieldEvidence returns a field of an object as evidence.
func FieldEvidence(o Object, field, format string, args ...any) Evidence {
	return Evidence{Source: o.String() + " " + field, Text: words.Clip(fmt.Sprintf(format, args...))}
}
