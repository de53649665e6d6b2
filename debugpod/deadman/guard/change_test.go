//go:build linux

package guard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// TestWholeLife: files are changed, created and deleted, the service takes it up, and a restore gives back each byte
// and attribute.
func TestWholeLife(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]string{"openat2": "", "before Linux 5.6": "yes", "encrypted": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t).encryptedIf(name == "encrypted")
			w.oldKernel, w.Env = old != "", append(w.Env, oldEnv+"="+old)
			wholeLife(w)
		})
	}
}

func wholeLife(w *world) {
	t := w.T
	change := w.all()
	before := w.look()
	s := w.change(change)
	if !s.Restarted || s.CRI == nil || !strings.Contains(string(s.CRI.Config), "gone") || s.PID == 0 ||
		time.Until(s.Until) < 59*time.Minute {
		t.Errorf("the status is %+v", s)
	}
	if text, _ := os.ReadFile(w.at("etc/conf.d/98-new.toml")); string(text) != "new\n" ||
		exists(w.at("etc/conf.d/99-old.toml")) {
		t.Error("files are not created or deleted")
	}
	r := w.restore(deadman.Restore{})
	for _, f := range r.Files {
		if f.Outcome != deadman.OutcomeRestored {
			t.Errorf("%+v", f)
		}
	}
	if !r.Restarted || !r.SameConfig || r.RecordMissing || r.ByDeadMan != nil || w.restarts() != 2 {
		t.Errorf("restored %+v after %d restarts", r, w.restarts())
	}
	w.same(before)
	if left := w.guards(w.run); len(left) != 0 {
		t.Errorf("dead men are left: %v", left)
	}
}

// TestLinksAndMounts: a file that has several names, or lies behind a link, keeps them.
func TestLinksAndMounts(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(w *world) error{
		"two names": func(w *world) error { return os.Link(w.at("etc/config.toml"), w.at("etc/other-name")) },
		"link": func(w *world) error {
			return errors.Join(os.MkdirAll(w.at("opt"), 0o755), os.Rename(w.at("etc/config.toml"), w.at("opt/real")),
				os.Symlink("../opt/real", w.at("etc/config.toml")))
		},
		"mounted": func(w *world) error {
			if err := os.Rename(w.at("etc/config.toml"), w.at("opt-real")); err != nil {
				return err
			}
			if err := os.WriteFile(w.at("etc/config.toml"), nil, 0o600); err != nil {
				return err
			}
			if err := unix.Mount(w.at("opt-real"), w.at("etc/config.toml"), "", unix.MS_BIND, ""); err != nil {
				w.Skipf("no permission to mount: %v", err)
			}
			w.Cleanup(func() { _ = unix.Unmount(w.at("etc/config.toml"), unix.MNT_DETACH) })
			return nil
		},
	} {
		for _, how := range []string{"record", "ledger", "script", "encrypted"} {
			t.Run(name+" by "+how, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t).encryptedIf(how == "encrypted")
				if err := prepare(w); err != nil {
					t.Fatal(err)
				}
				before := w.look()
				change := deadman.Change{
					TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", original, "shorter\n")},
				}
				w.change(change)
				if text, _ := os.ReadFile(w.at("etc/config.toml")); string(text) != "shorter\n" {
					t.Fatalf("changed to %q", text)
				}
				switch how {
				case "script":
					runScript(t, w, "sh")
				case "ledger":
					if err := os.RemoveAll(w.dir(w.run)); err != nil {
						t.Fatal(err)
					}
					fallthrough
				default:
					w.restore(deadman.Restore{})
				}
				w.same(before)
			})
		}
	}
}

// TestRefused: what is not as the request says is not touched, and nothing is left.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file func(w *world) deadman.File
		code string
	}{
		"another content": {func(w *world) deadman.File { return w.edit("etc/config.toml", "else", "x") }, CodeChanged},
		"not there":       {func(w *world) deadman.File { return w.edit("etc/none.toml", "else", "x") }, CodeChanged},
		"there already":   {func(w *world) deadman.File { return w.edit("etc/config.toml", "", "x") }, CodeChanged},
		"no directory":    {func(w *world) deadman.File { return w.edit("etc/none/x.toml", "", "x") }, CodeFile},
		"not a file":      {func(w *world) deadman.File { return w.edit("etc/conf.d", "x", "y") }, CodeFile},
		"another result": {func(w *world) deadman.File {
			f := w.edit("etc/config.toml", original, "x")
			f.After = patch.Sum(nil)
			return f
		}, CodeFile},
		"edits do not fit": {func(w *world) deadman.File {
			f := w.edit("etc/config.toml", original, "x")
			f.Edits[0].Old[0]++
			return f
		}, CodeFile},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			before := w.look()
			// The first file is fine, and must be left alone all the same.
			_, err := Change(t.Context(), w.Host, w.run,
				deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/first", "", "1"), tc.file(w)}},
				func(deadman.Status) error { return nil })
			var failure *Error
			if !errors.As(err, &failure) || failure.Code != tc.code {
				t.Errorf("got %v, want %s", err, tc.code)
			}
			w.same(before)
		})
	}
}

// TestDiskFull: when there is no room for the record nothing is changed; and when it is full later, it is put back all
// the same.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	for name, encrypted := range map[string]bool{"plain": false, "encrypted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			diskFull(t, encrypted, strings.Repeat("longer\n", 1000))
		})
		t.Run(name+", shorter", func(t *testing.T) {
			t.Parallel()
			diskFull(t, encrypted, "a")
		})
	}
}

func diskFull(t *testing.T, encrypted bool, after string) {
	base := t.TempDir()
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, "size=2m,mode=755"); err != nil {
		t.Skipf("no permission to mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	w := newWorldIn(t, base).encryptedIf(encrypted)
	before := w.look()
	fill := func() {
		f, err := os.Create(w.at("filler"))
		if err != nil {
			t.Fatal(err)
		}
		for block := make([]byte, 4096); err == nil; _, err = f.Write(block) {
		}
		_ = f.Close()
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	change := deadman.Change{
		TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", original, after)},
	}
	fill()
	if _, err := Change(t.Context(), w.Host, w.run, change, func(deadman.Status) error { return nil }); err == nil ||
		!strings.Contains(err.Error(), "no space") {
		t.Errorf("got %v", err)
	}
	_ = os.Remove(w.at("filler"))
	w.same(before)

	w.change(change)
	fill()
	r, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{})
	if err != nil || r.Files[0].Outcome != deadman.OutcomeRestored {
		t.Errorf("%+v, %v", r, err)
	}
	_ = os.Remove(w.at("filler"))
	w.restore(deadman.Restore{Forget: true})
	w.same(before)
}

// TestServiceFails: a change with which the service does not serve is taken back at once, with the reason; unless that
// is wanted.
func TestServiceFails(t *testing.T) {
	t.Parallel()
	for name, mayFail := range map[string]bool{"not wanted": false, "wanted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			before := w.look()
			change := deadman.Change{
				TTL: time.Hour, MayFail: mayFail, Service: w.service(),
				Files: []deadman.File{w.edit("etc/config.toml", original, "bad")},
			}
			s, err := Change(t.Context(), w.Host, w.run, change, func(deadman.Status) error { return nil })
			if err != nil || !strings.Contains(s.ServiceError, "Job for demo.service failed") ||
				!strings.Contains(s.ServiceError, "the last words") || s.CRI != nil {
				t.Fatalf("%+v, %v", s, err)
			}
			want := deadman.PhaseFailed
			if mayFail {
				want = deadman.PhaseApplied
			}
			text, _ := os.ReadFile(w.at("etc/config.toml"))
			if s.Phase != want || (string(text) == "bad") != mayFail || exists(w.at("serving")) == mayFail {
				t.Errorf("%+v, the file is %q", s, text)
			}
			r := w.restore(deadman.Restore{})
			if !r.SameConfig || r.CRI == nil || (r.ByDeadMan != nil) == mayFail {
				t.Errorf("restored %+v", r)
			}
			w.same(before)
		})
	}
}

// TestHealsByItself: each reason for which a dead man puts back without being asked.
func TestHealsByItself(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ttl  time.Duration
		do   func(w *world, s *deadman.Status) error
		skip bool // the service is not restarted
	}{
		"its time is up": {time.Second, func(*world, *deadman.Status) error { return nil }, false},
		"it is told to end": {
			time.Hour, func(_ *world, s *deadman.Status) error { return syscall.Kill(s.PID, syscall.SIGTERM) }, false,
		},
		"the record is removed": {
			time.Second, func(w *world, _ *deadman.Status) error { return os.RemoveAll(w.Dir) }, false,
		},
		"the node is shut down": {time.Hour, func(w *world, s *deadman.Status) error {
			return errors.Join(os.MkdirAll(w.Systemd, 0o755), os.WriteFile(w.at("stopping"), nil, 0o600),
				syscall.Kill(s.PID, syscall.SIGTERM))
		}, true},
	} {
		for _, encrypted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, encrypted %v", name, encrypted), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t).encryptedIf(encrypted)
				change := w.all()
				before := w.look()
				change.TTL = tc.ttl
				s := w.change(change)
				start := time.Now()
				if err := tc.do(w, s); err != nil {
					t.Fatal(err)
				}
				w.until("the dead man has ended", func() bool { return len(w.guards(w.run)) == 0 })
				// Otherwise it would be the next look at the pod, or an hour.
				if tc.ttl == time.Second && time.Since(start) > 10*time.Second {
					t.Errorf("healed only after %v", time.Since(start))
				}
				_ = os.Remove(w.at("stopping"))
				_ = os.RemoveAll(w.at("run/systemd"))
				w.same(before)
				if wanted := map[bool]int{false: 2, true: 1}[tc.skip]; w.restarts() != wanted {
					t.Errorf("%d restarts, want %d", w.restarts(), wanted)
				}
			})
		}
	}
}

// TestPodEnds: the end of the process that stands for the pod heals, and a process that has got its number does not
// keep it alive.
func TestPodEnds(t *testing.T) {
	t.Parallel()
	pod, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	start, _, err := stat("/proc", pod.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p := process{pod.Pid, start}
	if !p.lives("/proc") || (process{pod.Pid, start + 1}).lives("/proc") {
		t.Error("it lives, and another one with its number is not it")
	}
	w := newWorld(t)
	before := w.look()
	r, err := w.prepare(t.Context(), w.run,
		deadman.Change{Files: []deadman.File{w.edit("etc/config.toml", original, "x")}}, p)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := w.start(w.run)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := w.follow(t.Context(), w.run, ended, nil); err != nil || s.Phase != deadman.PhaseApplied {
		t.Fatalf("%+v, %v", s, err)
	}
	_ = pod.Kill()
	<-ended
	_, _ = pod.Wait()
	w.same(before)
	if exists(w.dir(r.Run)) {
		t.Error("the record is left")
	}
}

// TestKeepsWhatItCouldNotHeal: what somebody changed is left, and the record tells of it.
func TestKeepsWhatItCouldNotHeal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.change(deadman.Change{TTL: time.Second, Files: []deadman.File{w.edit("etc/config.toml", original, "x")}})
	w.put("etc/config.toml", "theirs")
	w.until("the dead man has ended", func() bool { return len(w.guards(w.run)) == 0 })
	last, err := w.status(w.run)
	if err != nil || last.Phase != deadman.PhaseSuperseded || last.Cause != causeTTL {
		t.Fatalf("%+v, %v", last, err)
	}
	r := w.restore(deadman.Restore{})
	if r.ByDeadMan == nil || r.ByDeadMan.Cause != causeTTL || r.Files[0].Outcome != deadman.OutcomeSuperseded ||
		string(r.Files[0].Now) != "theirs" {
		t.Errorf("%+v", r)
	}
	if exists(filepath.Join(w.Dir, w.run)) {
		t.Error("the record is left")
	}
}
