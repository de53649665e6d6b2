//go:build linux

package guard

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// encryptedIf makes a world encrypt its records.
func (w *world) encryptedIf(is bool) *world {
	if is {
		w.Key = bytes.Repeat([]byte{7}, deadman.KeySize)
	}
	return w
}

// plainAndEncrypted runs a test with each kind of record.
func plainAndEncrypted(t *testing.T, name string, test func(w *world)) {
	t.Helper()
	for kind, encrypted := range map[string]bool{"plain": false, "encrypted": true} {
		t.Run(name+", "+kind, func(t *testing.T) {
			t.Parallel()
			test(newWorld(t).encryptedIf(encrypted))
		})
	}
}

// TestAnEncryptedRecordTellsNothing holds that no file of an encrypted record contains the original content, the edits,
// or the path of a file, and that neither the script nor the arguments and the environment of the dead man's switch do.
func TestAnEncryptedRecordTellsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t).encryptedIf(true)
	change := w.all()
	before := w.look()
	status := w.change(change)
	seen := 0
	err := filepath.WalkDir(w.dir(w.run), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		seen++
		raw, err := os.ReadFile(path)
		for _, word := range []string{"nvidia", "secret", "config.toml", "old\n", "new\n", "demo.service"} {
			if bytes.Contains(raw, []byte(word)) {
				t.Errorf("%s contains %q", path, word)
			}
		}
		if name := d.Name(); name == scriptFile || name == logFile {
			t.Errorf("an encrypted record has the file %s", name)
		}
		if info, err := d.Info(); err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("others can read %s: %v", path, info.Mode())
		}
		return err
	})
	if err != nil || seen < 4 { // record, status, and two files for each original
		t.Errorf("%d files, %v", seen, err)
	}
	for _, name := range []string{"cmdline", "environ"} {
		raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(status.PID), name))
		if err != nil || bytes.Contains(raw, w.Key) {
			t.Errorf("%s of the dead man's switch has the key: %v", name, err)
		}
	}
	w.restore(deadman.Restore{})
	w.same(before)
}

// TestAnEncryptedRecordNeedsItsKey holds that nothing is restored, removed or replaced without the key of an encrypted
// record, and that another run may not change files that the encrypted run may have changed.
func TestAnEncryptedRecordNeedsItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t).encryptedIf(true)
	change := w.all()
	before := w.look()
	w.change(change)
	changed := w.look()
	for name, key := range map[string][]byte{"no key": nil, "another key": bytes.Repeat([]byte{8}, deadman.KeySize)} {
		other := w.Host
		other.Key = key
		if r, err := Restore(t.Context(), other, w.run, deadman.Restore{}); err == nil ||
			!strings.Contains(err.Error(), "encrypted") {
			t.Errorf("with %s: %+v, %v", name, r, err)
		}
		if _, err := Await(t.Context(), other, w.run, nil); err == nil || !strings.Contains(err.Error(), "encrypted") {
			t.Errorf("await with %s: %v", name, err)
		}
	}
	plain := w.Host
	plain.Key = nil
	found, err := Leftovers(t.Context(), plain, true, nil)
	if err != nil || len(found) == 0 || found[0].Removed || !strings.Contains(found[0].Problem, "encrypted") {
		t.Errorf("leftovers: %+v, %v", found, err)
	}
	w.put("etc/conf.d/99-old.toml", "old\n")
	for name, host := range map[string]Host{"plain": plain, "encrypted": w.Host} {
		_, err := Change(t.Context(), host, w.run+"-"+name, deadman.Change{
			TTL: time.Hour, Files: []deadman.File{w.edit("etc/conf.d/99-old.toml", "old\n", "other\n")},
		}, func(deadman.Status) error { return nil })
		var failure *Error
		if !errors.As(err, &failure) || failure.Code != CodeExists || !strings.Contains(err.Error(), "encrypted") {
			t.Errorf("another %s run: %v", name, err)
		}
	}
	_ = os.Remove(w.at("etc/conf.d/99-old.toml"))
	w.same(changed)
	w.restore(deadman.Restore{})
	w.same(before)
}

// TestAKeyDoesNotPreventARestore holds that a record that is not encrypted is restored although the request has a key,
// as anyone who can edit the record in the cluster can add one.
func TestAKeyDoesNotPreventARestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	change := w.all()
	before := w.look()
	w.change(change)
	w.encryptedIf(true).restore(deadman.Restore{})
	w.same(before)
}

// TestAnEncryptedRecordIsAuthentic holds that a file of an encrypted record that was damaged or exchanged is not
// followed.
func TestAnEncryptedRecordIsAuthentic(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(w *world) error{
		"status for record": func(w *world) error {
			raw, err := os.ReadFile(filepath.Join(w.dir(w.run), statusFile))
			return errors.Join(err, os.WriteFile(filepath.Join(w.dir(w.run), recordFile), raw, 0o600))
		},
		"cut record": func(w *world) error {
			return os.Truncate(filepath.Join(w.dir(w.run), recordFile), int64(len(encryptedMark)+5))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t).encryptedIf(true)
			file := w.edit("etc/config.toml", original, "after")
			w.change(deadman.Change{TTL: time.Hour, Files: []deadman.File{file}})
			if err := damage(w); err != nil {
				t.Fatal(err)
			}
			if r, err := Restore(t.Context(), w.Host, w.run, deadman.Restore{}); err == nil {
				t.Errorf("%+v", r)
			}
			if text, _ := os.ReadFile(w.at("etc/config.toml")); string(text) != "after" {
				t.Errorf("the file was changed: %q", text)
			}
		})
	}
}

// FuzzDecrypt holds that whatever is in a file of a record, it is either the encrypted content or an error.
func FuzzDecrypt(f *testing.F) {
	h := Host{Key: bytes.Repeat([]byte{7}, deadman.KeySize)}
	for _, content := range []string{"", "a", strings.Repeat("b", paddedTo), strings.Repeat("c", paddedTo-8)} {
		encrypted, err := h.encrypt("run", "name", []byte(content))
		if back, e := h.decrypt("run", "name", encrypted); err != nil || e != nil || string(back) != content {
			f.Fatalf("%d bytes: %q, %v, %v", len(content), back, err, e)
		}
		f.Add(encrypted)
	}
	f.Add([]byte(encryptedMark))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if content, err := h.decrypt("other", "name", raw); err == nil && !bytes.Equal(content, raw) {
			t.Errorf("accepted %q as %q", raw, content)
		}
		_, _ = Host{}.decrypt("run", "name", raw)
	})
}
