package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runCommand runs a program of the node, which may load no module and make no device. At its limit it is killed with
// all processes of its group; runCommand returns also where a broken GPU or a dead file system keeps it in the kernel,
// and it cannot be killed.
func runCommand(ctx context.Context, c command) (string, error) {
	type outcome struct {
		out string
		err error
	}
	limited, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	outcomes := make(chan outcome, 1)
	go func() {
		out, err := c.execute(limited)
		outcomes <- outcome{out, err}
	}()
	timer := time.NewTimer(c.limit + 2*time.Second)
	defer timer.Stop()
	select {
	case o := <-outcomes:
		switch {
		case o.err != nil && ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
			return o.out, fmt.Errorf("%s was stopped: %w", c.program, context.Cause(ctx))
		case o.err != nil && limited.Err() != nil:
			return o.out, fmt.Errorf("%s did not answer within %v", c.program, c.limit)
		}
		return o.out, o.err
	case <-timer.C:
		return "", fmt.Errorf("%s did not answer within %v and cannot be killed", c.program, c.limit)
	}
}

func (c command) execute(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, c.program, c.args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.root != "/" { // which needs no privilege
		cmd.SysProcAttr.Chroot = string(c.root)
	}
	cmd.Env = []string{"PATH=" + usualPath, "LC_ALL=C", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"}
	if c.libraries != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+c.libraries)
	}
	stdout, stderr := &kept{most: c.most, last: c.last}, &kept{most: maxLineText, last: true}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// The whole group: a wrapper's child goes on without it, and holds our pipe.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := runWithheld(cmd)
	if errors.Is(err, exec.ErrWaitDelay) { // it has ended, and a child of it has our pipe and so is still in its group
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		err = nil
	}
	if err != nil {
		err = &exitError{
			program: c.program, err: err, said: strings.ToValidUTF8(strings.TrimSpace(stderr.String()), "\uFFFD"),
		}
	}
	return stdout.String(), err
}

// backlog is /dev/kmsg, read from its first record on.
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
			return 0, errOverrun
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

// deviceNumbers returns those of a device node; both zero for another file.
func deviceNumbers(info fs.FileInfo) (major, minor int) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeDevice == 0 {
		return 0, 0
	}
	return int(unix.Major(stat.Rdev)), int(unix.Minor(stat.Rdev))
}

// statFilesystem returns how full the file system is on which the file lies.
func statFilesystem(full string) (Filesystem, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(full, &s); err != nil {
		return Filesystem{}, err
	}
	size := uint64(max(s.Frsize, 1))
	return Filesystem{Bytes: s.Blocks * size, FreeBytes: s.Bavail * size, ReadOnly: s.Flags&unix.ST_RDONLY != 0}, nil
}

// listens reports whether somebody listens at a socket; nil when that cannot be told. /proc/net/unix would only know
// the sockets of one network namespace, and plugins have their own; so it connects, and hangs up without a word.
func listens(full string) *bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	dir, err := os.Open(filepath.Dir(full)) // an address holds 107 bytes
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(full))})
	yes := true
	switch {
	case err == nil, errors.Is(err, unix.EAGAIN): // EAGAIN: its queue is full
		return &yes
	case errors.Is(err, unix.ECONNREFUSED):
		yes = false
		return &yes
	}
	return nil
}
