package main

import (
	"strings"
	"testing"
	"time"
)

// A matrix that does not see a difference proves nothing: each of these must count.
func TestEveryDifferenceOfAFileCounts(t *testing.T) {
	t.Parallel()
	base := file{
		Mode: 0o644, UID: 1, GID: 2, Modified: time.Unix(1, 5), Data: "x", Xattrs: map[string]string{"user.a": "b"},
	}
	for what, change := range map[string]func(*file){
		"content":             func(f *file) { f.Data = "y" },
		"mode":                func(f *file) { f.Mode = 0o600 },
		"owner":               func(f *file) { f.GID = 3 },
		"time":                func(f *file) { f.Modified = f.Modified.Add(time.Nanosecond) },
		"extended attributes": func(f *file) { f.Xattrs = nil },
		"link":                func(f *file) { f.Link = "elsewhere" },
	} {
		now := base
		change(&now)
		lines := tree{"/f": base}.differences(tree{"/f": now})
		if len(lines) != 1 || !strings.Contains(lines[0], "/f: "+what) {
			t.Errorf("a file with another %s: %q", what, lines)
		}
	}
	if lines := (tree{"/f": base}).differences(tree{"/f": base}); len(lines) != 0 {
		t.Errorf("the same file differs: %q", lines)
	}
	if lines := (tree{"/gone": base}).
		differences(tree{"/new": base}); strings.Join(lines, ", ") != "/gone is gone, /new is new" {
		t.Errorf("a file that is gone and one that is new: %q", lines)
	}
}
