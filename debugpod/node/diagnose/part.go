package diagnose

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// part is a part of the answer that is read by itself, and may fail or hang by itself. A file of a dead network file
// system hangs for ever in the kernel, and whoever reads it.
type part struct {
	// field names it in Probe.Unread.
	field string
	// patience is how long it may take.
	patience time.Duration
	// read finds the part, or says why it cannot be read; both, where a piece of it is missing. Only put writes into
	// the answer: a part that was given up goes on, while the answer is on its way. put may be nil.
	read func(ctx context.Context) (put func(*api.Diagnosis), err error)
}

type result struct {
	put func(*api.Diagnosis)
	err error
}

// pending is a part that is being read.
type pending struct {
	part
	until  time.Time
	result chan result
}

// start reads the part in a goroutine of its own.
func (p part) start(ctx context.Context) *pending {
	running := &pending{part: p, until: time.Now().Add(p.patience), result: make(chan result, 1)}
	go func() {
		ctx, cancel := context.WithDeadline(ctx, running.until)
		defer cancel()
		var r result
		defer func() {
			if crash := recover(); crash != nil { // in this goroutine it would end the helper without an answer
				r = result{err: fmt.Errorf("the helper crashed: %v\n%s", crash, debug.Stack())}
			}
			running.result <- r
		}()
		r.put, r.err = p.read(ctx)
	}()
	return running
}

// wait puts what was found into the answer, or why nothing was.
func (p *pending) wait(ctx context.Context, into *api.Diagnosis) {
	timer := time.NewTimer(time.Until(p.until))
	defer timer.Stop()
	var r result
	select {
	case r = <-p.result:
	case <-timer.C:
		r = p.late(fmt.Errorf("it did not answer within %v: a file system may hang", p.patience))
	case <-ctx.Done():
		r = p.late(context.Cause(ctx))
	}
	if r.put != nil {
		r.put(into)
	}
	if r.err != nil {
		unread(&into.Probe, p.field, r.err)
	}
}

// late returns the result if it is there after all, of a part whose time is over.
func (p *pending) late(why error) result {
	select {
	case r := <-p.result:
		return r
	default:
		return result{err: why}
	}
}

// problems gathers what went wrong in a part; the first few tell enough.
type problems struct {
	all  []error
	more int
}

func (p *problems) add(format string, args ...any) {
	if len(p.all) == 4 {
		p.more++
		return
	}
	p.all = append(p.all, fmt.Errorf(format, args...))
}

func (p *problems) err() error {
	if p.more > 0 {
		return errors.Join(append(p.all, fmt.Errorf("and %d more", p.more))...)
	}
	return errors.Join(p.all...)
}
