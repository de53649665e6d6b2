package debugpod

import (
	"io"
	"sync"
)

// heldInput is the standard input of a command. It stays open after its content has been read, until it is released.
type heldInput struct {
	data     io.Reader
	released chan struct{}
	once     sync.Once
}

func holdInput(data io.Reader) *heldInput {
	return &heldInput{data: data, released: make(chan struct{})}
}

func (h *heldInput) Read(p []byte) (int, error) {
	n, err := h.data.Read(p)
	if n > 0 || err != io.EOF {
		return n, ignoreEOF(err)
	}
	<-h.released
	return 0, io.EOF
}

// release ends the input. It may be called repeatedly.
func (h *heldInput) release() { h.once.Do(func() { close(h.released) }) }

func ignoreEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}
