package hoststate

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
)

//go:embed paths.txt
var pathsText string

var paths = func() (all []string) {
	for line := range strings.Lines(pathsText) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}()

const (
	// mostFiles is the maximum number of files and directories to list.
	mostFiles = 4000
	// mostRead is the maximum number of bytes of a file to compare. For a larger file, the size is also compared.
	mostRead = 1 << 20
)

// errMany means that there are more files and directories than mostFiles.
var errMany = errors.New("too many files")

// listed reports whether a path without a leading slash is one of paths, or in one of them.
func listed(name string) bool {
	for _, top := range paths {
		if rest, ok := strings.CutPrefix(name, top); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// readFiles adds the files at the listed paths, with digests of their content, owner and permissions.
func readFiles(root hostfs.FS, found map[string]string, warn func(format string, args ...any)) {
	w := walker{root: root, each: func(name string, info fs.FileInfo) {
		digest, err := digestOf(root, name, info)
		switch {
		case err == nil:
			found[api.StateFile+" /"+name] = digest
		case !errors.Is(err, fs.ErrNotExist):
			warn("/%s cannot be compared: %v", name, err)
		}
	}}
	for _, top := range paths {
		if err := w.walk(top); err != nil {
			warn("/%s cannot be listed completely: %v", top, err)
		}
	}
}

// walker lists files. It does not follow links.
type walker struct {
	root hostfs.FS
	each func(name string, info fs.FileInfo)
	seen int
}

// walk calls the function each for the files and links at and below a path. If the path does not exist, there are none.
func (w *walker) walk(name string) error {
	if w.seen++; w.seen > mostFiles {
		return errMany
	}
	info, err := w.root.LinkInfo(name)
	if errors.Is(err, fs.ErrNotExist) || rewritten(name) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		w.each(name, info)
		return nil
	}
	entries, err := fs.ReadDir(w.root, name)
	if errors.Is(err, fs.ErrNotExist) { // it has been deleted
		return nil
	}
	for _, entry := range entries {
		if err := w.walk(path.Join(name, entry.Name())); err != nil {
			return err
		}
	}
	return err
}

// rewritten reports whether components of the node rewrite a file on their own, such as a token or a certificate that
// expires.
func rewritten(name string) bool {
	base := path.Base(name)
	return strings.Contains(base, "kubeconfig") || strings.HasSuffix(base, ".crt") || strings.HasSuffix(base, ".pem") ||
		strings.HasSuffix(base, ".key") || strings.HasSuffix(base, ".lock")
}

func digestOf(root hostfs.FS, name string, info fs.FileInfo) (string, error) {
	hash := sha256.New()
	var meta deadman.Meta
	if err := hostfs.Ownership(info, &meta); err != nil {
		return "", err
	}
	_, _ = fmt.Fprintln(hash, info.Mode(), meta.UID, meta.GID, info.Size())
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := root.ReadLink(name)
		if err != nil {
			return "", err
		}
		_, _ = io.WriteString(hash, target)
	case info.Mode().IsRegular():
		text, err := root.Text(name, mostRead)
		if errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		// For a file that is too large to read, the size and the owner are compared.
		_, _ = io.WriteString(hash, text)
	}
	return hex.EncodeToString(hash.Sum(nil)[:8]), nil
}

// Remove removes files at the listed paths that still have the given digests.
func Remove(root hostfs.FS, digests map[string]string) (done api.RemovedFiles) {
	done.Kept = map[string]string{}
	for _, full := range slices.Sorted(maps.Keys(digests)) {
		name := path.Clean(strings.TrimPrefix(full, "/"))
		if err := remove(root, name, digests[full]); err != nil {
			done.Kept[full] = err.Error()
		} else {
			done.Removed = append(done.Removed, full)
		}
	}
	return done
}

func remove(root hostfs.FS, name, digest string) error {
	if !listed(name) {
		return errors.New("not in a configuration directory")
	}
	info, err := root.LinkInfo(name)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return errors.New("a directory")
	}
	now, err := digestOf(root, name, info)
	if err != nil {
		return err
	}
	if now != digest {
		return errors.New("changed in the meantime")
	}
	return root.Remove(name)
}
