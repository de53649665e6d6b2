//go:build linux

package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// The dead men of these tests are real processes: this test's own binary, which finds its node in the environment.
const (
	baseEnv = "GPU_FAULT_TEST_NODE"      // the folder that stands for the node
	killEnv = "GPU_FAULT_TEST_KILLAT"    // the point at which the process kills itself
	oldEnv  = "GPU_FAULT_TEST_OLDKERNEL" // not empty: openat2(2) is not used
	swapEnv = "GPU_FAULT_TEST_SWAPAT"    // POINT|PATH|TARGET: the point at which the path becomes a link to the target
)

func TestMain(m *testing.M) {
	if base := os.Getenv(baseEnv); base != "" && len(os.Args) == 3 && os.Args[1] == "guard" {
		host := hostAt(base)
		var err error
		if host.Key, err = ReadKey(os.Stdin); err == nil {
			err = Guard(context.Background(), host, os.Args[2])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hostAt returns a node in a folder. Its service loads etc/config.toml when it is restarted, and does not start when
// that says "bad".
func hostAt(base string) Host {
	in := func(path string) string { return filepath.Join(base, path) }
	h := Host{
		Root: base, Dir: in("var/lib/gpu-fault"), Units: in("etc/systemd/system"), Systemd: in("run/systemd/system"),
		Logs: in("var/log/services"), Proc: "/proc",
		Configs: []string{in("etc")}, Foreign: []string{in("var/lib/foreign")},
		ConfigSum: patch.Sum,
		Program:   "/proc/self/exe",
		Env:       []string{baseEnv + "=" + base, killEnv + "=" + os.Getenv(killEnv)},
		Inspect: func(context.Context) (Runtime, error) {
			return Runtime{
				Unit: "demo.service", Socket: "/run/demo.sock",
				Files: []string{
					in("etc/config.toml"), in("etc/conf.d/99-old.toml"), in("etc/none.toml"), in("etc/conf.d"),
				},
				New:   []string{in("etc/first"), in("etc/none/x.toml")},
				Globs: []string{in("etc/conf.d/*.toml")},
			}, nil
		},
		LeaveCgroup: func() error { return nil },
		times:       defaultTimes(),
	}
	h.times.tick, h.times.hear, h.times.poll, h.times.retry = 20*time.Millisecond, time.Millisecond, 5*time.Millisecond,
		50*time.Millisecond
	h.times.serve, h.times.verdict, h.times.lock, h.times.follow = 200*time.Millisecond, 200*time.Millisecond,
		20*time.Second, 20*time.Second
	h.Run = func(_ context.Context, name string, args ...string) (string, error) {
		command := name + " " + strings.Join(args, " ")
		f, err := os.OpenFile(in("commands"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintln(f, command)
		_ = f.Close()
		switch command {
		case "systemctl restart demo.service":
			config, err := os.ReadFile(in("etc/config.toml"))
			_ = os.Remove(in("serving"))
			if err != nil || strings.Contains(string(config), "bad") || exists(in("broken")) {
				return "", errors.New("Job for demo.service failed")
			}
			return "", os.WriteFile(in("serving"), config, 0o600)
		case "systemctl is-system-running":
			if exists(in("stopping")) {
				return "stopping", errors.New("exit status 1")
			}
			return "running", nil
		case "journalctl -u demo.service -n 5 --no-pager -q -o cat":
			return "the last words", nil
		}
		return "", nil
	}
	h.Ask = func(context.Context, string) (*cri.Info, error) {
		config, err := os.ReadFile(in("serving"))
		if err != nil {
			return nil, errors.New("connection refused")
		}
		return &cri.Info{Name: "demo", Ready: true, Config: configOf(config)}, nil
	}
	if at := os.Getenv(killEnv); at != "" {
		h.Passed = func(point string) {
			if point == at {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
	}
	if at := strings.Split(os.Getenv(swapEnv), "|"); len(at) == 3 {
		h.Passed = swapAt(at[0], at[1], at[2])
	}
	return h
}

// swapAt replaces a path with a link when a point is passed for the first time; what was there is moved aside.
func swapAt(point, path, target string) func(string) {
	return func(now string) {
		if now != point || exists(path+moved) {
			return
		}
		if err := errors.Join(os.Rename(path, path+moved), os.Symlink(target, path)); err != nil {
			panic(err)
		}
	}
}

const moved = ".moved"

func configOf(file []byte) json.RawMessage {
	raw, _ := json.Marshal(string(file))
	return raw
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// world is a node, and one run on it.
type world struct {
	*testing.T
	Host
	base, run string
}

const original = "version = 3\n# secret = 1\n[runtimes.nvidia]\n"

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldIn(t, t.TempDir())
}

func newWorldIn(t *testing.T, base string) *world {
	t.Helper()
	for _, dir := range []string{"etc/conf.d", "var/lib", "run", "etc/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{
		T: t, Host: hostAt(base), base: base, run: fmt.Sprintf("test-%d-%d", os.Getpid(), time.Now().UnixNano()),
	}
	w.put("etc/config.toml", original)
	w.put("serving", original)
	t.Cleanup(func() {
		if err := w.endGuards(context.Background(), w.run); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) at(path string) string { return filepath.Join(w.base, path) }

// put writes a file with attributes that no default gives.
func (w *world) put(path, text string) {
	w.Helper()
	if err := os.WriteFile(w.at(path), []byte(text), 0o640); err != nil {
		w.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(w.at(path), 0, 34); err != nil {
			w.Fatal(err)
		}
	}
	if err := os.Chmod(w.at(path), 0o4711); err != nil {
		w.Fatal(err)
	}
	if err := os.Chtimes(w.at(path), time.Unix(1, 1), time.Unix(1_600_000_000, 123_456_789)); err != nil {
		w.Fatal(err)
	}
	if err := unix.Setxattr(w.at(path), "user.gpu-fault", []byte{0, 1, 2}, 0); err != nil {
		w.Logf("extended attributes are not tested: %v", err)
	}
}

// edit returns the change of a file: from and to are whole contents; "" is no file.
func (w *world) edit(path, from, to string) deadman.File {
	f := deadman.File{Path: w.at(path), Edits: []patch.Edit{{Old: []byte(from), New: []byte(to)}}}
	if from != "" {
		f.Before = patch.Sum([]byte(from))
	}
	if to != "" {
		f.After = patch.Sum([]byte(to))
	}
	return f
}

func (w *world) service() *deadman.Service {
	return &deadman.Service{
		Unit: "demo.service", Socket: "/run/demo.sock", Config: patch.Sum(configOf([]byte(original))),
	}
}

// all changes, creates and deletes.
func (w *world) all() deadman.Change {
	w.put("etc/conf.d/99-old.toml", "old\n")
	return deadman.Change{TTL: time.Hour, Service: w.service(), Files: []deadman.File{
		w.edit("etc/config.toml", original, strings.Replace(original, "nvidia", "gone", 1)),
		w.edit("etc/conf.d/98-new.toml", "", "new\n"),
		w.edit("etc/conf.d/99-old.toml", "old\n", ""),
	}}
}

// look returns all files of the node but those of its own life, with all their attributes.
func (w *world) look() string {
	w.Helper()
	var all strings.Builder
	err := filepath.WalkDir(w.base, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, w.base)
		if name == "/commands" || name == "/serving" {
			return nil
		}
		if link, err := os.Readlink(path); err == nil {
			_, _ = fmt.Fprintln(&all, name, "->", link)
			return nil
		}
		if d.IsDir() {
			_, _ = fmt.Fprintln(&all, name)
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		m, names, err := metaOf(f)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(f)
		_, _ = fmt.Fprintf(&all, "%s %o %d:%d %s %v %d names %q\n", name, m.Mode, m.UID, m.GID, m.ModTime, m.Xattrs,
			names, data)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return all.String()
}

func (w *world) same(before string) {
	w.Helper()
	if now := w.look(); now != before {
		w.Errorf("the node is not as it was. Before:\n%s\nNow:\n%s", before, now)
	}
}

// change makes a change that must be applied.
func (w *world) change(c deadman.Change) *deadman.Status {
	w.Helper()
	s, err := Change(w.Context(), w.Host, w.run, c, func(deadman.Status) error { return nil })
	if err != nil {
		w.Fatal(err)
	}
	if s.Phase != deadman.PhaseApplied {
		w.Fatalf("the change is %s: %s", s.Phase, s.Message)
	}
	return s
}

// restore restores and has it forgotten.
func (w *world) restore(ask deadman.Restore) *deadman.Restored {
	w.Helper()
	r, err := Restore(w.Context(), w.Host, w.run, ask)
	if err != nil {
		w.Fatal(err)
	}
	ask.Forget = true
	if _, err := Restore(w.Context(), w.Host, w.run, ask); err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *world) until(what string, is func() bool) {
	w.Helper()
	for start := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			s, _ := w.status(w.run)
			w.Fatalf("not so after %v: %s; the dead man says %+v", time.Since(start), what, s.Status)
		}
	}
}

func (w *world) restarts() int {
	raw, _ := os.ReadFile(w.at("commands"))
	return strings.Count(string(raw), "systemctl restart")
}
