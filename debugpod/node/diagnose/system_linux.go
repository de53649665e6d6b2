package diagnose

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/kmsg"
)

// backlog reads /dev/kmsg, starting at its first record.
type backlog int

func openBacklog(path string) (kernelBacklog, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return backlog(fd), nil
}

func (b backlog) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(b), p)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EPIPE):
			return 0, kmsg.ErrOverrun
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return 0, io.EOF
		}
		return max(n, 0), err
	}
}

func (b backlog) Close() error { return unix.Close(int(b)) }

func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// deviceNumbers returns the major and minor numbers of a device node, or zeros for other files.
func deviceNumbers(info fs.FileInfo) (major, minor int) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeDevice == 0 {
		return 0, 0
	}
	return int(unix.Major(stat.Rdev)), int(unix.Minor(stat.Rdev))
}

// statFilesystem returns the usage of the file system that contains the file.
func statFilesystem(full string) (api.Filesystem, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(full, &s); err != nil {
		return api.Filesystem{}, err
	}
	size := uint64(max(s.Frsize, 1))
	return api.Filesystem{
		Bytes: s.Blocks * size, FreeBytes: s.Bavail * size, ReadOnly: s.Flags&unix.ST_RDONLY != 0,
	}, nil
}

// listens reports whether a process listens on a socket. It returns nil if this is unknown. /proc/net/unix lists only
// the sockets in one network namespace, but plugins can have their own network namespaces. Therefore, listens connects,
// and disconnects without sending data.
func listens(full string) *bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	dir, err := os.Open(filepath.Dir(full)) // an address is at most 107 bytes long
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(full))})
	yes := true
	switch {
	case err == nil, errors.Is(err, unix.EAGAIN): // EAGAIN: the socket's queue is full
		return &yes
	case errors.Is(err, unix.ECONNREFUSED):
		yes = false
		return &yes
	}
	return nil
}
