//go:build linux

package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestResolve: a way that anybody but root can redirect is refused, so that no tenant chooses which file root writes.
func TestResolve(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	h := Host{Root: base}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(base, "etc/containerd"), 0o755))
	must(os.WriteFile(filepath.Join(base, "etc/containerd/config.toml"), nil, 0o600))
	must(os.Symlink("config.toml", filepath.Join(base, "etc/containerd/link.toml")))
	must(os.Symlink("containerd", filepath.Join(base, "etc/linked")))
	must(os.MkdirAll(filepath.Join(base, "volume/sub"), 0o755))
	must(os.Chmod(filepath.Join(base, "volume"), 0o1777))
	must(os.MkdirAll(filepath.Join(base, "group"), 0o755))
	must(os.Chmod(filepath.Join(base, "group"), 0o775))
	must(os.MkdirAll(filepath.Join(base, "other"), 0o755))
	other := "other/config.toml"
	if os.Geteuid() == 0 {
		must(os.Chown(filepath.Join(base, "other"), 1000, 1000))
		other = "does not belong to root"
	}
	must(os.Symlink(filepath.Join(base, "etc/containerd"), filepath.Join(base, "absolute")))
	must(os.Symlink("../../etc/containerd/config.toml", filepath.Join(base, "volume/sub/innocent.toml")))
	must(os.Symlink("../../volume/config.toml", filepath.Join(base, "etc/containerd/volume.toml")))
	must(os.Symlink("loop", filepath.Join(base, "loop")))
	must(os.Symlink("/", filepath.Join(base, "outside")))
	for path, want := range map[string]string{ // where it leads, or why it is refused
		"etc/containerd/config.toml":         "etc/containerd/config.toml",
		"etc/containerd/new.toml":            "etc/containerd/new.toml",
		"group/config.toml":                  "group/config.toml",
		"etc/containerd/link.toml":           "etc/containerd/config.toml",
		"etc/linked/config.toml":             "etc/containerd/config.toml",
		"absolute/link.toml":                 "etc/containerd/config.toml",
		"etc/containerd/config.toml/more":    "is not a directory",
		"etc/nowhere/config.toml":            "no such file",
		"volume/config.toml":                 "writable for every user",
		"volume/sub/config.toml":             "writable for every user",
		"volume/sub/innocent.toml":           "writable for every user",
		"etc/containerd/volume.toml":         "writable for every user",
		"other/config.toml":                  other,
		"loop/config.toml":                   "too many symbolic links",
		"outside/etc/containerd/config.toml": "is not below",
		"../elsewhere":                       "is not below",
	} {
		real, err := h.resolve(filepath.Join(base, path))
		switch {
		case err == nil && real != filepath.Join(base, want), err != nil && !strings.Contains(err.Error(), want), want == "":
			t.Errorf("%s: %q, %v, want %q", path, real, err, want)
		case err == nil && h.trusted(real) != nil:
			t.Errorf("%s: %v", path, h.trusted(real))
		}
	}
}
