package node

import (
	"io/fs"
	"runtime"
	"testing"
)

func TestRootFollowsLinksBelowIt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links need a privilege on Windows")
	}
	root := rootFS(tree(t, map[string]string{
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
		"etc/plain": "plain", "etc/absolute": "file", "etc/relative": "file", "etc/above": "file", "etc/dir/file": "file",
		"etc/chain": "file", "etc/loop": "", "etc/dangling": "", "etc/dir/none": "", "../etc/plain": "", "/etc/plain": "",
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
