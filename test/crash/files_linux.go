package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// readTree reads the watched files below a root.
func readTree(root string) (tree, error) {
	found := tree{}
	for _, top := range watchedPaths {
		err := filepath.WalkDir(root+top, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // also one that went away just now
			}
			if err != nil {
				return err
			}
			if top == "/etc/systemd/system" && !strings.HasPrefix(d.Name(), "gpu-fault") {
				return nil
			}
			f, err := readFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			found[strings.TrimPrefix(path, root)] = f
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", top, err)
		}
	}
	return found, nil
}

func readFile(path string) (file, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return file{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return file{}, fmt.Errorf("%s: no owner can be told", path)
	}
	f := file{Mode: info.Mode(), UID: stat.Uid, GID: stat.Gid}
	switch {
	case info.IsDir():
		f.Xattrs, err = readXattrs(path)
		return f, err
	case info.Mode()&fs.ModeSymlink != 0:
		f.Modified = info.ModTime()
		f.Link, err = os.Readlink(path)
		return f, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return file{}, err
	}
	f.Data, f.Modified = string(data), info.ModTime()
	f.Xattrs, err = readXattrs(path)
	return f, err
}

func readXattrs(path string) (map[string]string, error) {
	names := make([]byte, 64<<10)
	n, err := syscall.Listxattr(path, names)
	if err != nil {
		return nil, fmt.Errorf("list the extended attributes of %s: %w", path, err)
	}
	attributes := map[string]string{}
	for name := range bytes.SplitSeq(bytes.TrimSuffix(names[:n], []byte{0}), []byte{0}) {
		if len(name) == 0 {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := syscall.Getxattr(path, string(name), value)
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", name, path, err)
		}
		attributes[string(name)] = string(value[:n])
	}
	return attributes, nil
}

// writeTree makes the watched files below a root as they were, for the trials that come after one that failed.
func writeTree(root string, was tree) error {
	now, err := readTree(root)
	if err != nil {
		return err
	}
	var failed error
	for path := range now {
		if _, there := was[path]; !there {
			failed = errors.Join(failed, os.RemoveAll(root+path))
		}
	}
	for path, f := range was {
		if g, there := now[path]; f.Mode.IsRegular() && (!there || len(f.differences(path, g)) > 0) {
			failed = errors.Join(failed, writeFile(root+path, f))
		}
	}
	return failed
}

func writeFile(path string, f file) error {
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(f.Data), 0o600),
		os.Chown(path, int(f.UID), int(f.GID)), os.Chmod(path, f.Mode))
	for name, value := range f.Xattrs {
		err = errors.Join(err, syscall.Setxattr(path, name, []byte(value), 0))
	}
	return errors.Join(err, os.Chtimes(path, time.Time{}, f.Modified))
}
