package kmsg

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// kmsgDevice is /dev/kmsg.
type kmsgDevice struct{ path string }

func Open(path string) (Log, error) { return kmsgDevice{path}, nil }

func (d kmsgDevice) Follow() (Reader, error) {
	// With O_NONBLOCK, the Go runtime polls the device and supports deadlines.
	f, err := os.OpenFile(d.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return kmsgFile{f}, nil
}

func (d kmsgDevice) Stored(data string) (priority int, text string) { return api.Stored(data) }

func (d kmsgDevice) Write(data string) error {
	// Do not use O_CREATE: if the device does not exist, this would create a regular file instead. Do not use os.File:
	// registering each file with the poller is as expensive as the write.
	fd, err := open(d.path)
	if err != nil {
		return fmt.Errorf("open %s: %w", d.path, err)
	}
	n, err := syscall.Write(fd, []byte(data))
	if closed := syscall.Close(fd); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", d.path, err)
	}
	if n != len(data) {
		return fmt.Errorf("write %s: only %d of %d bytes were written", d.path, n, len(data))
	}
	return nil
}

func open(path string) (int, error) {
	for {
		fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
		if !errors.Is(err, syscall.EINTR) {
			return fd, err
		}
	}
}

// kmsgFile returns the device's own errors without os.File's wrapping.
type kmsgFile struct{ *os.File }

func (f kmsgFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	if errors.Is(err, syscall.EPIPE) {
		return n, ErrOverrun
	}
	return n, err
}
