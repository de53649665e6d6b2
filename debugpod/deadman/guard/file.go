//go:build linux

package guard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// content is what a file has now: its data, and their sum. The sum of a file that is not there is deadman.Absent.
type content struct {
	data []byte
	sum  string
	// tooLarge: only the sum is known to be another.
	tooLarge bool
}

func read(path string) (content, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return content{sum: deadman.Absent}, nil
	}
	if err != nil {
		return content{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return content{}, err
	}
	if !info.Mode().IsRegular() {
		return content{}, fmt.Errorf("%s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, deadman.MaxFile+1))
	if err != nil {
		return content{}, err
	}
	if len(data) > deadman.MaxFile {
		return content{sum: "too large", tooLarge: true}, nil
	}
	return content{data: data, sum: patch.Sum(data)}, nil
}

// leads returns where a path leads, and the target of a link in its last part. The last part need not exist, but no
// link may dangle. It returns an error if another user than root could redirect the path.
func (h Host) leads(path string) (to, link string, err error) {
	real, err := h.resolve(path)
	if err != nil {
		return "", "", err
	}
	if link, err = os.Readlink(path); err != nil {
		return real, "", nil // it is none
	}
	if _, err := os.Lstat(real); err != nil {
		return "", "", err
	}
	return real, link, nil
}

// create writes a new file with all that it shall have, and syncs it. The attributes may be nil.
func create(path string, data []byte, meta *deadman.Meta) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if meta != nil {
		if err := setMeta(f, *meta); err != nil {
			return err
		}
	}
	return f.Sync()
}

// replaceAll gives path the file at prepared, in one step.
func replaceAll(prepared, path string) error {
	if err := unix.Rename(prepared, path); err != nil {
		return &os.LinkError{Op: "rename", Old: prepared, New: path, Err: err}
	}
	return syncDir(filepath.Dir(path))
}

// overwrite gives an existing file another content, and keeps the file itself: for files that have several names, or are mounted.
// It is interrupted only between its steps: isTorn knows what is then there.
func overwrite(path string, data []byte, meta *deadman.Meta) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(data))); err != nil {
		return err
	}
	if meta != nil {
		if err := setMeta(f, *meta); err != nil {
			return err
		}
	}
	return f.Sync()
}

// isTorn is whether data are what overwrite leaves when it is interrupted on the way from one content to the other.
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

func remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) { // not all file systems know that
		return err
	}
	return nil
}

// writeWhole replaces a file of ours; a crash leaves the old one or the new one.
func writeWhole(path string, data []byte, mode fs.FileMode) error {
	next := path + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := create(next, data, nil); err != nil {
		return err
	}
	if err := os.Chmod(next, mode); err != nil {
		return err
	}
	return replaceAll(next, path)
}
