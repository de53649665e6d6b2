package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

const (
	// proofTimeout is how long a written record may take to appear. The kernel shows it before write(2) returns, but
	// for a short moment in which another processor still writes an older one.
	proofTimeout = 2 * time.Second
	// readPatience is how long one read waits for the device to become readable, before it is simply tried again.
	readPatience = 20 * time.Millisecond
	// flushAfter and flushRecords bound how long the client waits to hear of records that are proven.
	flushAfter   = 200 * time.Millisecond
	flushRecords = 256
)

// errOverrun is a reader's error when the kernel log overwrote records before they were read: EPIPE of read(2).
var errOverrun = errors.New("the kernel log overflowed")

// kernelLog is a kernel log that can be written and read back.
type kernelLog interface {
	// follow returns a reader that stands behind the log's last record.
	follow() (kmsgReader, error)
	// write makes one record, with an open file of its own: with kernel.printk_devkmsg=ratelimit, the default, the
	// kernel drops all but 10 records in 5 seconds of one open file, and reports success.
	write(data string) error
	// expected is the record that a reader sees of data.
	expected(data string) (priority int, text string)
}

// kmsgReader reads one record with each Read. It returns errOverrun when records were lost, and os.ErrDeadlineExceeded.
type kmsgReader interface {
	Read([]byte) (int, error)
	SetReadDeadline(time.Time) error
	Close() error
}

// writeKmsg writes the records, one after the other, and reads each back before it writes the next.
func writeKmsg(ctx context.Context, records []KmsgRecord, host Host, send func(Answer) error) *Error {
	if failure := mayWriteKmsg(host); failure != nil {
		return failure
	}
	log, err := openKernelLog(host.Kmsg)
	if err != nil {
		return errorf(CodeUnsupported, "%v", err)
	}
	return writeRecords(ctx, records, log, send)
}

func writeRecords(ctx context.Context, records []KmsgRecord, log kernelLog, send func(Answer) error) *Error {
	reader, err := log.follow()
	if err != nil {
		return errorf(CodeKmsg, "read the kernel log: %v", err)
	}
	defer func() { _ = reader.Close() }()
	proof := &prover{reader: reader, buffer: make([]byte, 16<<10)} // the kernel's own limit is 8 KiB, escapes included
	batch := &batch{send: send, sent: time.Now()}
	var last time.Time
	for i, record := range records {
		next := last.Add(record.Delay)
		if time.Until(next) > flushAfter {
			if err := batch.flush(); err != nil {
				return errorf(CodeInterrupted, "%v", err)
			}
		}
		if err := sleep(ctx, next); err != nil {
			return batch.end(
				errorf(CodeInterrupted, "stopped after %d of %s: %v", i, count.Of(len(records), "record"), err),
			)
		}
		last = time.Now()
		if err := log.write(record.Data); err != nil {
			return batch.end(errorf(CodeKmsg, "write record %d of %d to the kernel log: %v", i+1, len(records), err))
		}
		priority, text := log.expected(record.Data)
		written, failure := proof.find(priority, text, last,
			fmt.Sprintf("record %d of %d was written", i+1, len(records)))
		if failure != nil {
			return batch.end(failure)
		}
		written.Record = i
		if err := batch.add(written); err != nil {
			return errorf(CodeInterrupted, "%v", err)
		}
	}
	if err := batch.flush(); err != nil {
		return errorf(CodeInterrupted, "%v", err)
	}
	return nil
}

// prover reads the kernel log on behalf of a writer.
type prover struct {
	reader kmsgReader
	buffer []byte
}

// find reads until the record is there. Records of others in between are passed over. As the next record is written
// only after this one was found, equal texts are told apart by their order. Failures begin with story.
func (p *prover) find(priority int, text string, written time.Time, story string) (WrittenKmsg, *Error) {
	deadline := time.Now().Add(proofTimeout)
	overrun := false
	for {
		now := time.Now()
		if now.After(deadline) && overrun {
			return WrittenKmsg{},
				errorf(CodeOverrun, "%s, but the kernel log overflowed before it was read back: it may be lost", story)
		}
		if now.After(deadline) {
			return WrittenKmsg{},
				errorf(CodeNotProven, "%s, but did not appear in the kernel log within %v", story, proofTimeout)
		}
		if err := p.reader.SetReadDeadline(now.Add(readPatience)); err != nil {
			return WrittenKmsg{}, errorf(CodeKmsg, "%s, but cannot be read back: %v", story, err)
		}
		n, err := p.reader.Read(p.buffer)
		switch {
		case errors.Is(err, errOverrun):
			overrun = true
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return WrittenKmsg{}, errorf(CodeKmsg, "%s, but cannot be read back: %v", story, err)
		}
		entry, err := parseKmsg(string(p.buffer[:n]))
		if err != nil || entry.Priority != priority || entry.Text != text {
			continue
		}
		entry.Time = written
		return entry, nil
	}
}

// mayWriteKmsg refuses where the kernel would refuse every writer, and says how to change that.
func mayWriteKmsg(host Host) *Error {
	proc := os.DirFS(host.Proc)
	if trimmed(proc, "sys/kernel/printk_devkmsg") != "off" {
		return nil
	}
	if line := trimmed(proc, "cmdline"); strings.Contains(line, "printk.devkmsg=") {
		return errorf(CodeDevkmsgOff,
			"the node's kernel was booted with printk.devkmsg=off, so nobody may write to its log: remove that from its command line and reboot it")
	}
	return errorf(CodeDevkmsgOff,
		"kernel.printk_devkmsg is off on the node, so nobody may write to its kernel log: allow it with `sysctl -w kernel.printk_devkmsg=on` on the node")
}

// trimmed returns a small file's text without the space around it, or "".
func trimmed(fsys fs.FS, name string) string {
	raw, err := fs.ReadFile(fsys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}
