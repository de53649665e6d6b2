package hostfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// FS is the file system below a directory, as seen by a process with that root directory: absolute symbolic links are
// resolved below it. os.DirFS would resolve them in the helper's container, and os.Root rejects them.
type FS string

// maxLinks is the kernel's limit (MAXSYMLINKS).
const maxLinks = 40

func (r FS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	full, err := r.Resolve(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.Open(full)
}

// Resolve returns the path of name with all symbolic links resolved.
func (r FS) Resolve(name string) (string, error) {
	pending, done := strings.Split(name, "/"), "/"
	for links := 0; len(pending) > 0; {
		part := pending[0]
		pending = pending[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		target, err := os.Readlink(r.Below(next))
		if err != nil { // not a link, or missing; opening the file reports whether it exists
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", errors.New("too many levels of symbolic links")
		}
		if path.IsAbs(target) {
			done = "/"
		}
		pending = append(strings.Split(target, "/"), pending...)
	}
	return r.Below(done), nil
}

// LinkInfo returns information about a file without following the last link. It resolves links in the directories of
// the path.
func (r FS) LinkInfo(name string) (fs.FileInfo, error) {
	dir, err := r.Resolve(Relative(path.Dir(name)))
	if err != nil {
		return nil, err
	}
	return os.Lstat(filepath.Join(dir, path.Base(name)))
}

// ReadLink returns the target of a symbolic link. It resolves links in the directories of the path.
func (r FS) ReadLink(name string) (string, error) {
	dir, err := r.Resolve(Relative(path.Dir(name)))
	if err != nil {
		return "", err
	}
	return os.Readlink(filepath.Join(dir, path.Base(name)))
}

// Remove removes a file or a symbolic link. It resolves links in the directories of the path.
func (r FS) Remove(name string) error {
	dir, err := r.Resolve(Relative(path.Dir(name)))
	if err != nil {
		return err
	}
	return os.Remove(filepath.Join(dir, path.Base(name)))
}

func (r FS) Below(name string) string { return filepath.Join(string(r), filepath.FromSlash(name)) }
