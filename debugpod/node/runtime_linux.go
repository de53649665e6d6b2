package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// peerOf returns the process that called listen on a socket, by SO_PEERCRED.
func peerOf(socket string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	dir, err := os.Open(filepath.Dir(socket)) // an address holds 107 bytes
	if err != nil {
		return 0, err
	}
	defer func() { _ = dir.Close() }()
	address := &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket))}
	if err := unix.Connect(fd, address); err != nil {
		return 0, fmt.Errorf("connect to it: %w", err)
	}
	credentials, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	return int(credentials.Pid), nil
}

// runTimeout bounds programs of the node that only show something.
const runTimeout = 10 * time.Second

// runWithRoot runs a program of the node with its root directory; a name without a folder is looked for in the usual
// ones.
func runWithRoot(ctx context.Context, root rootFS, program string, args ...string) (string, error) {
	if !path.IsAbs(program) {
		found := ""
		for dir := range strings.SplitSeq(usualPath, ":") {
			if executable(root, path.Join(dir, program)) == "" {
				found = path.Join(dir, program)
				break
			}
		}
		if found == "" {
			return "", fmt.Errorf("%s is in no folder of %s", program, usualPath)
		}
		program = found
	}
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Args = args
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: string(root)}
	cmd.Env = []string{"PATH=" + usualPath, "LC_ALL=C", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"}
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := runWithheld(cmd)
	if said := strings.TrimSpace(stderr.String()); err != nil && said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return stdout.String(), err
}

func isExitError(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Exited()
}

// ownership fills in what stat(2) tells beyond fs.FileInfo.
func ownership(info fs.FileInfo, meta *deadman.Meta) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("the system does not tell them")
	}
	meta.Mode, meta.UID, meta.GID = stat.Mode&0o7777, int(stat.Uid), int(stat.Gid)
	return nil
}

// xattrs returns a file's extended attributes: SELinux labels, capabilities, ACLs. File systems without them have none.
func xattrs(full string) (map[string][]byte, error) {
	names := make([]byte, 64<<10) // the kernel's own limit (XATTR_LIST_MAX)
	n, err := unix.Listxattr(full, names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the extended attributes: %w", err)
	}
	all := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		value := make([]byte, 64<<10) // XATTR_SIZE_MAX
		n, err := unix.Getxattr(full, name, value)
		if err != nil {
			return all, fmt.Errorf("read the extended attribute %s: %w", name, err)
		}
		all[name] = value[:n]
	}
	return all, nil
}

// immutable returns why a file cannot be written whatever its mode is; empty when nothing speaks against it.
func immutable(full string) string {
	var fs unix.Statfs_t
	if err := unix.Statfs(full, &fs); err == nil && fs.Flags&unix.ST_RDONLY != 0 {
		return "its file system is mounted read-only"
	}
	file, err := os.Open(full)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = file.Close() }()
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil && flags&unix.STATX_ATTR_IMMUTABLE != 0 { // the same bit as FS_IMMUTABLE_FL
		return "it has the attribute i (immutable): chattr -i takes it away"
	}
	return ""
}
