package hostfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// MaxFile is the maximum size of a configuration file in bytes. A typical file is a few kilobytes long.
const MaxFile = 4 << 20

// guardedFS is a file system that opens only directories and regular files of limited size. A containerd in a container
// could have a pipe as its configuration, and reading the pipe would block forever.
type guardedFS struct{ FS }

func (r FS) Guarded() fs.FS { return guardedFS{r} }

func (g guardedFS) Open(name string) (fs.File, error) {
	refused := func(err error) (fs.File, error) { return nil, &fs.PathError{Op: "open", Path: name, Err: err} }
	if !fs.ValidPath(name) {
		return refused(fs.ErrInvalid)
	}
	full, err := g.Resolve(name)
	if err != nil {
		return refused(err)
	}
	file, err := os.OpenFile(full, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return refused(errors.Unwrap(err))
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular() && !info.IsDir():
		err = errors.New("not a file")
	case info.Mode().IsRegular() && info.Size() > MaxFile:
		err = fmt.Errorf("larger than %d bytes", MaxFile)
	}
	if err != nil {
		_ = file.Close()
		return refused(err)
	}
	return file, nil
}
