//go:build linux

package guard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// TestTheScriptIsKept: what is left of a damaged record still knows how the node was, and is named.
func TestTheScriptIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", original, "after")}})
	if err := errors.Join(w.endGuards(t.Context(), w.run), os.Remove(w.dir(w.run)+"/"+recordFile)); err != nil {
		t.Fatal(err)
	}
	if r := w.restore(deadman.Restore{}); !r.RecordMissing || r.Script != w.dir(w.run)+"/"+scriptFile {
		t.Errorf("%+v", r)
	}
	runScript(t, w, "sh", "boot")
	if text, _ := os.ReadFile(w.at("etc/config.toml")); string(text) != original {
		t.Errorf("the script left %q", text)
	}
}

func runScript(t *testing.T, w *world, shell string, args ...string) string {
	t.Helper()
	words := append(strings.Fields(shell), w.dir(w.run)+"/"+scriptFile)
	if _, err := exec.LookPath(words[0]); err != nil {
		t.Skipf("%s is not there", words[0])
	}
	out, err := exec.Command(words[0], append(words[1:], args...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v: %s", shell, err, out)
	}
	return string(out)
}

// TestScript: with any shell, restore.sh does by hand what a restore does, twice too, and leaves what is not ours.
func TestScript(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"sh", "bash", "dash", "busybox sh"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			change := w.all()
			change.Service = nil // its systemctl is the machine's
			before := w.look()
			w.change(change)
			said := runScript(t, w, shell, "boot")
			for _, want := range []string{"config.toml restored", "all files are restored"} {
				if !strings.Contains(said, want) {
					t.Errorf("it says %s", said)
				}
			}
			w.until("the dead man has ended", func() bool { return len(w.guards(w.run)) == 0 })
			w.same(before)

			w.change(change)
			w.put("etc/config.toml", "theirs")
			cmd := exec.Command(strings.Fields(shell)[0],
				append(strings.Fields(shell)[1:], w.dir(w.run)+"/"+scriptFile)...)
			out, err := cmd.CombinedOutput()
			if text, _ := os.ReadFile(w.at("etc/config.toml")); err == nil || string(text) != "theirs" ||
				!strings.Contains(string(out), "another client") || !exists(w.dir(w.run)) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestScriptFollowsNoLink: the script restores nothing that another user could have chosen; it restores the other
// files.
func TestScriptFollowsNoLink(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("changes the owners of files: run the tests as root")
	}
	const path = "etc/conf.d/99-old.toml"
	for name, plant := range map[string]func(w *world) error{
		"a file": func(w *world) error {
			return errors.Join(os.Remove(w.at(path)), os.Symlink(w.at("victim/99-old.toml"), w.at(path)))
		},
		"a dangling link": func(w *world) error {
			return errors.Join(os.Remove(w.at(path)), os.Symlink(w.at("victim/new"), w.at(path)))
		},
		"a directory": func(w *world) error {
			return errors.Join(os.RemoveAll(w.at("etc/conf.d")), os.Symlink(w.at("victim"), w.at("etc/conf.d")))
		},
		"every user's directory": func(w *world) error { return os.Chmod(w.at("etc/conf.d"), os.ModeSticky|0o777) },
		"a group's directory": func(w *world) error {
			return errors.Join(os.Chown(w.at("etc/conf.d"), 0, 34), os.Chmod(w.at("etc/conf.d"), 0o775))
		},
		"another user's directory": func(w *world) error { return os.Chown(w.at("etc/conf.d"), 1000, 0) },
		"another user's file":      func(w *world) error { return os.Chown(w.at(path), 1000, 0) },
		"every user's file":        func(w *world) error { return os.Chmod(w.at(path), 0o666) },
		"another user's way": func(w *world) error {
			return errors.Join(os.Chown(w.at("etc"), 1000, 0), os.WriteFile(w.at("victim/alone"), nil, 0o600))
		},
	} {
		for _, shell := range []string{"sh", "bash", "dash", "busybox sh"} {
			for _, inPlace := range []bool{false, true} {
				if inPlace && shell != "sh" {
					continue
				}
				t.Run(fmt.Sprint(name, " with ", shell, ", in place: ", inPlace), func(t *testing.T) {
					t.Parallel()
					if _, err := exec.LookPath(strings.Fields(shell)[0]); err != nil {
						t.Skipf("%s not found: install it, as hack/install-tools.sh does", strings.Fields(shell)[0])
					}
					w := newWorld(t)
					w.put(path, "old\n")
					if inPlace {
						if err := os.Link(w.at(path), w.at("etc/conf.d/another-name")); err != nil {
							t.Fatal(err)
						}
					}
					w.change(deadman.Change{
						TTL: time.Hour,
						Files: []deadman.File{
							w.edit(path, "old\n", "after"), w.edit("etc/config.toml", original, "after"),
						},
					})
					if err := errors.Join(
						os.Mkdir(w.at("victim"), 0o755),
						os.WriteFile(w.at("victim/99-old.toml"), []byte("after"), 0o600), plant(w),
					); err != nil {
						t.Fatal(err)
					}
					// Without the search for the dead man, which forks for each process of the machine.
					script, err := os.ReadFile(w.dir(w.run) + "/" + scriptFile)
					if err != nil {
						t.Fatal(err)
					}
					script = bytes.ReplaceAll(script, []byte("in '/proc'/[0-9]*"), []byte("in /nowhere"))
					if err := os.WriteFile(w.at("script"), script, 0o600); err != nil {
						t.Fatal(err)
					}
					words := append(strings.Fields(shell), w.at("script"), "boot")
					out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
					if err == nil || !strings.Contains(string(out), w.at(path)+" is not restored") ||
						!exists(w.dir(w.run)) {
						t.Errorf("%v: %s", err, out)
					}
					if text, _ := os.ReadFile(w.at("victim/99-old.toml")); string(text) != "after" ||
						exists(w.at("victim/new")) {
						t.Errorf("the script followed a link, which now leads to %q: %s", text, out)
					}
					if text, _ := os.ReadFile(w.at("etc/config.toml")); (string(text) == original) == exists(
						w.at("victim/alone"),
					) {
						t.Errorf("the other file has %q: %s", text, out)
					}
				})
			}
		}
	}
}
