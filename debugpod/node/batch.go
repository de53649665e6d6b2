package node

import (
	"fmt"
	"time"
)

// batch gathers proofs, so that the client hears of them soon, and not in a thousand lines.
type batch struct {
	send    func(Answer) error
	sent    time.Time
	waiting []WrittenKmsg
}

func (b *batch) add(w WrittenKmsg) error {
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
	err := b.send(Answer{Written: b.waiting})
	b.waiting, b.sent = nil, time.Now()
	return err
}

// end answers what is proven, and returns the failure that ended the writing.
func (b *batch) end(failure *Error) *Error {
	if err := b.flush(); err != nil {
		failure.Message += fmt.Sprintf(" (and %v)", err)
	}
	return failure
}
