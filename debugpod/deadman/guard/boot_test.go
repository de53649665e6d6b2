//go:build linux

package guard

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

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
