package containerruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// peerOf returns the process that called listen on a socket, using SO_PEERCRED.
func peerOf(socket string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	dir, err := os.Open(filepath.Dir(socket)) // an address is at most 107 bytes long
	if err != nil {
		return 0, err
	}
	defer func() { _ = dir.Close() }()
	address := &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket))}
	if err := unix.Connect(fd, address); err != nil {
		return 0, fmt.Errorf("connect to the socket: %w", err)
	}
	credentials, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	return int(credentials.Pid), nil
}

// xattrs returns the extended attributes of a file, such as SELinux labels, capabilities, and ACLs. It returns none if
// the file system does not support them.
func xattrs(full string) (map[string][]byte, error) {
	names := make([]byte, 64<<10) // the kernel's limit (XATTR_LIST_MAX)
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

// immutable returns the reason why a file is not writable regardless of its mode, or "".
func immutable(full string) string {
	var fs unix.Statfs_t
	if err := unix.Statfs(full, &fs); err == nil && fs.Flags&unix.ST_RDONLY != 0 {
		return "the file system is mounted read-only"
	}
	file, err := os.Open(full)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = file.Close() }()
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil && flags&unix.STATX_ATTR_IMMUTABLE != 0 { // the same bit as FS_IMMUTABLE_FL
		return "the file is immutable: to clear the attribute i, run chattr -i"
	}
	return ""
}

// volatile returns the reason why a file is lost when the node restarts, or "".
func volatile(full string) string {
	var fs unix.Statfs_t
	if err := unix.Statfs(full, &fs); err == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC) {
		return "the file system is in memory"
	}
	for _, path := range []string{full, filepath.Dir(full)} {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st)
		if err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 { // since Linux 5.8
			return path + " is mounted over another file"
		}
	}
	return ""
}
