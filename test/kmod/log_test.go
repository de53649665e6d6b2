//go:build kmod && linux

package kmod

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/kmod"
)

// Where init puts things in the virtual machine.
const (
	moduleFile = "/mod/gpu_fault_xid.ko"
	signedFile = "/mod/signed.ko" // with a key that no kernel knows
	device     = "/dev/" + kmod.Name
	helper     = "/bin/gpu-fault-node"
)

// load loads the module for a test, with these parameters.
func load(t *testing.T, parameters string) {
	t.Helper()
	raw, err := os.ReadFile(moduleFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.InitModule(raw, parameters); err != nil {
		t.Fatalf("load the module: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.DeleteModule(kmod.Name, unix.O_NONBLOCK); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Errorf("unload the module: %v", err)
		}
	})
}

func isLoaded() bool {
	_, err := os.Stat("/sys/module/" + kmod.Name)
	return err == nil
}

// open opens the module's device as devtmpfs made it.
func open(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// write writes one record, however often the module says that it comes too soon.
func write(f *os.File, record string) error {
	for {
		_, err := f.Write([]byte(record))
		if !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// toKmsg writes as user space does.
func toKmsg(t *testing.T, data string) {
	t.Helper()
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(data)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// raw is a record of /dev/kmsg: the whole first line, and what it says.
type raw struct {
	line           string
	priority       int
	sequence, usec uint64
	text           string
}

// reader reads /dev/kmsg from where it was opened on.
type reader struct{ f *os.File }

func follow(t *testing.T) reader {
	t.Helper()
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		t.Fatal(err)
	}
	return reader{f}
}

// next returns the next record, whoever's it is; ok is false when none comes.
func (r reader) next(t *testing.T, patience time.Duration) (record raw, ok bool) {
	t.Helper()
	buffer := make([]byte, 16<<10)
	_ = r.f.SetReadDeadline(time.Now().Add(patience))
	n, err := r.f.Read(buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return raw{}, false
	}
	if err != nil {
		t.Fatalf("read /dev/kmsg: %v", err)
	}
	record.line, _, _ = strings.Cut(string(buffer[:n]), "\n")
	head, text, _ := strings.Cut(record.line, ";")
	if _, err := fmt.Sscanf(head, "%d,%d,%d,", &record.priority, &record.sequence, &record.usec); err != nil {
		t.Fatalf("%q is no record of /dev/kmsg: %v", record.line, err)
	}
	record.text = text
	return record, true
}

// until returns the first record that is wanted, and passes over others; it fails when none comes.
func (r reader) until(t *testing.T, what string, wanted func(raw) bool) raw {
	t.Helper()
	for {
		record, ok := r.next(t, 5*time.Second)
		if !ok {
			t.Fatalf("%s did not appear in /dev/kmsg", what)
		}
		if wanted(record) {
			return record
		}
	}
}

// rest returns all records that are there, with what is written last for a mark of the end.
func (r reader) rest(t *testing.T) []raw {
	t.Helper()
	const mark = "test: here ends what was written"
	toKmsg(t, "<6>"+mark+"\n")
	var all []raw
	r.until(t, mark, func(record raw) bool {
		if record.text == mark {
			return true
		}
		all = append(all, record)
		return false
	})
	return all
}
