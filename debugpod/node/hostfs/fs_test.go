package hostfs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/hostfs"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/node/nodetest"
)

func TestRootFollowsLinksBelowIt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links need a privilege on Windows")
	}
	root := hostfs.FS(nodetest.Tree(t, map[string]string{
		"etc/plain":    "plain",
		"etc/absolute": "-> /opt/file",
		"etc/relative": "-> ../opt/file",
		"etc/above":    "-> ../../../../opt/file",
		"etc/dir":      "-> /opt",
		"etc/chain":    "-> dir/link",
		"etc/loop":     "-> /etc/loop",
		"etc/dangling": "-> /nowhere",
		"opt/link":     "-> /opt/./file",
		"opt/file":     "file",
	}))
	for name, want := range map[string]string{
		"etc/plain": "plain", "etc/absolute": "file", "etc/relative": "file", "etc/above": "file",
		"etc/dir/file": "file",
		"etc/chain":    "file", "etc/loop": "", "etc/dangling": "", "etc/dir/none": "", "../etc/plain": "",
		"/etc/plain": "",
	} {
		raw, err := fs.ReadFile(root, name)
		if string(raw) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", name, raw, err, want)
		}
	}
	if entries, err := fs.ReadDir(root, "etc/dir"); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
	if _, err := fs.Stat(root, "."); err != nil {
		t.Error(err)
	}
}

// FuzzRoot: whatever a node's links say, no name leads out of its root: into the pod, or what the pod runs in.
func FuzzRoot(f *testing.F) {
	f.Add("etc/dir/file", "/opt", "../../../..")
	f.Add("etc/dir/../x", "../../..", "/etc/other")
	f.Fuzz(func(t *testing.T, name, target, other string) {
		if runtime.GOOS == "windows" {
			t.Skip("symbolic links need a privilege on Windows")
		}
		dir := t.TempDir()
		for link, to := range map[string]string{"dir": target, "other": other} {
			if err := os.MkdirAll(filepath.Join(dir, "etc"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, filepath.Join(dir, "etc", link)); err != nil {
				return // no link can say this
			}
		}
		for _, name := range []string{name, "etc/dir", "etc/other/x", "etc/dir/../other"} {
			full, err := hostfs.FS(dir).Resolve(name)
			if err == nil && full != dir && !strings.HasPrefix(full, dir+string(filepath.Separator)) {
				t.Errorf("%q leads to %s, out of %s", name, full, dir)
			}
		}
	})
}
