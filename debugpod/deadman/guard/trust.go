//go:build linux

package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks is how many symbolic links a path may have, as in Linux.
const maxLinks = 40

// resolve follows a path's symbolic links, and returns an error unless root alone decides where it leads: every
// directory that it passes, on the way to a link and behind it, belongs to root (to this process's user), and no
// other user may write to it. So nobody else can redirect the path between this check and its use, and openat2(2),
// which needs Linux 5.6, would add nothing. The last element need not exist.
//
// Groups may write: MicroK8s gives its configuration to a group of administrators. Volumes of pods are writable for
// all.
func (h Host) resolve(path string) (string, error) {
	rest, err := h.below(path)
	if err != nil {
		return "", err
	}
	at := h.Root
	for links := 0; len(rest) > 0; {
		if err := onlyOurs(at); err != nil {
			return "", err
		}
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			if at != h.Root {
				at = filepath.Dir(at)
			}
			continue
		}
		next := filepath.Join(at, name)
		info, err := os.Lstat(next)
		if errors.Is(err, fs.ErrNotExist) && len(rest) == 0 {
			return next, nil
		}
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: too many symbolic links", path)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		behind := strings.Split(filepath.Clean(target), "/")
		if filepath.IsAbs(target) {
			if behind, err = h.below(target); err != nil {
				return "", err
			}
			at = h.Root
		}
		rest = append(behind, rest...)
	}
	return at, nil
}

// below are the elements of an absolute path below h.Root.
func (h Host) below(path string) ([]string, error) {
	relative, err := filepath.Rel(h.Root, path)
	if err != nil || relative == ".." || strings.HasPrefix(relative, "../") {
		return nil, fmt.Errorf("%s is not below %s", path, h.Root)
	}
	return strings.Split(relative, "/"), nil
}

// onlyOurs returns an error unless a path, which is not a link, is a directory that only its owner, which is this
// process's user, and its group may change.
func onlyOurs(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, known := info.Sys().(*syscall.Stat_t)
	const only = "only files below directories that root alone can change are changed"
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case !known || int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s does not belong to root: %s", dir, only)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("%s is writable for every user: %s", dir, only)
	}
	return nil
}

// trusted returns an error unless a path that resolve has returned still leads to itself.
func (h Host) trusted(real string) error {
	now, err := h.resolve(real)
	if err == nil && now != real {
		err = fmt.Errorf("%s leads to %s now", real, now)
	}
	return err
}
