package cuda

import (
	"bytes"
	"errors"
)

// How much is read of what a container prints, in bytes: a report of the shim has 17,288.
const (
	mostOutput = 32 << 10
	mostErrors = 4 << 10
)

var errTooMuch = errors.New("what it printed is too much for a report of the shim")

// bounded keeps what is written to it, up to a limit. Beyond that it fails, and calls full.
type bounded struct {
	text bytes.Buffer // not embedded: io.Copy would use its ReadFrom, and pass by the limit
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
