package hostfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// FS is the file system below a directory as a process sees it that has this directory as its root: absolute
// symbolic links lead below it. os.DirFS would follow them into our own container, and os.Root refuses them.
type FS string

// maxLinks is the kernel's own limit (MAXSYMLINKS).
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

// Resolve returns the path of name with all links followed.
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
		if err != nil { // no link; whether it is there at all, opening it will tell
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

// LinkInfo looks at a file itself also where it is a link, and follows those on the way to it.
func (r FS) LinkInfo(name string) (fs.FileInfo, error) {
	dir, err := r.Resolve(Relative(path.Dir(name)))
	if err != nil {
		return nil, err
	}
	return os.Lstat(filepath.Join(dir, path.Base(name)))
}

func (r FS) Below(name string) string { return filepath.Join(string(r), filepath.FromSlash(name)) }
