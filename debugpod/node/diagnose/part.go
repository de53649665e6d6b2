package diagnose

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// part is a part of the diagnosis that can fail or hang independently. For example, reading a file on an unavailable
// network file system blocks in the kernel forever.
type part struct {
	// field is the name of the part in Probe.Unread.
	field string
	// patience is the timeout for the part.
	patience time.Duration
	// read reads the part. It can return both put and an error if only some data could be read. Only put may write to
	// the response, because read may continue after its timeout, while the response is being sent. put may be nil.
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

// start reads the part in a new goroutine.
func (p part) start(ctx context.Context) *pending {
	running := &pending{part: p, until: time.Now().Add(p.patience), result: make(chan result, 1)}
	go func() {
		ctx, cancel := context.WithDeadline(ctx, running.until)
		defer cancel()
		var r result
		defer func() {
			if crash := recover(); crash != nil { // an unrecovered panic would terminate the helper without a response
				r = result{err: fmt.Errorf("the helper crashed: %v\n%s", crash, debug.Stack())}
			}
			running.result <- r
		}()
		r.put, r.err = p.read(ctx)
	}()
	return running
}

// wait adds the result to the response, or the reason why there is none.
func (p *pending) wait(ctx context.Context, into *api.Diagnosis) {
	timer := time.NewTimer(time.Until(p.until))
	defer timer.Stop()
	var r result
	select {
	case r = <-p.result:
	case <-timer.C:
		r = p.late(fmt.Errorf("no result within %v: a file system may be hanging", p.patience))
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

// late returns the result if the part finished at the last moment, and otherwise the error.
func (p *pending) late(why error) result {
	select {
	case r := <-p.result:
		return r
	default:
		return result{err: why}
	}
}

// problems collects the errors of a part. It keeps only the first few.
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
