package node

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// rootFS is the file system below a directory as a process sees it that has this directory as its root: absolute
// symbolic links lead below it. os.DirFS would follow them into our own container, and os.Root refuses them.
type rootFS string

// maxLinks is the kernel's own limit (MAXSYMLINKS).
const maxLinks = 40

func (r rootFS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	full, err := r.resolve(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.Open(full)
}

// resolve returns the path of name with all links followed.
func (r rootFS) resolve(name string) (string, error) {
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
		target, err := os.Readlink(r.below(next))
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
	return r.below(done), nil
}

// lstat looks at a file itself also where it is a link, and follows those on the way to it.
func (r rootFS) lstat(name string) (fs.FileInfo, error) {
	dir, err := r.resolve(relative(path.Dir(name)))
	if err != nil {
		return nil, err
	}
	return os.Lstat(filepath.Join(dir, path.Base(name)))
}

func (r rootFS) below(name string) string { return filepath.Join(string(r), filepath.FromSlash(name)) }
