//go:build linux

package guard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// TestOutcomes: what becomes of a file, by what is there: with the node's record, when another client's content is to
// go, and when the record was removed but its dead man lives.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		from, to string
		now      string // "" removes it
		want     deadman.Outcome
	}{
		"ours":                       {original, "after", "after", deadman.OutcomeRestored},
		"put back by somebody":       {original, "after", original, deadman.OutcomeAlready},
		"somebody else's":            {original, "after", "theirs", deadman.OutcomeSuperseded},
		"deleted by somebody":        {original, "after", "", deadman.OutcomeSuperseded},
		"created by us":              {"", "after", "after", deadman.OutcomeRestored},
		"created, and removed":       {"", "after", "", deadman.OutcomeAlready},
		"created, and changed":       {"", "after", "theirs", deadman.OutcomeSuperseded},
		"deleted by us":              {original, "", "", deadman.OutcomeRestored},
		"deleted, and made again":    {original, "", original, deadman.OutcomeAlready},
		"deleted, and made anew":     {original, "", "theirs", deadman.OutcomeSuperseded},
		"ours, what an edit leaves":  {original, "a", "a", deadman.OutcomeRestored},
		"half of what we wrote":      {original, "after", "aft", deadman.OutcomeSuperseded},
		"both of them, one behind":   {original, "after", original + "after", deadman.OutcomeSuperseded},
		"an empty file":              {original, "after", "\n", deadman.OutcomeSuperseded},
		"with and without a newline": {original, "after", "after\n", deadman.OutcomeSuperseded},
	} {
		for _, how := range []string{"record", "overwriting", "dead man", "encrypted"} {
			t.Run(name+" by "+how, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t).encryptedIf(how == "encrypted")
				path := w.at("etc/config.toml")
				if tc.from == "" {
					_ = os.Remove(path)
				}
				before := w.look()
				w.change(
					deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", tc.from, tc.to)}},
				)
				if tc.now == "" {
					_ = os.Remove(path)
				} else if tc.now != tc.to {
					w.put("etc/config.toml", tc.now)
				}
				if how == "dead man" {
					if err := os.RemoveAll(w.Dir); err != nil {
						t.Fatal(err)
					}
				}
				want := tc.want
				if how == "overwriting" && want == deadman.OutcomeSuperseded {
					want = deadman.OutcomeRestored
				}
				r := w.restore(deadman.Restore{Overwrite: how == "overwriting"})
				got := deadman.RestoredFile{Outcome: want, Now: []byte(tc.now), Deleted: tc.now == ""}
				if how == "dead man" {
					if len(r.Files) != 0 || !r.Told {
						t.Errorf("%+v: without a record only the dead man restores, and what it did is not known", r)
					}
				} else {
					got = r.Files[0]
				}
				if got.Overwritten != (want != tc.want) {
					t.Errorf("%+v does not say whether somebody's content is gone", got)
				}
				if got.Outcome != want || r.RecordMissing != (how == "dead man") {
					t.Errorf("%+v, want %s", r, want)
				}
				text, err := os.ReadFile(path)
				switch {
				case want != deadman.OutcomeSuperseded:
					w.same(before)
				case string(text) != tc.now || string(got.Now) != tc.now ||
					got.Deleted != errors.Is(err, os.ErrNotExist):
					t.Errorf("%q lies there, %+v; theirs was %q", text, got, tc.now)
				}
				if exists(w.Dir) || len(w.guards(w.run)) != 0 {
					t.Error("the record or the dead man is left")
				}
			})
		}
	}
}

// TestWithoutRecord: a run that the node knows nothing of changes nothing, whatever the cluster says of it.
func TestWithoutRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.look()
	r := w.restore(deadman.Restore{Overwrite: true})
	if !r.RecordMissing || r.Told || len(r.Files) != 0 || r.Restarted || w.restarts() != 0 {
		t.Errorf("%+v", r)
	}
	w.same(before)
}

// TestOnePathOfManyIsRefused: a directory that others can write by now costs only its own file; one that is gone has
// no file to restore.
func TestOnePathOfManyIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		do    func(w *world) error
		wrong string
	}{
		"writable for all": {
			func(w *world) error { return os.Chmod(w.at("etc/conf.d"), 0o777) }, "writable by all users",
		},
		"writable for a group": {func(w *world) error {
			return errors.Join(os.Chown(w.at("etc/conf.d"), -1, 34), os.Chmod(w.at("etc/conf.d"), os.ModeSticky|0o775))
		}, "writable by group 34"},
		"writable for root's group": {func(w *world) error { return os.Chmod(w.at("etc/conf.d"), 0o775) }, ""},
		"a link": {func(w *world) error {
			return errors.Join(os.Rename(w.at("etc/conf.d"), w.at("etc/moved.d")),
				os.Symlink("moved.d", w.at("etc/conf.d")))
		}, "is a symbolic link"},
		"a file that others can write": {
			func(w *world) error { return os.Chmod(w.at("etc/conf.d/98-new.toml"), 0o666) },
			"98-new.toml is writable by all users",
		},
		"another user's file": {
			func(w *world) error { return os.Chown(w.at("etc/conf.d/98-new.toml"), 1000, 0) },
			"98-new.toml does not belong to root",
		},
		"a pipe": {func(w *world) error {
			return errors.Join(os.Remove(w.at("etc/conf.d/98-new.toml")),
				unix.Mkfifo(w.at("etc/conf.d/98-new.toml"), 0o600))
		}, "98-new.toml is not a regular file"},
		"gone": {func(w *world) error { return os.RemoveAll(w.at("etc/conf.d")) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if os.Geteuid() != 0 {
				t.Skip("changes the owners of files: run the tests as root")
			}
			w := newWorld(t)
			w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{
				w.edit("etc/conf.d/98-new.toml", "", "new\n"), w.edit("etc/config.toml", original, "after"),
			}})
			if err := test.do(w); err != nil {
				t.Fatal(err)
			}
			r, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{})
			if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("%+v, %v, want %q", r, err, test.wrong)
			}
			if text, _ := os.ReadFile(w.at("etc/config.toml")); string(text) != original {
				t.Errorf("the other file is not restored: %q", text)
			}
			if exists(w.at("etc/moved.d")) {
				_ = errors.Join(os.Remove(w.at("etc/conf.d")), os.Rename(w.at("etc/moved.d"), w.at("etc/conf.d")))
			}
			_ = os.MkdirAll(w.at("etc/conf.d"), 0o755)
			_ = os.Chmod(w.at("etc/conf.d"), 0o755)
			if test.wrong != "" && exists(w.at("etc/conf.d/98-new.toml")) {
				_ = os.Remove(w.at("etc/conf.d/98-new.toml"))
				_ = os.WriteFile(w.at("etc/conf.d/98-new.toml"), []byte("new\n"), 0o600)
			}
			w.restore(deadman.Restore{})
			if exists(w.at("etc/conf.d/98-new.toml")) {
				t.Error("the file that the run created is left")
			}
		})
	}
}

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

// TestRecordOfAnotherUser: a record that others than root can write is not followed.
func TestRecordOfAnotherUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", original, "after")}})
	if err := os.Chmod(w.Dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{})
	if err == nil || !strings.Contains(err.Error(), "not owned exclusively by root") {
		t.Errorf("got %v", err)
	}
	if text, _ := os.ReadFile(w.at("etc/config.toml")); string(text) != "after" {
		t.Errorf("the file was restored: %q", text)
	}
}

// TestAnotherProcess: a process in a container that calls itself a dead man is not taken for one.
func TestAnotherProcess(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("creates a mount namespace: run the tests as root")
	}
	w := newWorld(t)
	for mounts, want := range map[string]int{"its own": 0, "the node's": 1} {
		// A shell that runs the script "guard", which waits for its input to end.
		cmd := &exec.Cmd{Path: "/bin/bash", Args: []string{argv0(w.run), "guard", w.run}}
		script := w.at("guard")
		if err := os.WriteFile(script, []byte("read -r -t 60\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd.Dir = w.base
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if mounts == "its own" {
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if found := w.guards(w.run); len(found) != want {
			t.Errorf("with %s mounts: %v, want %d dead men", mounts, found, want)
		}
		_ = stdin.Close()
		_ = cmd.Wait()
	}
}

// TestKilledAnywhere: the dead man is killed at each point of its life, and so is who restores; another restore then
// makes all as it was.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	for _, point := range []string{
		"armed", "wrote 0", "wrote 1", "wrote 2", "written", "restarted", "applied", "waiting",
	} {
		plainAndEncrypted(t, point, func(w *world) {
			t := w.T
			change := w.all()
			before := w.look()
			w.Env = append(w.Env, killEnv+"="+point)
			s, err := Change(t.Context(), w.Host, w.run, change, func(deadman.Status) error { return nil })
			var failure *Error
			if late := point == "applied" ||
				point == "waiting"; !late && (!errors.As(err, &failure) || failure.Code != CodeGone) || s == nil {
				t.Errorf("%+v, %v", s, err)
			}
			w.until("it is killed", func() bool { return len(w.guards(w.run)) == 0 })
			w.restore(deadman.Restore{})
			w.same(before)
			if serving, _ := os.ReadFile(w.at("serving")); string(serving) != original {
				t.Errorf("the service has %q", serving)
			}
		})
	}
	for _, point := range []string{
		"planned", "unpacked", "put back 0", "put back 1", "put back 2", "restarted back", "healed",
	} {
		plainAndEncrypted(t, "healing, "+point, func(w *world) {
			t := w.T
			if point == "unpacked" && !w.encrypts() {
				return
			}
			change := w.all()
			before := w.look()
			change.TTL = time.Second
			w.Env = append(w.Env, killEnv+"="+point)
			w.change(change)
			w.until("it is killed", func() bool { return len(w.guards(w.run)) == 0 })
			r := w.restore(deadman.Restore{})
			for _, f := range r.Files {
				if f.Outcome != deadman.OutcomeRestored {
					t.Errorf("%+v", f)
				}
			}
			w.same(before)
			if serving, _ := os.ReadFile(w.at("serving")); string(serving) != original {
				t.Errorf("the service has %q", serving)
			}
		})
	}
}

// TestRestoreInterrupted: the answer gets lost, or the restorer is stopped, at each point; asked again, it says what
// became of the files.
func TestRestoreInterrupted(t *testing.T) {
	t.Parallel()
	for _, point := range []string{
		"planned", "unpacked", "put back 0", "put back 1", "put back 2", "restarted back", "put back", "result kept",
	} {
		plainAndEncrypted(t, point, func(w *world) {
			t := w.T
			if point == "unpacked" && !w.encrypts() {
				return
			}
			change := w.all()
			before := w.look()
			w.change(change)
			stopped := w.Host
			stopped.Passed = func(at string) {
				if at == point {
					panic(at)
				}
			}
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the point was not passed")
					}
				}()
				_, _ = Restore(t.Context(), stopped, w.run, deadman.Restore{})
			}()
			r := w.restore(deadman.Restore{})
			for _, f := range r.Files {
				if f.Outcome != deadman.OutcomeRestored {
					t.Errorf("%+v", f)
				}
			}
			w.same(before)
		})
	}
}

// TestTwoRestores: at once, also with the dead man's own.
func TestTwoRestores(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	change := w.all()
	before := w.look()
	change.TTL = time.Second
	s := w.change(change)
	time.Sleep(time.Until(s.Until.Add(-20 * time.Millisecond)))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	w.restore(deadman.Restore{Forget: true})
	w.same(before)
	if w.restarts() != 2 {
		t.Errorf("%d restarts", w.restarts())
	}
}

// TestServiceDoesNotComeBack: it is said, the record stays, and trying again is possible.
func TestServiceDoesNotComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.look()
	change := deadman.Change{
		TTL: time.Hour, Service: w.service(), Files: []deadman.File{w.edit("etc/config.toml", original, "after")},
	}
	w.change(change)
	w.put("broken", "")
	ask := deadman.Restore{}
	r, err := Restore(t.Context(), w.Host, w.run, ask)
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != CodeService || r == nil ||
		r.Files[0].Outcome != deadman.OutcomeRestored || r.CRI != nil || !exists(w.dir(w.run)) {
		t.Fatalf("%+v, %v", r, err)
	}
	_ = os.Remove(w.at("broken"))
	if r = w.restore(ask); r.CRI == nil || !r.SameConfig || r.Files[0].Outcome != deadman.OutcomeRestored {
		t.Errorf("%+v", r)
	}
	w.same(before)
}

func TestTorn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		data, from, to string
		want           bool
	}{
		"begun":                        {"new456", "123456", "newnew", true},
		"written, not cut":             {"new456", "123456", "new", true},
		"grown in part":                {"12345abc", "12345", "12345abcdef", true},
		"the way back":                 {"12w", "123", "new", true},
		"theirs":                       {"neX456", "123456", "newnew", false},
		"theirs, as a longer one":      {"new4567", "123456", "new", false},
		"empty, of one that has grown": {"", "1", "2", false},
	} {
		if got := isTorn([]byte(tc.data), []byte(tc.from), []byte(tc.to)); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
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

// TestBootUnit: systemd takes it, and it goes with the record.
func TestBootUnit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := os.MkdirAll(w.Systemd, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(w.Units+"/multi-user.target.wants", 0o755); err != nil {
		t.Fatal(err)
	}
	before := w.look()
	change := deadman.Change{
		TTL: time.Hour, Service: w.service(), BootRestore: true,
		Files: []deadman.File{w.edit("etc/config.toml", original, "after")},
	}
	w.change(change)
	unit := w.bootUnit(w.run)
	if target, err := os.Readlink(unit.link); err != nil || target != unit.path {
		t.Errorf("%q, %v", target, err)
	}
	if verify, err := exec.LookPath("systemd-analyze"); err == nil {
		if out, err := exec.Command(verify, "verify", "--man=no", unit.path).CombinedOutput(); err != nil ||
			strings.Contains(string(out), unit.path) {
			t.Logf("systemd-analyze: %v: %s", err, out)
			if strings.Contains(string(out), unit.path) {
				t.Error("systemd does not take the unit")
			}
		}
	}
	w.restore(deadman.Restore{})
	w.same(before)
}

// TestLeftovers: all is found; cleaning removes what may go, and leaves a record whose files are still changed.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.look()
	w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", original, "after")}})
	w.put("etc/.other-before-0.gpu-fault", "prepared")
	w.put("etc/systemd/system/gpu-fault-other.service", "unit")
	if err := os.MkdirAll(w.Foreign[0], 0o755); err != nil {
		t.Fatal(err)
	}
	kinds := func(clean bool, keep ...string) map[string]bool {
		left, err := Leftovers(t.Context(), w.Host, clean, keep)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, l := range left {
			if l.Run == w.run || l.Kind != deadman.LeftoverDeadMan { // other tests have theirs
				found[l.Kind] = l.Removed
			}
			if l.Kind == deadman.LeftoverRecord && clean && len(keep) == 0 && !l.Removed &&
				!strings.Contains(l.Problem+l.Status.Message, "still changed") {
				t.Errorf("%+v", l)
			}
		}
		return found
	}
	equal := func(what string, got, want map[string]bool) {
		t.Helper()
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
		for kind, removed := range want {
			if is, ok := got[kind]; !ok || is != removed {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
	}
	all := map[string]bool{
		deadman.LeftoverRecord: false, deadman.LeftoverDeadMan: false, deadman.LeftoverPrepared: false,
		deadman.LeftoverBootUnit: false, deadman.LeftoverForeign: false,
	}
	equal("looked", kinds(false), all)
	all[deadman.LeftoverForeign] = true
	equal("cleaned but for the kept", kinds(true, w.run, "other"), all)
	delete(all, deadman.LeftoverForeign)
	all[deadman.LeftoverPrepared], all[deadman.LeftoverBootUnit] = true, true
	equal("cleaned", kinds(true), all)
	if r, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{}); err != nil ||
		r.Files[0].Outcome != deadman.OutcomeRestored {
		t.Errorf("%+v, %v", r, err)
	}
	equal("cleaned of a result that nobody fetched", kinds(true), map[string]bool{deadman.LeftoverRecord: true})
	w.same(before)
}

// TestAFileMountedOverIsNotTakenForTheOriginal holds that a file that is mounted over a changed one after the change is
// not restored in its place: without Overwrite, the restore fails, and with it, the mount goes.
func TestAFileMountedOverIsNotTakenForTheOriginal(t *testing.T) {
	t.Parallel()
	plainAndEncrypted(t, "mounted", func(w *world) {
		t := w.T
		before := w.look()
		path := w.at("etc/config.toml")
		w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", original, "after")}})
		for _, name := range []string{"one", "two"} {
			cover := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(cover, []byte(original), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(cover, path, "", unix.MS_BIND, ""); err != nil {
				t.Skipf("mounts a file: run the tests as root: %v", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
		}
		r, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{})
		if err == nil || !strings.Contains(err.Error(), "mounted over the file") {
			t.Errorf("%+v, %v", r, err)
		}
		w.restore(deadman.Restore{Overwrite: true})
		w.same(before)
	})
}
