package containerd

import (
	"os"
	"testing"
	"testing/fstest"
)

// Whatever the file holds and whichever fault is asked for: no panic, and what is handed out is exact.
func FuzzBreakRestore(f *testing.F) {
	for _, name := range corpus(f) {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for mode := range Modes() {
			f.Add(data, uint8(mode), "nvidia", uint8(mode%4), []byte(nil))
		}
	}
	for i, data := range []string{
		grpcRoot, grpcNvidia, cri3("version = 2", "/x"), "plugins.cri.containerd.runtimes.a.b.c = 1\n[plugins.x]\n",
		"[plugins]\ncri={containerd={runtimes={a={},b.c=1,'d'={}}}}",
	} {
		f.Add([]byte(data), uint8(i), "a", uint8(i), []byte(grpcNvidia))
	}
	releases := []Release{old, {2, 1, 4}, {2, 3, 4}, recent}
	f.Fuzz(func(t *testing.T, data []byte, mode uint8, handler string, release uint8, second []byte) {
		c := config(releases[int(release)%len(releases)], string(data))
		r := Request{
			Mode: Modes()[int(mode)%len(Modes())].Mode, Handler: handler,
			Decoy: File{Path: "/var/lib/other/config.toml"},
		}
		if len(second) > 0 && mode < 128 {
			c.Files = append(c.Files, File{"/etc/containerd/conf.d/1.toml", second})
		} else if len(second) > 0 {
			r.Decoy.Data = second
		}
		merged, mergeErr := c.Merged()
		for _, h := range handlersOf(merged) {
			for _, p := range h.Places {
				if p.Line == 0 {
					t.Errorf("the handler %q is defined on line 0 of %s", h.Name, p.File)
				}
			}
		}
		b, err := c.Break(r)
		if err != nil {
			return
		}
		if mergeErr != nil {
			t.Fatalf("broken although it does not load: %v", mergeErr)
		}
		restores(t, b)
		if len(c.Files) == 1 {
			if problem := inexact(c, b, r); problem != "" {
				t.Error(problem)
			}
		}
		after := broken(c, b, r.Mode == ModeDropinShadow)
		switch now, err := after.Merged(); r.Mode {
		case ModeUnparsable:
			if err == nil {
				t.Error("it still parses")
			}
		case ModeMissingHandler, ModeWrongInstance:
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := now.Handlers[handler]; ok || len(now.Handlers) != len(merged.Handlers)-1 {
				t.Errorf("the handlers were %v and are %v", merged.Handlers, now.Handlers)
			}
		case ModeDropinShadow:
			if err != nil || len(now.Handlers) != 1 {
				t.Errorf("the handlers are %v, %v", now, err)
			}
		default:
			if err != nil || len(now.Handlers) != len(merged.Handlers) {
				t.Errorf("the handlers were %v and are %v, %v", merged, now, err)
			}
		}
	})
}

func handlersOf(m *Merged) map[string]Handler {
	if m == nil {
		return nil
	}
	return m.Handlers
}

// Imports of any shape end, and read no file twice.
func FuzzLoad(f *testing.F) {
	f.Add("imports = ['a.toml', '*.toml']", "imports = ['/etc/containerd/config.toml', '../c.toml']", "version = 2",
		true)
	f.Add("imports = ['[*']", "", "", false)
	f.Add("imports = ['', '.', '/', '..', '/*']", "imports = [1]", "imports = 'x'", true)
	f.Fuzz(func(t *testing.T, root, a, b string, isOld bool) {
		release := recent
		if isOld {
			release = old
		}
		fsys := fstest.MapFS{
			"etc/containerd/config.toml": {Data: []byte(root)}, "etc/containerd/a.toml": {Data: []byte(a)},
			"c.toml": {Data: []byte(b)},
		}
		c, err := Load(fsys, configPath, release)
		seen := map[string]bool{}
		for _, file := range c.Files {
			if seen[file.Path] {
				t.Errorf("%s is loaded twice", file.Path)
			}
			seen[file.Path] = true
		}
		if err == nil {
			_, _ = c.Merged()
		}
	})
}

// CRI's answer comes from the node: nothing in it may stop us, and a configuration that can be read has a sum.
func FuzzRunning(f *testing.F) {
	f.Add([]byte(
		`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"nvidia":{"runtimeType":"x","options":{"BinaryName":1,"SystemdCgroup":true}}}}}`,
	))
	f.Add([]byte(`"{\"containerd\":{}}"`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Running(data)
		if err == nil && (m.Handlers == nil || len(ConfigSum(data)) != 64) {
			t.Errorf("Running(%q) = %+v, with the sum %q", data, m, ConfigSum(data))
		}
		ConfigSum(data)
	})
}
