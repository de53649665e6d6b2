package cuda

import (
	"bytes"
	"errors"
)

// Limits on the output read from a container, in bytes. A report from the shim has 17,288 bytes.
const (
	mostOutput = 32 << 10
	mostErrors = 4 << 10
)

var errTooMuch = errors.New("the output is too long for a report from the shim")

// bounded is a buffer with a size limit. A write that exceeds the limit fails and calls full.
type bounded struct {
	text bytes.Buffer // not embedded: io.Copy would use its ReadFrom and bypass the limit
	most int
	over bool
	full func()
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.over || b.text.Len()+len(p) > b.most {
		b.over = true
		b.full()
		return 0, errTooMuch
	}
	return b.text.Write(p)
}
