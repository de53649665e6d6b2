//go:build linux

package guard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// content is the current data of a file and its checksum. The checksum of a missing file is deadman.Absent.
type content struct {
	data []byte
	sum  string
	// tooLarge is set if the file exceeds the size limit. Its checksum is then unknown, but treated as different from
	// the expected one.
	tooLarge bool
}

// open opens a regular file that only root can change. It does not follow links.
func (f file) open(flags int) (*os.File, error) {
	opened, err := f.dir.openat(f.name, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(opened.Fd()), &st); err != nil {
		err = &fs.PathError{Op: "stat", Path: f.path(), Err: err}
	} else if st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("%s is not a regular file: %w", f.path(), errRefused)
	} else {
		err = onlyRoots(opened, &st)
	}
	if err != nil {
		_ = opened.Close()
		return nil, err
	}
	return opened, nil
}

func (f file) read() (content, error) {
	opened, err := f.open(unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return content{sum: deadman.Absent}, nil
	}
	if err != nil {
		return content{}, err
	}
	defer func() { _ = opened.Close() }()
	data, err := io.ReadAll(io.LimitReader(opened, deadman.MaxFile+1))
	if err != nil {
		return content{}, err
	}
	if len(data) > deadman.MaxFile {
		return content{sum: "too large", tooLarge: true}, nil
	}
	return content{data: data, sum: patch.Sum(data)}, nil
}

// readAll returns the content of a file that this package wrote. The error wraps fs.ErrNotExist if the file does not
// exist.
func (f file) readAll() ([]byte, error) {
	opened, err := f.open(unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = opened.Close() }()
	return io.ReadAll(opened)
}

// create writes a new file with the given attributes, and syncs it. The attributes may be nil.
func (f file) create(data []byte, meta *deadman.Meta) (err error) {
	created, err := f.dir.openat(f.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if e := created.Close(); err == nil {
			err = e
		}
		if err != nil {
			_ = f.unlink()
		}
	}()
	if _, err := created.Write(data); err != nil {
		return err
	}
	if meta != nil {
		if err := setMeta(created, *meta); err != nil {
			return err
		}
	}
	return created.Sync()
}

// replace atomically replaces the file with a prepared one.
func (f file) replace(prepared file) error {
	err := error(unix.ENOENT)
	if f.dir != nil && prepared.dir != nil {
		err = unix.Renameat(int(prepared.dir.Fd()), prepared.name, int(f.dir.Fd()), f.name)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: prepared.path(), New: f.path(), Err: err}
	}
	return f.dir.sync()
}

// overwrite replaces the content of an existing file in place. It is used for files that have several names or are
// mounted. If it is interrupted, the file is left in a state that isTorn recognizes.
func (f file) overwrite(data []byte, meta *deadman.Meta) (err error) {
	opened, err := f.open(unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer func() {
		if e := opened.Close(); err == nil {
			err = e
		}
	}()
	if _, err := opened.WriteAt(data, 0); err != nil {
		return err
	}
	if err := opened.Truncate(int64(len(data))); err != nil {
		return err
	}
	if meta != nil {
		if err := setMeta(opened, *meta); err != nil {
			return err
		}
	}
	return opened.Sync()
}

// isTorn reports whether data is the result of an interrupted overwrite. The parameters from and to are the contents
// before and after a complete overwrite.
func isTorn(data, from, to []byte) bool {
	for _, pair := range [][2][]byte{{from, to}, {to, from}} {
		old, new := pair[0], pair[1]
		n := 0
		for n < min(len(data), len(new)) && data[n] == new[n] {
			n++
		}
		switch {
		case n == len(data) && n == len(new):
			return true
		case n < len(old) && bytes.Equal(data[n:], old[n:]), n >= len(old) && n == len(data):
			return true
		}
	}
	return false
}

func (f file) unlink() error {
	err := error(unix.ENOENT)
	if f.dir != nil {
		err = unix.Unlinkat(int(f.dir.Fd()), f.name, 0)
	}
	if err != nil {
		return &fs.PathError{Op: "remove", Path: f.path(), Err: err}
	}
	return nil
}

// remove removes the file if it exists, and syncs its directory. It removes a link, not the target.
func (f file) remove() error {
	err := f.unlink()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.dir.sync()
}

// writeWhole atomically replaces a file written by this package. A crash leaves either the old file or the new one.
func (f file) writeWhole(data []byte, mode uint32) error {
	next := file{f.dir, f.name + ".next"}
	if err := next.unlink(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := next.create(data, ours(mode)); err != nil {
		return err
	}
	return f.replace(next)
}

// ours returns the attributes of files written by this package. It does not set the modification time.
func ours(mode uint32) *deadman.Meta {
	return &deadman.Meta{Mode: mode, UID: os.Geteuid(), GID: os.Getegid()}
}
