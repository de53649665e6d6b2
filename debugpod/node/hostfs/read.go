package hostfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// Text returns the content of a file, up to the given number of bytes. It opens only regular files.
func (r FS) Text(name string, most int64) (string, error) {
	file, err := r.Guarded().Open(Relative(name))
	if err != nil {
		if why := errors.Unwrap(err); why != nil { // the unwrapped error omits the relative path
			err = why
		}
		return "", fmt.Errorf("open %s: %w", name, err)
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	return strings.ToValidUTF8(string(raw), "\uFFFD"), nil
}

// Word returns the content of a small file without surrounding white space, or "" if it cannot be read.
func (r FS) Word(name string) string {
	text, err := r.Text(name, api.MaxLineText)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

// Trimmed returns the content of a small file without surrounding white space, or "" if it cannot be read.
func Trimmed(fsys fs.FS, name string) string {
	raw, err := fs.ReadFile(fsys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// Executable returns the reason why the file cannot be executed, or "".
func Executable(root FS, name string) string {
	info, err := root.Info(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "missing"
	case err != nil:
		return err.Error()
	case info.IsDir():
		return "a directory"
	case info.Mode()&0o111 == 0:
		return "not executable"
	case info.Size() == 0:
		return "empty"
	}
	return ""
}

// RelativeTo converts full, which is a path below root, to a path relative to root.
func RelativeTo(root, full string) string {
	inside, err := filepath.Rel(root, full)
	if err != nil || strings.HasPrefix(inside, "..") {
		return strings.TrimPrefix(full, "/")
	}
	return filepath.ToSlash(inside)
}

// Relative returns a path in the form that fs.FS requires.
func Relative(name string) string {
	if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name == "" {
		return "."
	}
	return name
}

func (r FS) Content(name string) ([]byte, error) { return fs.ReadFile(r, Relative(name)) }

// Info returns information about a file. It follows links.
func (r FS) Info(name string) (fs.FileInfo, error) {
	full, err := r.Resolve(Relative(name))
	if err != nil {
		return nil, err
	}
	return os.Stat(full)
}
