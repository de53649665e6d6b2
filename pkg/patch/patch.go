// Package patch changes bytes at known positions in a file, and reverts the change exactly. A patch contains only the
// bytes that it changes, so that a record of it does not copy the rest of the file, which may contain credentials.
package patch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Edit replaces Old, which begins at Offset in the original file, with New.
type Edit struct {
	Offset int    `json:"offset"` // in bytes
	Old    []byte `json:"old,omitempty"`
	New    []byte `json:"new,omitempty"`
}

// Apply makes the edits, which must be in ascending order and not overlap. If the data does not match an edit, the
// error contains the position.
func Apply(data []byte, edits []Edit) ([]byte, error) {
	var out []byte
	at := 0
	for _, e := range edits {
		if e.Offset < at || e.Offset > len(data) || len(e.Old) > len(data)-e.Offset {
			return nil, fmt.Errorf("the edit at byte %d is out of order or beyond the %d bytes of data", e.Offset, len(data))
		}
		if !bytes.Equal(data[e.Offset:e.Offset+len(e.Old)], e.Old) {
			return nil, fmt.Errorf("the data at byte %d is not what the edit is meant to replace", e.Offset)
		}
		out = append(append(out, data[at:e.Offset]...), e.New...)
		at = e.Offset + len(e.Old)
	}
	return append(out, data[at:]...), nil
}

// Invert returns the edits that revert the given ones.
func Invert(edits []Edit) []Edit {
	inverse := make([]Edit, len(edits))
	shift := 0
	for i, e := range edits {
		inverse[i] = Edit{Offset: e.Offset + shift, Old: e.New, New: e.Old}
		shift += len(e.New) - len(e.Old)
	}
	return inverse
}

// Sum returns the SHA-256 of data, in hexadecimal.
func Sum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
