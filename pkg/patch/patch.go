// Package patch changes bytes at known places of a file, and takes the change back exactly. A patch holds only what it
// touches, so that a record of it does not spread the rest of a file, which may have credentials in it.
package patch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Edit replaces Old, which begins at Offset of the file as it was before, with New.
type Edit struct {
	Offset int    `json:"offset"` // bytes
	Old    []byte `json:"old,omitempty"`
	New    []byte `json:"new,omitempty"`
}

// Apply makes the edits. They are in ascending order and do not overlap. The error says where the data is not what an
// edit expects.
func Apply(data []byte, edits []Edit) ([]byte, error) {
	var out []byte
	at := 0
	for _, e := range edits {
		if e.Offset < at || e.Offset > len(data) || len(e.Old) > len(data)-e.Offset {
			return nil, fmt.Errorf("the edit at byte %d is out of place in %d bytes", e.Offset, len(data))
		}
		if !bytes.Equal(data[e.Offset:e.Offset+len(e.Old)], e.Old) {
			return nil, fmt.Errorf("at byte %d there is not what the edit replaces", e.Offset)
		}
		out = append(append(out, data[at:e.Offset]...), e.New...)
		at = e.Offset + len(e.Old)
	}
	return append(out, data[at:]...), nil
}

// Invert returns the edits that take edits back.
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
