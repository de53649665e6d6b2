//go:build linux

package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is the maximum number of symbolic links in a path, which is the same as in Linux.
const maxLinks = 40

// errRefused means that a user other than root could redirect the path of a file or change the file.
var errRefused = errors.New("not safe to change or restore")

// dir is an open directory. When it was opened, only root (the user of this process) could change it or any directory
// above it. All operations use its descriptor, so redirecting the path later has no effect.
type dir struct {
	*os.File // opened with O_PATH; its name is the path with links resolved
	// oldKernel avoids openat2(2).
	oldKernel bool
}

// file is a name in an open directory. The file may not exist. If dir is nil, the directory does not exist either.
type file struct {
	dir  *dir
	name string
}

func (f file) path() string {
	if f.dir == nil {
		return f.name
	}
	return filepath.Join(f.dir.Name(), f.name)
}

func (f file) close() {
	if f.dir != nil {
		_ = f.dir.Close()
	}
}

// links reports whether walk follows links. A link and its directory must belong to root.
type links bool

const (
	followLinks links = true
	refuseLinks links = false
)

// directory opens the directory at a path.
func (h Host) directory(path string, links links) (*dir, error) {
	d, _, err := h.walk(path, links, true)
	return d, err
}

// file opens the directory of the file at a path.
func (h Host) file(path string, links links) (file, error) {
	d, name, err := h.walk(path, links, false)
	return file{d, name}, err
}

// resolve returns the path of a file with all links resolved, and the target if the last element is a link. The file
// may not exist, but no link may be dangling.
func (h Host) resolve(path string) (real, link string, err error) {
	f, err := h.file(path, followLinks)
	if err != nil {
		return "", "", err
	}
	defer f.close()
	beside, err := h.directory(filepath.Dir(path), followLinks)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = beside.Close() }()
	if link, err = readlinkat(beside, filepath.Base(path)); err != nil {
		return f.path(), "", nil // not a link
	}
	led, err := f.dir.openat(f.name, unix.O_PATH, 0)
	if err != nil {
		return "", "", err
	}
	return f.path(), link, led.Close()
}

// walk opens the directories of a path one by one, starting at h.Root, and verifies each through its descriptor. It
// returns the last directory and the last element of the path. If whole is set, the last element is also a directory,
// and the name is empty.
func (h Host) walk(path string, links links, whole bool) (last *dir, name string, err error) {
	rest, err := h.below(path)
	if err != nil {
		return nil, "", err
	}
	root, err := h.openRoot()
	if err != nil {
		return nil, "", err
	}
	way := []*dir{root}
	defer func() {
		for _, d := range way {
			if d != last {
				_ = d.Close()
			}
		}
	}()
	for followed := 0; len(rest) > 0; {
		at := way[len(way)-1]
		name, rest = rest[0], rest[1:]
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			if len(way) > 1 {
				_ = at.Close()
				way = way[:len(way)-1]
			}
			continue
		}
		isLast := len(rest) == 0 && !whole
		next, err := at.openat(name, unix.O_PATH, 0)
		if isLast && errors.Is(err, fs.ErrNotExist) {
			return at, name, nil
		}
		if err != nil {
			return nil, "", err
		}
		target, err := step(next, links, isLast)
		if err != nil || target != "" || isLast {
			_ = next.Close()
		}
		switch {
		case err != nil:
			return nil, "", err
		case target == "" && isLast:
			return at, name, nil
		case target == "":
			way = append(way, &dir{next, h.oldKernel})
			continue
		}
		if followed++; followed > maxLinks {
			return nil, "", fmt.Errorf("%s: too many symbolic links", path)
		}
		behind := strings.Split(target, "/")
		if filepath.IsAbs(target) {
			if behind, err = h.below(target); err != nil {
				return nil, "", err
			}
			for _, d := range way[1:] {
				_ = d.Close()
			}
			way = way[:1]
		}
		rest = append(behind, rest...)
	}
	if !whole {
		return nil, "", fmt.Errorf("%s is a directory: %w", path, errRefused)
	}
	return way[len(way)-1], "", nil
}

// step verifies one element of a path through its descriptor, and returns the target if it is a link. It does not
// verify the last element of a file's path; file.open does that.
func step(next *os.File, links links, isLast bool) (target string, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(next.Fd()), &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: next.Name(), Err: err}
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK && links == refuseLinks:
		return "", isLink(next.Name())
	case kind == unix.S_IFLNK && int(st.Uid) != os.Geteuid():
		return "", isAnothers(next.Name())
	case kind == unix.S_IFLNK:
		return readlinkat(&dir{File: next}, "")
	case isLast:
		return "", nil
	case kind != unix.S_IFDIR:
		return "", fmt.Errorf("%s is not a directory: %w", next.Name(), errRefused)
	}
	return "", onlyRoots(next, &st)
}

func (h Host) openRoot() (*dir, error) {
	fd, err := unix.Open(h.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: h.Root, Err: err}
	}
	root := &dir{os.NewFile(uintptr(fd), h.Root), h.oldKernel}
	if _, err := step(root.File, refuseLinks, false); err != nil {
		_ = root.Close()
		return nil, err
	}
	return root, nil
}

// below returns the elements of an absolute path relative to h.Root.
func (h Host) below(path string) ([]string, error) {
	relative, err := filepath.Rel(h.Root, path)
	if err != nil || relative == ".." || strings.HasPrefix(relative, "../") {
		return nil, fmt.Errorf("%s is not below %s: %w", path, h.Root, errRefused)
	}
	return strings.Split(relative, "/"), nil
}

// onlyRoots returns an error unless only root (the user of this process) can write to an open file or directory. The
// root group may have write access, unless the file has an access control list, because the group bits then apply to
// every user and group in the list. A sticky directory is also unsafe, because other users can create files in it.
func onlyRoots(f *os.File, st *unix.Stat_t) error {
	switch {
	case int(st.Uid) != os.Geteuid():
		return isAnothers(f.Name())
	case st.Mode&0o002 != 0:
		return fmt.Errorf("%s is writable by all users: %w", f.Name(), errRefused)
	case st.Mode&0o020 != 0 && st.Gid != 0:
		return fmt.Errorf("%s is writable by group %d: %w", f.Name(), st.Gid, errRefused)
	case st.Mode&0o020 != 0 && hasACL(f):
		return fmt.Errorf("%s is writable by others according to its access control list: %w", f.Name(), errRefused)
	}
	return nil
}

// hasACL reports whether a file has a POSIX access control list. It uses a path because fgetxattr(2) does not accept a
// descriptor with O_PATH.
func hasACL(f *os.File) bool {
	n, err := unix.Getxattr(byDescriptor(f), "system.posix_acl_access", nil)
	return err == nil && n > 0
}

// byDescriptor returns a path that always refers to an open file, even if the file is moved.
func byDescriptor(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

func isLink(path string) error { return fmt.Errorf("%s is a symbolic link: %w", path, errRefused) }

func isAnothers(path string) error {
	return fmt.Errorf("%s does not belong to root: %w", path, errRefused)
}

// openat opens a name in the directory. It never follows a link; with O_PATH, it opens the link itself.
func (d *dir) openat(name string, flags int, mode uint32) (*os.File, error) {
	if d == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: unix.ENOENT}
	}
	path := filepath.Join(d.Name(), name)
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := -1, error(unix.ENOSYS)
	if !d.oldKernel {
		how := unix.OpenHow{
			Flags: uint64(flags), Mode: uint64(mode),
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		}
		fd, err = again(func() (int, error) { return unix.Openat2(int(d.Fd()), name, &how) })
	}
	// This is the fallback for Linux before 5.6, and for seccomp filters that do not know openat2. For a name with one
	// element, O_NOFOLLOW is sufficient. Other names are rejected.
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		if strings.Contains(name, "/") || name == ".." {
			return nil, fmt.Errorf("%s is not a file name: %w", path, errRefused)
		}
		fd, err = again(func() (int, error) { return unix.Openat(int(d.Fd()), name, flags, mode) })
	}
	if errors.Is(err, unix.ELOOP) {
		return nil, isLink(path)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// again retries a system call that was interrupted by a signal.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// readlinkat returns the target of a link in a directory. If the name is empty, d is the link itself.
func readlinkat(d *dir, name string) (string, error) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(d.Fd()), name, target)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: filepath.Join(d.Name(), name), Err: err}
	}
	return string(target[:n]), nil
}

// child opens a subdirectory, and verifies it.
func (d *dir) child(name string) (*dir, error) {
	next, err := d.openat(name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	if _, err := step(next, refuseLinks, false); err != nil {
		_ = next.Close()
		return nil, err
	}
	return &dir{next, d.oldKernel}, nil
}

// reading opens the directory for operations that a descriptor with O_PATH does not support: list, sync and lock.
func (d *dir) reading() (*os.File, error) { return d.openat(".", unix.O_RDONLY|unix.O_DIRECTORY, 0) }

// names returns the names in the directory.
func (d *dir) names() ([]string, error) {
	f, err := d.reading()
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return f.Readdirnames(-1)
}

// sync syncs the directory. Not all file systems support this.
func (d *dir) sync() error {
	f, err := d.reading()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}

func (d *dir) mkdir(name string, mode uint32) error {
	if err := unix.Mkdirat(int(d.Fd()), name, mode); err != nil {
		return &fs.PathError{Op: "mkdir", Path: filepath.Join(d.Name(), name), Err: err}
	}
	return nil
}

// rmdir removes an empty subdirectory.
func (d *dir) rmdir(name string) error {
	return unix.Unlinkat(int(d.Fd()), name, unix.AT_REMOVEDIR)
}

// removeAll removes a name in the directory recursively. It removes a link, not the target.
func (d *dir) removeAll(name string) error {
	return os.RemoveAll(filepath.Join(byDescriptor(d.File), name))
}
