//go:build linux

package guard

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// TestOutcomes: what becomes of a file, by what lies there, with the node's record, when somebody else's content is to go, and without a record.
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
		for _, how := range []string{"record", "overwriting", "ledger"} {
			t.Run(name+" by "+how, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				path := w.at("etc/config.toml")
				if tc.from == "" {
					_ = os.Remove(path)
				}
				before := w.look()
				s := w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", tc.from, tc.to)}})
				if tc.now == "" {
					_ = os.Remove(path)
				} else if tc.now != tc.to {
					w.put("etc/config.toml", tc.now)
				}
				if how == "ledger" {
					if err := os.RemoveAll(w.Dir); err != nil {
						t.Fatal(err)
					}
				}
				want := tc.want
				if how == "overwriting" && want == deadman.OutcomeSuperseded {
					want = deadman.OutcomeRestored
				}
				r := w.restore(deadman.Restore{Files: s.Files, Overwrite: how == "overwriting"})
				got := r.Files[0]
				if got.Overwritten != (want != tc.want) {
					t.Errorf("%+v does not say whether somebody's content is gone", got)
				}
				if got.Outcome != want || r.RecordMissing != (how == "ledger") {
					t.Errorf("%+v, want %s", r, want)
				}
				text, err := os.ReadFile(path)
				switch {
				case want != deadman.OutcomeSuperseded:
					w.same(before)
				case string(text) != tc.now || string(got.Now) != tc.now || got.Deleted != errors.Is(err, os.ErrNotExist):
					t.Errorf("%q lies there, %+v; theirs was %q", text, got, tc.now)
				}
				if exists(w.Dir) || len(w.guards(w.run)) != 0 {
					t.Error("the record or the dead man is left")
				}
			})
		}
	}
}

// TestRecordAndLedgerDisagree: somebody tampered with one of them, so nothing is touched.
func TestRecordAndLedgerDisagree(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(f *deadman.File){
		"before": func(f *deadman.File) { f.Before = patch.Sum([]byte("x")) },
		"after":  func(f *deadman.File) { f.After = patch.Sum([]byte("y")) },
		"path":   func(f *deadman.File) { f.Path += "x" },
		"edits":  func(f *deadman.File) { f.Edits = []patch.Edit{{Old: []byte("v"), New: []byte("w")}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", original, "after")}})
			files := append([]deadman.File(nil), s.Files...)
			change(&files[0])
			_, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{Files: files})
			var failure *Error
			if !errors.As(err, &failure) || failure.Code != CodeMismatch {
				t.Errorf("got %v", err)
			}
			if text, _ := os.ReadFile(w.at("etc/config.toml")); string(text) != "after" || len(w.guards(w.run)) != 1 {
				t.Error("something was touched")
			}
		})
	}
}

// TestKilledAnywhere: the dead man is killed at each point of its life, and so is who restores; another restore then makes all as it was.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"armed", "wrote 0", "wrote 1", "wrote 2", "written", "restarted", "applied", "waiting"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			change := w.all()
			before := w.look()
			w.Env = append(w.Env, killEnv+"="+point)
			s, err := Change(t.Context(), w.Host, w.run, change, func(deadman.Status) error { return nil })
			var failure *Error
			if late := point == "applied" || point == "waiting"; !late && (!errors.As(err, &failure) || failure.Code != CodeGone) || s == nil {
				t.Errorf("%+v, %v", s, err)
			}
			w.until("it is killed", func() bool { return len(w.guards(w.run)) == 0 })
			w.restore(deadman.Restore{Files: s.Files, Service: change.Service})
			w.same(before)
			if serving, _ := os.ReadFile(w.at("serving")); string(serving) != original {
				t.Errorf("the service has %q", serving)
			}
		})
	}
	for _, point := range []string{"planned", "put back 0", "put back 1", "put back 2", "restarted back", "healed"} {
		t.Run("healing, "+point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			change := w.all()
			before := w.look()
			change.TTL = time.Second
			w.Env = append(w.Env, killEnv+"="+point)
			s := w.change(change)
			w.until("it is killed", func() bool { return len(w.guards(w.run)) == 0 })
			r := w.restore(deadman.Restore{Files: s.Files, Service: change.Service})
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

// TestRestoreInterrupted: the answer gets lost, or the restorer is stopped, at each point; asked again, it says what became of the files.
func TestRestoreInterrupted(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"planned", "put back 0", "put back 1", "put back 2", "restarted back", "put back", "result kept"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			for _, how := range []string{"record", "ledger"} {
				w := newWorld(t)
				change := w.all()
				before := w.look()
				s := w.change(change)
				if how == "ledger" {
					if err := os.RemoveAll(w.Dir); err != nil {
						t.Fatal(err)
					}
				}
				ask := deadman.Restore{Files: s.Files, Service: change.Service}
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
					_, _ = Restore(t.Context(), stopped, w.run, ask)
				}()
				r := w.restore(ask)
				for _, f := range r.Files {
					if f.Outcome != deadman.OutcomeRestored {
						t.Errorf("by %s: %+v", how, f)
					}
				}
				w.same(before)
			}
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
			if _, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{Files: s.Files, Service: change.Service}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	w.restore(deadman.Restore{Files: s.Files, Service: change.Service, Forget: true})
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
	change := deadman.Change{TTL: time.Hour, Service: w.service(), Files: []deadman.File{w.edit("etc/config.toml", original, "after")}}
	s := w.change(change)
	w.put("broken", "")
	ask := deadman.Restore{Files: s.Files, Service: change.Service}
	r, err := Restore(t.Context(), w.Host, w.run, ask)
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != CodeService || r == nil || r.Files[0].Outcome != deadman.OutcomeRestored || r.CRI != nil || !exists(w.dir(w.run)) {
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
			for _, want := range []string{"config.toml put back", "all is as it was"} {
				if !strings.Contains(said, want) {
					t.Errorf("it says %s", said)
				}
			}
			w.until("the dead man has ended", func() bool { return len(w.guards(w.run)) == 0 })
			w.same(before)

			w.change(change)
			w.put("etc/config.toml", "theirs")
			cmd := exec.Command(strings.Fields(shell)[0], append(strings.Fields(shell)[1:], w.dir(w.run)+"/"+scriptFile)...)
			out, err := cmd.CombinedOutput()
			if text, _ := os.ReadFile(w.at("etc/config.toml")); err == nil || string(text) != "theirs" || !strings.Contains(string(out), "somebody else") || !exists(w.dir(w.run)) {
				t.Errorf("%v: %s", err, out)
			}
		})
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
	change := deadman.Change{TTL: time.Hour, Service: w.service(), BootRestore: true, Files: []deadman.File{w.edit("etc/config.toml", original, "after")}}
	s := w.change(change)
	unit := w.bootUnit(w.run)
	if target, err := os.Readlink(unit.link); err != nil || target != unit.path {
		t.Errorf("%q, %v", target, err)
	}
	if verify, err := exec.LookPath("systemd-analyze"); err == nil {
		if out, err := exec.Command(verify, "verify", "--man=no", unit.path).CombinedOutput(); err != nil || strings.Contains(string(out), unit.path) {
			t.Logf("systemd-analyze: %v: %s", err, out)
			if strings.Contains(string(out), unit.path) {
				t.Error("systemd does not take the unit")
			}
		}
	}
	w.restore(deadman.Restore{Files: s.Files, Service: change.Service})
	w.same(before)
}

// TestLeftovers: all is found; cleaning removes what may go, and leaves a record whose files are still changed.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.look()
	s := w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", original, "after")}})
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
			if l.Kind == deadman.LeftoverRecord && clean && len(keep) == 0 && !l.Removed && !strings.Contains(l.Problem+l.Status.Message, "still changed") {
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
	all := map[string]bool{deadman.LeftoverRecord: false, deadman.LeftoverDeadMan: false, deadman.LeftoverPrepared: false, deadman.LeftoverBootUnit: false, deadman.LeftoverForeign: false}
	equal("looked", kinds(false), all)
	all[deadman.LeftoverForeign] = true
	equal("cleaned but for the kept", kinds(true, w.run, "other"), all)
	delete(all, deadman.LeftoverForeign)
	all[deadman.LeftoverPrepared], all[deadman.LeftoverBootUnit] = true, true
	equal("cleaned", kinds(true), all)
	if r, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{Files: s.Files}); err != nil || r.Files[0].Outcome != deadman.OutcomeRestored {
		t.Errorf("%+v, %v", r, err)
	}
	equal("cleaned of a result that nobody fetched", kinds(true), map[string]bool{deadman.LeftoverRecord: true})
	w.same(before)
}
