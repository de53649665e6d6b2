package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What krew or a file's name would not take is refused with what to write instead.
func TestVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.2.3": "", "v1.2.3-rc.1": "", "v0.0.0-test": "",
		"":             "no version specified",
		"1.2.3":        "must begin with v",
		"v1.2":         "three numbers",
		"v1.2.3+build": "without build metadata",
		"v01.2.3":      "not a semantic version",
		"latest":       "not a semantic version",
		"v1.2.3/../..": "not a semantic version",
	} {
		err := checkVersion(version)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", version, err)
		case want != "" &&
			(err == nil || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), "make release VERSION=")):
			t.Errorf("%q: %v; want %q and an example", version, err, want)
		}
	}
}

// A release is of a commit, and of the one that its tag is on; a trial may be of anything.
func TestRepository(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		settings := []string{
			"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", "-c",
			"tag.gpgsign=false",
		}
		cmd := exec.Command("git", append(settings, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	t.Chdir(dir)
	refused := func(version, want string) {
		t.Helper()
		err := checkRepository(t.Context(), version)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", version, err, want)
		}
	}
	run("init", "--quiet")
	run("commit", "--quiet", "--allow-empty", "--message=first")
	run("tag", "v1.0.0")
	refused("v1.0.0", "")
	refused("v1.1.0", "")
	run("commit", "--quiet", "--allow-empty", "--message=second")
	refused("v1.0.0", "check out the tag, or use the next version")
	if err := os.WriteFile("new file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refused("v1.1.0", `?? "new file"`)
	refused("v1.1.0-snapshot", "")
}

// An archive's bytes are those of the files' names, modes and contents and of the time, and of nothing else.
func TestArchivesAreReproducible(t *testing.T) {
	t.Parallel()
	modified := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("there", 3600))
	for _, name := range []string{"a.tar.gz", "a.zip"} {
		var archives [2][]byte
		for i := range archives {
			dir := t.TempDir()
			program := filepath.Join(dir, "built")
			if err := os.WriteFile(
				program, bytes.Repeat([]byte("program"), 1000), 0o600+os.FileMode(i)*0o100,
			); err != nil {
				t.Fatal(err)
			}
			files := []file{
				{name: "program", source: program, mode: 0o755},
				{name: "LICENSE", content: []byte("free"), mode: 0o644},
			}
			at := modified
			if i == 1 {
				at = modified.UTC() // the same moment elsewhere
			}
			if err := pack(filepath.Join(dir, name), files, at); err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			archives[i] = raw
		}
		if !bytes.Equal(archives[0], archives[1]) {
			t.Errorf("%s: two archives of the same files differ", name)
		}
	}
}

// The manifest at the top of the repository lists every platform; one without its archive, or an archive that it does
// not list, is an error rather than a release that cannot be installed.
func TestManifest(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "..", manifestName))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, p := range platforms {
		if _, err := renderManifest(string(raw), "v1.2.3", dir); err == nil {
			t.Errorf("it was rendered before the archive for %s was there", p)
		}
		if err := os.WriteFile(filepath.Join(dir, p.archive("v1.2.3")), []byte(p.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rendered, err := renderManifest(string(raw), "v1.2.3", dir)
	if err != nil {
		t.Fatal(err)
	}
	const want = `
    bin: kubectl-gpu_fault.exe
    uri: https://github.com/gpu-fault/kubectl-gpu-fault/releases/download/v1.2.3/kubectl-gpu_fault_v1.2.3_windows_amd64.zip
    sha256: d281669be660381d01dfecb46012c15f818ea4d32ddbc7049c928d1ca44ed6d6`
	if !strings.Contains(string(rendered), want) || !strings.HasPrefix(string(rendered), "apiVersion:") {
		t.Errorf("rendered:\n%s", rendered)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubectl-gpu_fault_v1.2.3_plan9_amd64.tar.gz"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = renderManifest(string(raw), "v1.2.3", dir)
	if err == nil || !strings.Contains(err.Error(), "does not list kubectl-gpu_fault_v1.2.3_plan9_amd64.tar.gz") {
		t.Errorf("an archive that is not listed: %v", err)
	}
}

// What was changed stands below the verb that it concerns, without saying it twice.
func TestNotes(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string][2]string{
		"xid: --mig":                          {"xid", "--mig"},
		"xid, runtime: both":                  {"xid", "xid, runtime: both"},
		"scenario start, submit: words":       {"scenario", "scenario start, submit: words"},
		"Shim: 57 ways":                       {"cuda", "Shim: 57 ways"},
		"README: a screen":                    {"Documentation", "README: a screen"},
		"Mend what review found: two signals": {"Everything else", "Mend what review found: two signals"},
		"no prefix":                           {"Everything else", "no prefix"},
	} {
		if heading, text := classify(subject); heading != want[0] || text != want[1] {
			t.Errorf("%q is %q below %q, want %v", subject, text, heading, want)
		}
	}
	text := renderNotes("v1.1.0", "v1.0.0", "abc", "go1.26.8", []string{"doctor: b", "xid: a", "xid: a"})
	if xid, doctor := strings.Index(text, "## xid\n\n- a\n\n"), strings.Index(text, "## doctor\n\n- b\n"); xid < 0 ||
		doctor < xid {
		t.Errorf("headings or their order:\n%s", text)
	}
	if !strings.Contains(text, "since v1.0.0") {
		t.Errorf("no word on the release before:\n%s", text)
	}
}

// Every license of a dependency is passed on, once; one without a license is not.
func TestNotices(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a/LICENSE": "free", "a/pkg/x.go": "", "a/third_party/y/LICENSE.md": "free too", "a/third_party/y/y.go": "",
		"a/license.go": "package a",
		"b/COPYING":    "free\r\n", "b/NOTICE": "by b", "c/README": "",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	found := notices{}
	for _, p := range [][3]string{
		{"b v1", in("b"), in("b")}, {"a v1", in("a"), in("a/pkg")}, {"a v1", in("a"), in("a/third_party/y")},
	} {
		if err := found.add(p[0], p[1], p[2]); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := found.text()
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for _, want := range []string{"\na v1\nb v1\n---", "\n\nfree\n", "\n\nfree too\n", "\n\nby b\n"} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, text)
		}
	}
	if strings.Contains(text, "package a") {
		t.Error("a program was taken for a license")
	}
	if err := found.add("c v1", in("c"), in("c")); err == nil || !strings.Contains(err.Error(), "c v1 has no license") {
		t.Errorf("a module without a license: %v", err)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	if all, err := choose(""); err != nil || len(all) != len(platforms) {
		t.Errorf("all: %v %v", all, err)
	}
	two, err := choose("linux/arm64,windows/amd64")
	if err != nil || len(two) != 2 || two[1].archive("v1.0.0") != "kubectl-gpu_fault_v1.0.0_windows_amd64.zip" {
		t.Errorf("two: %v %v", two, err)
	}
	if _, err := choose("linux/s390x"); err == nil || !strings.Contains(err.Error(), "is not supported") {
		t.Errorf("a platform that is not released: %v", err)
	}
}
