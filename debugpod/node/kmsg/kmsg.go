// Package kmsg writes records to the kernel log and reads each one back.
package kmsg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

const (
	// ProofTimeout is the time to wait for a written record to appear. The kernel shows the record before write(2)
	// returns, unless another CPU is still writing an older record.
	ProofTimeout = 2 * time.Second
	// readPatience is the time that one read waits for the device to become readable before it is retried.
	readPatience = 20 * time.Millisecond
	// flushAfter and flushRecords limit the delay until the client is notified of verified records.
	flushAfter   = 200 * time.Millisecond
	flushRecords = 256
)

// ErrOverrun means that the kernel log overwrote records before they were read (EPIPE from read(2)).
var ErrOverrun = errors.New("the kernel log overflowed")

// Log is a kernel log that can be written and read.
type Log interface {
	// Follow returns a reader that starts after the last record in the log.
	Follow() (Reader, error)
	// Write writes one record with a newly opened file. With the default kernel.printk_devkmsg=ratelimit, the kernel
	// silently drops all but 10 records in 5 seconds per open file.
	Write(data string) error
	// Stored returns the record that a reader receives for data.
	Stored(data string) (priority int, text string)
}

// Reader returns one record per Read. Its errors include ErrOverrun, if records were lost, and os.ErrDeadlineExceeded.
type Reader interface {
	Read([]byte) (int, error)
	SetReadDeadline(time.Time) error
	Close() error
}

// Write writes the records one at a time. It reads each record back before it writes the next.
func Write(ctx context.Context, records []api.KmsgRecord, host hostfs.Host, send func(api.Answer) error) *api.Error {
	if failure := MayWrite(host); failure != nil {
		return failure
	}
	log, err := Open(host.Kmsg)
	if err != nil {
		return api.Errorf(api.CodeUnsupported, "%v", err)
	}
	return WriteTo(ctx, records, log, send)
}

func WriteTo(ctx context.Context, records []api.KmsgRecord, log Log, send func(api.Answer) error) *api.Error {
	reader, err := log.Follow()
	if err != nil {
		return api.Errorf(api.CodeKmsg, "read the kernel log: %v", err)
	}
	defer func() { _ = reader.Close() }()
	proof := &prover{reader: reader, buffer: make([]byte, 16<<10)} // the kernel's limit is 8 KiB, including escapes
	batch := &batch{send: send, sent: time.Now()}
	var last time.Time
	for i, record := range records {
		next := last.Add(record.Delay)
		if time.Until(next) > flushAfter {
			if err := batch.flush(); err != nil {
				return api.Errorf(api.CodeInterrupted, "%v", err)
			}
		}
		if err := sleep(ctx, next); err != nil {
			return batch.end(
				api.Errorf(api.CodeInterrupted, "stopped after %d of %s: %v", i, count.Of(len(records), "record"), err),
			)
		}
		last = time.Now()
		if err := log.Write(record.Data); err != nil {
			return batch.end(
				api.Errorf(api.CodeKmsg, "write record %d of %d to the kernel log: %v", i+1, len(records), err),
			)
		}
		priority, text := log.Stored(record.Data)
		written, failure := proof.find(priority, text, last,
			fmt.Sprintf("record %d of %d was written", i+1, len(records)))
		if failure != nil {
			return batch.end(failure)
		}
		written.Record = i
		if err := batch.add(written); err != nil {
			return api.Errorf(api.CodeInterrupted, "%v", err)
		}
	}
	if err := batch.flush(); err != nil {
		return api.Errorf(api.CodeInterrupted, "%v", err)
	}
	return nil
}

// prover reads the kernel log to find written records.
type prover struct {
	reader Reader
	buffer []byte
}

// find reads until it finds the record, and skips other records. Identical records are distinguished by their order,
// because the next one is written only after the previous one has been found. story is the beginning of all error
// messages.
func (p *prover) find(priority int, text string, written time.Time, story string) (api.WrittenKmsg, *api.Error) {
	deadline := time.Now().Add(ProofTimeout)
	overrun := false
	for {
		now := time.Now()
		if now.After(deadline) && overrun {
			return api.WrittenKmsg{},
				api.Errorf(api.CodeOverrun, "%s, but the kernel log overflowed before the record was read back: it may be lost",
					story)
		}
		if now.After(deadline) {
			return api.WrittenKmsg{},
				api.Errorf(api.CodeNotProven, "%s, but did not appear in the kernel log within %v", story, ProofTimeout)
		}
		if err := p.reader.SetReadDeadline(now.Add(readPatience)); err != nil {
			return api.WrittenKmsg{}, api.Errorf(api.CodeKmsg, "%s, but cannot be read back: %v", story, err)
		}
		n, err := p.reader.Read(p.buffer)
		switch {
		case errors.Is(err, ErrOverrun):
			overrun = true
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return api.WrittenKmsg{}, api.Errorf(api.CodeKmsg, "%s, but cannot be read back: %v", story, err)
		}
		entry, err := Parse(string(p.buffer[:n]))
		if err != nil || entry.Priority != priority || entry.Text != text {
			continue
		}
		entry.Time = written
		return entry, nil
	}
}

// MayWrite returns an error, with instructions, if the kernel would reject all writes.
func MayWrite(host hostfs.Host) *api.Error {
	proc := os.DirFS(host.Proc)
	if hostfs.Trimmed(proc, "sys/kernel/printk_devkmsg") != "off" {
		return nil
	}
	if line := hostfs.Trimmed(proc, "cmdline"); strings.Contains(line, "printk.devkmsg=") {
		return api.Errorf(api.CodeDevkmsgOff,
			"the node's kernel was booted with printk.devkmsg=off, which disables writing to the kernel log: remove this parameter from the kernel command line, and reboot the node")
	}
	return api.Errorf(api.CodeDevkmsgOff,
		"kernel.printk_devkmsg is off on the node, which disables writing to the kernel log: run `sysctl -w kernel.printk_devkmsg=on` on the node")
}

// sleep waits until the given time, or returns the reason why ctx was canceled.
func sleep(ctx context.Context, then time.Time) error {
	timer := time.NewTimer(time.Until(then))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
