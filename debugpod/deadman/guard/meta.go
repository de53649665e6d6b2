//go:build linux

package guard

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// meta returns the attributes of the file and the number of its hard links.
func (f file) meta() (deadman.Meta, uint64, error) {
	opened, err := f.open(unix.O_RDONLY)
	if err != nil {
		return deadman.Meta{}, 0, err
	}
	defer func() { _ = opened.Close() }()
	return metaOf(opened)
}

func metaOf(f *os.File) (deadman.Meta, uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return deadman.Meta{}, 0, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	m := deadman.Meta{
		Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), ModTime: time.Unix(st.Mtim.Unix()).UTC(),
	}
	var err error
	if m.Xattrs, err = xattrs(f); err != nil {
		return deadman.Meta{}, 0, fmt.Errorf("set or read the extended attributes of %s: %w", f.Name(), err)
	}
	return m, uint64(st.Nlink), nil
}

// hasMeta reports whether the file has exactly these attributes.
func (f file) hasMeta(m *deadman.Meta) bool {
	now, _, err := f.meta()
	return err == nil && m != nil && now.Mode == m.Mode && now.UID == m.UID && now.GID == m.GID &&
		now.ModTime.Equal(m.ModTime) &&
		maps.EqualFunc(now.Xattrs, m.Xattrs, bytes.Equal)
}

func xattrs(f *os.File) (map[string][]byte, error) {
	names := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Flistxattr(int(f.Fd()), names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	value := make([]byte, 64<<10) // XATTR_SIZE_MAX
	for _, name := range strings.Split(string(names[:n]), "\x00") {
		if name == "" {
			continue
		}
		size, err := unix.Fgetxattr(int(f.Fd()), name, value)
		switch {
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP): // removed in the meantime, or not readable
			continue
		case err != nil:
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = bytes.Clone(value[:size])
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// setMeta sets the attributes of a file. It sets the owner first, because changing the owner clears setuid, and the
// times last. A zero modification time is not set.
func setMeta(f *os.File, m deadman.Meta) error {
	fd := int(f.Fd())
	if err := unix.Fchown(fd, m.UID, m.GID); err != nil {
		return fmt.Errorf("set the owner of %s: %w", f.Name(), err)
	}
	if err := unix.Fchmod(fd, m.Mode&0o7777); err != nil {
		return fmt.Errorf("set the mode of %s: %w", f.Name(), err)
	}
	has, err := xattrs(f)
	if err != nil {
		return fmt.Errorf("set or read the extended attributes of %s: %w", f.Name(), err)
	}
	for name, value := range m.Xattrs {
		if now, ok := has[name]; ok && bytes.Equal(now, value) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, value, 0); err != nil {
			return fmt.Errorf("set the extended attribute %[2]s of %[1]s: %[3]w", f.Name(), name, err)
		}
	}
	if m.ModTime.IsZero() {
		return nil
	}
	omit := unix.Timespec{Nsec: unix.UTIME_OMIT}
	mtime, err := unix.TimeToTimespec(m.ModTime)
	if err != nil {
		return err
	}
	// Use the path of the descriptor, because there is no futimens(2) system call.
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, byDescriptor(f), []unix.Timespec{omit, mtime}, 0); err != nil {
		return fmt.Errorf("set the times of %s: %w", f.Name(), err)
	}
	return nil
}

// setMeta sets the attributes of the file, and syncs it.
func (f file) setMeta(m deadman.Meta) error {
	opened, err := f.open(unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = opened.Close() }()
	if err := setMeta(opened, m); err != nil {
		return err
	}
	return opened.Sync()
}
