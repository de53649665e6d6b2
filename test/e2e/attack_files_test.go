//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// member is one entry of a bundle.
type member struct {
	name string
	kind byte // 0: a file
	link string
	data string
	size int64 // of zeros, in place of data
}

const snapshotMember = `{"apiVersion":"gpufault.dev/v1alpha1","kind":"Snapshot","created":"2026-01-02T03:04:05Z"}`

// bundle writes a tar.gz.
func bundle(t *testing.T, members ...member) string {
	t.Helper()
	var out bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewWriter(zipped)
	for _, m := range members {
		size := max(int64(len(m.data)), m.size)
		header := &tar.Header{
			Name: m.name, Typeflag: m.kind, Linkname: m.link, Mode: 0o600, Size: size, Format: tar.FormatPAX,
		}
		if m.kind != 0 {
			header.Size = 0
		}
		if err := archive.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if m.kind == 0 {
			if _, err := io.Copy(
				archive, io.MultiReader(strings.NewReader(m.data), io.LimitReader(zeros{}, m.size)),
			); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return whole(t, out.Bytes())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func whole(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAttackBundles: a bundle from somebody else writes nothing, reads nothing outside of it, and ends with an error or
// findings in a bounded time.
func TestAttackBundles(t *testing.T) {
	t.Parallel()
	e := setup(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hunter2-of-the-admin"), 0o600); err != nil {
		t.Fatal(err)
	}
	head := member{name: "snapshot.json", data: snapshotMember}
	deep := strings.Repeat(`{"a":`, 200_000) + "1" + strings.Repeat("}", 200_000)
	for name, path := range map[string]string{
		"a path that climbs": bundle(t, head, member{name: "../../../../tmp/owned", data: "x"}),
		"an absolute path":   bundle(t, head, member{name: "/etc/owned", data: "x"}),
		"a link to a file of the reader": bundle(t, head,
			member{name: "nodes/a/kernel.log", kind: tar.TypeSymlink, link: secret}),
		"a hard link": bundle(t, head,
			member{name: "nodes/a/kernel.log", kind: tar.TypeLink, link: secret}),
		"a device": bundle(t, head, member{name: "nodes/a/kernel.log", kind: tar.TypeBlock}),
		"the same member twice": bundle(t, head, head,
			member{name: "snapshot.json", data: `{"kind":"Other"}`}),
		"a name that rewrites the screen": bundle(t, head,
			member{name: "nodes/" + hostile + "/probe.json", data: "{"}),
		"a name of a hundred kilobytes": bundle(t, head,
			member{name: "nodes/" + strings.Repeat("a", 100_000), data: "{"}),
		"a name that is not UTF-8":            bundle(t, head, member{name: "nodes/\xff\xfe/probe.json", data: "{"}),
		"two gigabytes of zeros":              bundle(t, head, member{name: "nodes/a/kernel.log", size: 2 << 30}),
		"a snapshot of zeros":                 bundle(t, member{name: "snapshot.json", size: 1 << 30}),
		"JSON of two hundred thousand levels": bundle(t, head, member{name: "pods.json", data: deep}),
		"a snapshot without a kind":           bundle(t, member{name: "snapshot.json", data: `{}`}),
		"objects that are not a list": bundle(t, head, member{name: "pods.json", data: `{"items":{"a":1}}`},
			member{name: "nodes.json", data: `"x"`}),
		"an end in the middle":   whole(t, []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")),
		"no archive":             whole(t, []byte(hostile)),
		"nothing":                whole(t, nil),
		"a folder of the system": "/proc/self",
		"a device of the system": "/dev/zero",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			r := e.withoutCluster(t, "doctor", "--from-bundle", path)
			said := r.stdout + r.stderr
			plain(t, "the output", said)
			if r.code != 0 && r.code != 1 && r.code != 2 || strings.Contains(said, "hunter2") ||
				strings.Contains(said, "panic") {
				t.Errorf("exit %d:\n%s", r.code, said)
			}
			if len(said) > 20_000 {
				t.Errorf("it says %d bytes", len(said))
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("it took %s", took)
			}
			for _, owned := range []string{"/tmp/owned", "/etc/owned"} {
				if _, err := os.Lstat(owned); err == nil {
					t.Errorf("%s was written", owned)
				}
			}
		})
	}
}

// withoutCluster runs the plugin where no cluster can be reached.
func (e *env) withoutCluster(t *testing.T, args ...string) result {
	t.Helper()
	one := *e
	one.t, one.limit = t, 2*time.Minute
	return one.pluginWith([]string{"KUBECONFIG=/nonexistent"}, args...)
}

// TestAttackOutputFiles: who can write in a folder where an administrator writes a file chooses neither which file is
// overwritten nor who may read it.
func TestAttackOutputFiles(t *testing.T) {
	t.Parallel()
	e := setup(t)
	snapshot := bundle(t, member{name: "snapshot.json", data: snapshotMember})
	for name, args := range map[string][]string{
		"a page": {"doctor", "--from-bundle", snapshot, "--html"},
	} {
		for planted, plant := range map[string]func(path, precious string) error{
			"a link to a file":  func(path, precious string) error { return os.Symlink(precious, path) },
			"a link to nothing": func(path, precious string) error { return os.Symlink(precious+"-new", path) },
			"a hard link":       func(path, precious string) error { return os.Link(precious, path) },
			"a folder":          func(path, _ string) error { return os.Mkdir(path, 0o700) },
		} {
			t.Run(name+", "+planted, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				precious, path := filepath.Join(dir, "precious"), filepath.Join(dir, "out")
				if err := os.WriteFile(precious, []byte("mine"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := plant(path, precious); err != nil {
					t.Fatal(err)
				}
				r := e.withoutCluster(t, append(args, path)...)
				if now, err := os.ReadFile(precious); err != nil || string(now) != "mine" {
					t.Errorf("exit %d: the file behind it was overwritten with %d bytes (%v)", r.code, len(now), err)
				}
				if _, err := os.Lstat(precious + "-new"); err == nil {
					t.Errorf("exit %d: a file was made where the link leads", r.code)
				}
			})
		}
	}
}

// TestAttackWords: what a user is made to type or to set by others reaches no shell and no other cluster.
func TestAttackWords(t *testing.T) {
	t.Parallel()
	e := setup(t)
	for _, args := range [][]string{
		{"revert", "--", "-A"}, {"revert", "../../secrets/x"}, {"revert", "xid-$(id)"}, {"revert", "xid-a,b=c"},
		{"list", "--ledger-namespace", "a/../b"},
		{"xid", "79", "--", "--privileged"}, {"xid", "79", "node-b;id"}, {"doctor", "--node", "$(id)"},
		{"runtime", "show", "../node-a"},
		{"xid", "79", e.worker.Name, "--message", "a\nb", "--yes"},
		{"xid", "79", e.worker.Name, "--process", "1,a\nb", "--yes"},
		{"xid", "79", e.worker.Name, "--gpu", "0000:17:00\nx", "--yes"},
		{"cuda", "status", "deployment/$(id)"}, {"scenario", "end", "../x", "--yes"},
	} {
		t.Run(fmt.Sprintf("%q", args), func(t *testing.T) {
			r := e.plugin(args...)
			if r.code != 1 {
				t.Errorf("exit %d, wanted 1\n%s%s", r.code, r.stdout, r.stderr)
			}
			plain(t, "stderr", r.stderr)
			e.noPods()
		})
	}
}
