package kmsg

import (
	"fmt"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// batch collects verified records, so that the client receives them early, but several of them per line.
type batch struct {
	send    func(api.Answer) error
	sent    time.Time
	waiting []api.WrittenKmsg
}

func (b *batch) add(w api.WrittenKmsg) error {
	b.waiting = append(b.waiting, w)
	if len(b.waiting) < flushRecords && time.Since(b.sent) < flushAfter {
		return nil
	}
	return b.flush()
}

func (b *batch) flush() error {
	if len(b.waiting) == 0 {
		return nil
	}
	err := b.send(api.Answer{Written: b.waiting})
	b.waiting, b.sent = nil, time.Now()
	return err
}

// end sends the remaining verified records, and returns the failure that stopped the writing.
func (b *batch) end(failure *api.Error) *api.Error {
	if err := b.flush(); err != nil {
		failure.Message += fmt.Sprintf(" (and %v)", err)
	}
	return failure
}
