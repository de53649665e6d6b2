//go:build linux

package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// accessList returns a POSIX access control list that lets user 1000 write, as the kernel has it.
func accessList() []byte {
	list := binary.LittleEndian.AppendUint32(nil, 2)
	for _, entry := range [][3]uint32{
		{1, 7, 0xffffffff}, {2, 7, 1000}, {4, 5, 0xffffffff}, {0x10, 7, 0xffffffff}, {0x20, 5, 0xffffffff},
	} {
		list = binary.LittleEndian.AppendUint16(list, uint16(entry[0]))
		list = binary.LittleEndian.AppendUint16(list, uint16(entry[1]))
		list = binary.LittleEndian.AppendUint32(list, entry[2])
	}
	return list
}

// TestResolve: a way that anybody but root can redirect is refused, so that no tenant chooses which file root writes.
func TestResolve(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("changes the owners of files: run the tests as root")
	}
	base := t.TempDir()
	at := func(path string) string { return filepath.Join(base, path) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"etc/containerd", "volume/sub", "group", "sticky", "admins", "list", "other"} {
		must(os.MkdirAll(at(dir), 0o755))
	}
	must(os.WriteFile(at("etc/containerd/config.toml"), nil, 0o600))
	must(os.Symlink("config.toml", at("etc/containerd/link.toml")), os.Symlink("containerd", at("etc/linked")))
	must(os.Symlink("config.toml", at("etc/containerd/theirs.toml")),
		os.Lchown(at("etc/containerd/theirs.toml"), 1000, 1000))
	must(os.Symlink("nowhere.toml", at("etc/containerd/dangling.toml")))
	must(os.Chmod(at("volume"), os.ModeSticky|0o777))
	must(os.Chmod(at("admins"), 0o775))
	must(os.Chown(at("group"), 0, 34), os.Chmod(at("group"), 0o775))
	must(os.Chown(at("sticky"), 0, 34), os.Chmod(at("sticky"), os.ModeSticky|0o775))
	must(os.Chown(at("other"), 1000, 1000))
	byList := "writable by others according to its access control list"
	if err := unix.Setxattr(at("list"), "system.posix_acl_access", accessList(), 0); err != nil {
		t.Logf("access control lists are not tested: %v", err)
		byList = "list/config.toml"
	}
	must(os.Symlink(at("etc/containerd"), at("absolute")))
	must(os.Symlink("../../etc/containerd/config.toml", at("volume/sub/innocent.toml")))
	must(os.Symlink("../../volume/config.toml", at("etc/containerd/volume.toml")))
	must(os.Symlink("loop", at("loop")), os.Symlink("/", at("outside")), os.Symlink("../etc", at("etc/up")),
		os.Symlink("..", at("etc/parent")))
	for path, want := range map[string]string{ // where it leads, or why it is refused
		"etc/containerd/config.toml":         "etc/containerd/config.toml",
		"etc/containerd/new.toml":            "etc/containerd/new.toml",
		"admins/config.toml":                 "admins/config.toml",
		"etc/containerd/link.toml":           "etc/containerd/config.toml",
		"etc/linked/config.toml":             "etc/containerd/config.toml",
		"etc/up/up/containerd/config.toml":   "etc/containerd/config.toml",
		"absolute/link.toml":                 "etc/containerd/config.toml",
		"etc/containerd/theirs.toml":         "theirs.toml does not belong to root",
		"etc/containerd/dangling.toml":       "no such file",
		"etc/containerd/config.toml/more":    "is not a directory",
		"etc/nowhere/config.toml":            "no such file",
		"volume/config.toml":                 "writable by all users",
		"volume/sub/config.toml":             "writable by all users",
		"volume/sub/innocent.toml":           "writable by all users",
		"etc/containerd/volume.toml":         "writable by all users",
		"group/config.toml":                  "writable by group 34",
		"sticky/config.toml":                 "writable by group 34",
		"list/config.toml":                   byList,
		"other/config.toml":                  "other does not belong to root",
		"etc/parent":                         "is a directory",
		"loop/config.toml":                   "too many symbolic links",
		"outside/etc/containerd/config.toml": "is not below",
		"../elsewhere":                       "is not below",
	} {
		for _, h := range []Host{{Root: base}, {Root: base, oldKernel: true}} {
			real, _, err := h.resolve(at(path))
			if err == nil && real != at(want) || err != nil && !strings.Contains(err.Error(), want) || want == "" {
				t.Errorf("%s: %q, %v, want %q", path, real, err, want)
			}
			// The path that was found has no links; another one that leads there is not opened.
			f, err := h.file(at(path), refuseLinks)
			if hasLinks := at(path) != real; real != "" && (err == nil) == hasLinks {
				t.Errorf("%s, which leads to %s, is opened without following links: %v", path, real, err)
			}
			if err == nil {
				f.close()
			}
		}
	}
}

// TestOpensNothingThatOthersCanChange: the file itself is verified by the descriptor that is then used.
func TestOpensNothingThatOthersCanChange(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("changes the owners of files: run the tests as root")
	}
	for name, test := range map[string]struct {
		do   func(path string) error
		want string
	}{
		"root's":               {func(string) error { return nil }, ""},
		"root's and its group": {func(path string) error { return os.Chmod(path, 0o664) }, ""},
		"a group's": {
			func(path string) error { return errors.Join(os.Chown(path, 0, 34), os.Chmod(path, 0o660)) },
			"writable by group 34",
		},
		"a group's to read": {
			func(path string) error { return errors.Join(os.Chown(path, 0, 34), os.Chmod(path, 0o640)) }, "",
		},
		"every user's":   {func(path string) error { return os.Chmod(path, 0o602) }, "writable by all users"},
		"another user's": {func(path string) error { return os.Chown(path, 1000, 0) }, "does not belong to root"},
		"a link": {func(path string) error {
			return errors.Join(os.Rename(path, path+moved), os.Symlink(filepath.Base(path)+moved, path))
		}, "is a symbolic link"},
		"a pipe": {
			func(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
			"not a regular file",
		},
		"a directory": {
			func(path string) error {
				return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
			}, "not a regular file",
		},
	} {
		for _, oldKernel := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", old kernel: ", oldKernel), func(t *testing.T) {
				t.Parallel()
				h := Host{Root: t.TempDir(), oldKernel: oldKernel}
				path := filepath.Join(h.Root, "f")
				if err := errors.Join(os.WriteFile(path, []byte("content"), 0o600), test.do(path)); err != nil {
					t.Fatal(err)
				}
				d, err := h.directory(h.Root, refuseLinks)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = d.Close() }()
				f := file{d, "f"}
				now, readErr := f.read()
				if test.want == "" {
					if readErr != nil || string(now.data) != "content" {
						t.Errorf("%q, %v", now.data, readErr)
					}
					return
				}
				if readErr == nil || !strings.Contains(readErr.Error(), test.want) {
					t.Errorf("got %v, want %q", readErr, test.want)
				}
				if f.overwrite([]byte("x"), nil) == nil {
					t.Error("it was written to")
				}
			})
		}
	}
}

// TestSwapped: a directory or a file that becomes a link between any two steps redirects nothing; the other files are
// changed and restored all the same, and once the link is gone, so is this one.
func TestSwapped(t *testing.T) {
	t.Parallel()
	const name = "etc/conf.d/99-old.toml"
	for point, test := range map[string]struct {
		inChange bool
		want     string // why the step fails; empty: it is done where the directory was
	}{
		"resolved 0":     {true, "is a symbolic link"},
		"armed":          {true, "is a symbolic link"},
		"writing 0":      {true, ""},
		"planned":        {false, "is a symbolic link"},
		"putting back 0": {false, ""},
	} {
		for _, what := range []string{"etc/conf.d", name} {
			for _, inPlace := range []bool{false, true} {
				t.Run(fmt.Sprint(what, " at ", point, ", in place: ", inPlace), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t)
					w.put(name, "old\n")
					if inPlace {
						if err := os.Link(w.at(name), w.at("etc/conf.d/another-name")); err != nil {
							t.Fatal(err)
						}
					}
					before := w.look()
					// Where the link leads, the step finds just what it expects.
					expected := map[bool]string{true: "old\n", false: "after"}[test.inChange]
					if err := errors.Join(
						os.Mkdir(w.at("victim"), 0o755),
						os.WriteFile(w.at("victim/99-old.toml"), []byte(expected), 0o600),
					); err != nil {
						t.Fatal(err)
					}
					target := strings.Replace(w.at(what), w.at("etc/conf.d"), w.at("victim"), 1)
					change := deadman.Change{
						TTL: time.Hour,
						Files: []deadman.File{
							w.edit(name, "old\n", "after"), w.edit("etc/config.toml", original, "after"),
						},
					}
					h := w.Host
					if test.inChange {
						h.Passed = swapAt(point, w.at(what), target)
						h.Env = append(h.Env, swapEnv+"="+strings.Join([]string{point, w.at(what), target}, "|"))
					}
					status, err := Change(t.Context(), h, w.run, change, func(deadman.Status) error { return nil })
					if !test.inChange {
						if err != nil || status.Phase != deadman.PhaseApplied {
							t.Fatalf("%+v, %v", status, err)
						}
						h.Passed = swapAt(point, w.at(what), target)
						_, err = Restore(t.Context(), h, w.run, deadman.Restore{})
					}
					said := fmt.Sprint(err)
					if status != nil {
						said += status.Message
					}
					// The name in an open directory is still looked up by each step: the link is found.
					want := test.want
					if what == name {
						want = "is a symbolic link"
					}
					if !exists(w.at(what)+moved) || !strings.Contains(said, want) || want == "" && err != nil {
						t.Errorf("got %q, want %q", said, want)
					}
					if text, _ := os.ReadFile(w.at("victim/99-old.toml")); string(text) != expected {
						t.Errorf("the link was followed: it leads to %q", text)
					}
					entries, _ := os.ReadDir(w.at("victim"))
					if len(entries) != 1 {
						t.Errorf("files were created behind the link: %v", entries)
					}
					config, _ := os.ReadFile(w.at("etc/config.toml"))
					if changed := test.inChange && want == ""; (string(config) == "after") != changed {
						t.Errorf("the other file has %q", config)
					}
					if err := errors.Join(
						os.Remove(w.at(what)), os.Rename(w.at(what)+moved, w.at(what)), os.RemoveAll(w.at("victim")),
					); err != nil {
						t.Fatal(err)
					}
					w.restore(deadman.Restore{})
					w.same(before)
				})
			}
		}
	}
}
