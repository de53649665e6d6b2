package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestALaneTakesDownWhatAnEarlierRunLeft protects a run from the clusters of one that was killed: `up` refuses a name
// that another checkout uses, and a change did not land because of that.
func TestALaneTakesDownWhatAnEarlierRunLeft(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	scripts := filepath.Join(root, "test", "cluster")
	if err := os.MkdirAll(scripts, 0o755); err != nil {
		t.Fatal(err)
	}
	// The cluster of another checkout runs until it is taken down
	calls, orphan := filepath.Join(root, "calls"), filepath.Join(root, "orphan")
	for name, text := range map[string]string{
		"up":   "#!/bin/sh\necho up >>" + calls + "\n[ ! -e " + orphan + " ]\n",
		"down": "#!/bin/sh\necho down $CLUSTER >>" + calls + "\nrm -f " + orphan + "\n",
	} {
		if err := os.WriteFile(filepath.Join(scripts, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(orphan, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w := &workshop{ctx: t.Context(), root: root, dir: filepath.Join(root, ".suite"), pace: newPace(1)}
	l := &lane{workshop: w, number: 3}
	b := &bay{workshop: w, lane: l, log: io.Discard}
	for _, site := range []site{pair, pair, wide} {
		if err := l.prepare(b, site); err != nil {
			t.Fatalf("start a cluster for %s: %v", site, err)
		}
	}
	got, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	const want = "down suite3, up, down suite3, up"
	if joined := strings.Join(strings.Split(strings.TrimSpace(string(got)), "\n"), ", "); joined != want {
		t.Errorf("the lane ran %s; want %s", joined, want)
	}
}
