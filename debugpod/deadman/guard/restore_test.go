//go:build linux

package guard

import (
	"errors"
	"os"
	"os/exec"
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
