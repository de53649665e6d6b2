// Package kmsg writes records to the kernel log, and reads each back.
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
	// ProofTimeout is how long a written record may take to appear. The kernel shows it before write(2) returns, but
	// for a short moment in which another processor still writes an older one.
	ProofTimeout = 2 * time.Second
	// readPatience is how long one read waits for the device to become readable, before it is simply tried again.
	readPatience = 20 * time.Millisecond
	// flushAfter and flushRecords bound how long the client waits to hear of records that are proven.
	flushAfter   = 200 * time.Millisecond
	flushRecords = 256
)

// ErrOverrun is a reader's error when the kernel log overwrote records before they were read: EPIPE of read(2).
var ErrOverrun = errors.New("the kernel log overflowed")

// Log is a kernel log that can be written and read back.
type Log interface {
	// follow returns a reader that stands behind the log's last record.
	Follow() (Reader, error)
	// write makes one record, with an open file of its own: with kernel.printk_devkmsg=ratelimit, the default, the
	// kernel drops all but 10 records in 5 seconds of one open file, and reports success.
	Write(data string) error
	// expected is the record that a reader sees of data.
	Stored(data string) (priority int, text string)
}

// Reader reads one record with each Read. It returns errOverrun when records were lost, and os.ErrDeadlineExceeded.
type Reader interface {
	Read([]byte) (int, error)
	SetReadDeadline(time.Time) error
	Close() error
}

// Write writes the records, one after the other, and reads each back before it writes the next.
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
	proof := &prover{reader: reader, buffer: make([]byte, 16<<10)} // the kernel's own limit is 8 KiB, escapes included
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

// prover reads the kernel log on behalf of a writer.
type prover struct {
	reader Reader
	buffer []byte
}

// find reads until the record is there. Records of others in between are passed over. As the next record is written
// only after this one was found, equal texts are told apart by their order. Failures begin with story.
func (p *prover) find(priority int, text string, written time.Time, story string) (api.WrittenKmsg, *api.Error) {
	deadline := time.Now().Add(ProofTimeout)
	overrun := false
	for {
		now := time.Now()
		if now.After(deadline) && overrun {
			return api.WrittenKmsg{},
				api.Errorf(api.CodeOverrun, "%s, but the kernel log overflowed before it was read back: it may be lost",
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

// MayWrite refuses where the kernel would refuse every writer, and says how to change that.
func MayWrite(host hostfs.Host) *api.Error {
	proc := os.DirFS(host.Proc)
	if hostfs.Trimmed(proc, "sys/kernel/printk_devkmsg") != "off" {
		return nil
	}
	if line := hostfs.Trimmed(proc, "cmdline"); strings.Contains(line, "printk.devkmsg=") {
		return api.Errorf(api.CodeDevkmsgOff,
			"the node's kernel was booted with printk.devkmsg=off, so nobody may write to its log: remove that from its command line and reboot it")
	}
	return api.Errorf(api.CodeDevkmsgOff,
		"kernel.printk_devkmsg is off on the node, so nobody may write to its kernel log: allow it with `sysctl -w kernel.printk_devkmsg=on` on the node")
}

// sleep waits until then, or returns why ctx ended.
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
