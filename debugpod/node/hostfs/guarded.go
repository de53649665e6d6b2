package hostfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// MaxFile is how large a configuration file may be, in bytes: real ones have some kilobytes.
const MaxFile = 4 << 20

// guardedFS is a file system of which nothing but folders and files of a sensible size is opened. A containerd in
// somebody's container may have a pipe for a configuration, on which we would wait for ever.
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
