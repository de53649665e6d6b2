//go:build linux

package guard

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// TestRefusesWhatTheHelperDoesNotFind: a request decides nothing about which file, unit or socket it is.
func TestRefusesWhatTheHelperDoesNotFind(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		do   func(w *world, c *deadman.Change)
		want string
	}{
		"another file": {func(w *world, c *deadman.Change) {
			w.put("etc/shadow", "root:*")
			c.Files = append(c.Files, w.edit("etc/shadow", "root:*", "root:"))
		}, `etc/shadow" is not a file that the kubelet's containerd loads`},
		"another file, removed": {func(w *world, c *deadman.Change) {
			w.put("etc/shadow", "root:*")
			c.Files = append(c.Files, w.edit("etc/shadow", "root:*", ""))
		}, `etc/shadow" is not a file that the kubelet's containerd loads`},
		"a new file elsewhere": {func(w *world, c *deadman.Change) {
			c.Files = append(c.Files, w.edit("etc/cron.toml", "", "x"))
		}, `etc/cron.toml" is not a file that the kubelet's containerd loads`},
		"a new file with another name": {func(w *world, c *deadman.Change) {
			c.Files = append(c.Files, w.edit("etc/conf.d/x.conf", "", "x"))
		}, `etc/conf.d/x.conf" is not a file that the kubelet's containerd loads`},
		"a new file deeper": {func(w *world, c *deadman.Change) {
			c.Files = append(c.Files, w.edit("etc/conf.d/x/y.toml", "", "x"))
		}, `is not a file that the kubelet's containerd loads`},
		"a file of the directory that is not loaded": {func(w *world, c *deadman.Change) {
			w.put("etc/conf.d/here.toml", "here")
			c.Files = append(c.Files, w.edit("etc/conf.d/here.toml", "here", "x"))
		}, `etc/conf.d/here.toml" is not a file that the kubelet's containerd loads`},
		"another name of a file that is": {func(w *world, c *deadman.Change) {
			if err := os.Symlink("config.toml", w.at("etc/alias.toml")); err != nil {
				w.Fatal(err)
			}
			c.Files[0].Path = w.at("etc/alias.toml")
		}, `etc/alias.toml" is not a file that the kubelet's containerd loads`},
		"another unit": {func(_ *world, c *deadman.Change) { c.Service.Unit = "sshd.service" },
			`unit "sshd.service" is not the kubelet's container runtime, which is unit "demo.service"`},
		"another socket": {func(_ *world, c *deadman.Change) { c.Service.Socket = "/tmp/demo.sock" },
			`socket "/tmp/demo.sock" is not the one that the kubelet uses, which is "/run/demo.sock"`},
		"no unit": {func(w *world, _ *deadman.Change) {
			w.Inspect = func(context.Context) (Runtime, error) {
				return Runtime{Socket: "/run/demo.sock", Files: []string{w.at("etc/config.toml")}}, nil
			}
		}, "that runtime does not run as a systemd unit"},
		"no runtime": {func(w *world, _ *deadman.Change) {
			w.Inspect = func(context.Context) (Runtime, error) { return Runtime{}, errors.New("no kubelet is running") }
		}, "no kubelet is running"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			change := deadman.Change{
				TTL: time.Hour, Service: w.service(),
				Files: []deadman.File{w.edit("etc/config.toml", original, "after")},
			}
			test.do(w, &change)
			before := w.look()
			_, err := Change(t.Context(), w.Host, w.run, change, func(deadman.Status) error { return nil })
			var failure *Error
			if !errors.As(err, &failure) || failure.Code != CodeRefused ||
				!strings.Contains(failure.Message, test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			w.same(before)
			if w.restarts() != 0 {
				t.Error("a unit was restarted")
			}
		})
	}
}

// TestTheRecordHasWhatTheHelperFound: the list of files is the helper's own, and a restore needs no other. The
// runtime's configuration may be broken by then, or not import the file any more.
func TestTheRecordHasWhatTheHelperFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := errors.Join(
		os.Mkdir(w.at("opt"), 0o755), os.Rename(w.at("etc/config.toml"), w.at("opt/real")),
		os.Symlink("../opt/real", w.at("etc/config.toml")),
	); err != nil {
		t.Fatal(err)
	}
	change := w.all()
	before := w.look()
	w.change(change)
	r, err := w.load(w.run)
	if err != nil {
		t.Fatal(err)
	}
	for path, real := range map[string]string{
		"etc/config.toml": "opt/real", "etc/conf.d/98-new.toml": "etc/conf.d/98-new.toml",
		"etc/conf.d/99-old.toml": "etc/conf.d/99-old.toml",
	} {
		if !slices.Contains(r.Loaded, loaded{w.at(path), w.at(real)}) {
			t.Errorf("%s is not in %+v", path, r.Loaded)
		}
	}
	w.Inspect = func(context.Context) (Runtime, error) {
		t.Error("the restore reads the configuration of the runtime")
		return Runtime{}, errors.New("it does not parse")
	}
	w.restore(deadman.Restore{})
	w.same(before)
}

// rewrite edits the record on the disk.
func (w *world) rewrite(edit func(r *record)) {
	w.Helper()
	r, err := w.load(w.run)
	if err != nil {
		w.Fatal(err)
	}
	edit(r)
	raw, err := encode(r)
	if err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir(w.run), recordFile), raw, 0o600); err != nil {
		w.Fatal(err)
	}
}

// TestTheListDecides: a file that the record's list lacks is not restored, and the others are; nor is it changed.
func TestTheListDecides(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(w *world, r *record){
		"the list lacks the path": func(w *world, r *record) {
			r.Loaded = slices.DeleteFunc(r.Loaded,
				func(l loaded) bool { return l.Path == w.at("etc/conf.d/99-old.toml") })
		},
		"the list has another real path": func(w *world, r *record) {
			for i := range r.Places {
				if r.Change.Files[i].Path == w.at("etc/conf.d/99-old.toml") {
					r.Places[i].Real = w.at("etc/shadow")
				}
			}
		},
		"there is no list": func(_ *world, r *record) { r.Loaded = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			change := w.all()
			before := w.look()
			w.change(change)
			kept, err := os.ReadFile(filepath.Join(w.dir(w.run), recordFile))
			if err != nil {
				t.Fatal(err)
			}
			w.rewrite(func(r *record) { edit(w, r) })
			_, err = Restore(t.Context(), w.Host, w.run, deadman.Restore{})
			if err == nil || !strings.Contains(
				err.Error(),
				"99-old.toml was not restored: according to the run's record, the kubelet's containerd does not load this file",
			) {
				t.Errorf("got %v", err)
			}
			if exists(w.at("etc/conf.d/99-old.toml")) || exists(w.at("etc/shadow")) {
				t.Error("the file was restored")
			}
			if text, _ := os.ReadFile(
				w.at("etc/config.toml"),
			); (string(text) == original) == (name == "there is no list") {
				t.Errorf("another file has %q", text)
			}
			if err := os.WriteFile(filepath.Join(w.dir(w.run), recordFile), kept, 0o600); err != nil {
				t.Fatal(err)
			}
			w.restore(deadman.Restore{})
			w.same(before)
		})
		t.Run(name+", changing", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			change := w.all()
			before := w.look()
			r, err := w.prepare(t.Context(), w.run, change, process{})
			if err != nil {
				t.Fatal(err)
			}
			w.rewrite(func(r *record) { edit(w, r) })
			ended, err := w.start(w.run)
			if err != nil {
				t.Fatal(err)
			}
			s, err := w.follow(t.Context(), w.run, ended, nil)
			if err != nil || s.Phase != deadman.PhaseFailed || s.PID != 0 ||
				!strings.Contains(s.Message, "the kubelet's containerd does not load this file") {
				t.Errorf("%+v, %v", s, err)
			}
			if err := w.erase(w.run, r); err != nil {
				t.Fatal(err)
			}
			w.same(before)
		})
	}
}

// TestARecordOfAnotherVersion: a record without a list is of another release, and is not guessed.
func TestARecordOfAnotherVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", original, "after")}})
	w.rewrite(func(r *record) { r.Version, r.Loaded = recordVersion-1, nil })
	if _, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{}); err == nil ||
		!strings.Contains(err.Error(), "does not support the format of the record") {
		t.Errorf("got %v", err)
	}
}

// TestNamesOfPreparedFiles: a record cannot name another file as the content of before.
func TestNamesOfPreparedFiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"../shadow", "/etc/shadow", "before-1", "after-0", ".other-before-0.gpu-fault", "."} {
		w := newWorld(t)
		w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{w.edit("etc/config.toml", original, "after")}})
		w.rewrite(func(r *record) { r.Places[0].Before = name })
		if _, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{}); err == nil ||
			!strings.Contains(err.Error(), "is not the name of a prepared file") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestTheServiceIsTheHelpersOwn: what is restarted, and asked, is what the helper found.
func TestTheServiceIsTheHelpersOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.change(deadman.Change{
		TTL: time.Hour, Service: w.service(), Files: []deadman.File{w.edit("etc/config.toml", original, "after")},
	})
	raw, err := os.ReadFile(filepath.Join(w.dir(w.run), recordFile))
	if err != nil {
		t.Fatal(err)
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	if s := r.Change.Service; s == nil || s.Unit != "demo.service" || s.Socket != "/run/demo.sock" {
		t.Errorf("the record has %+v", s)
	}
}
