package containerd

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

const configPath = "/etc/containerd/config.toml"

var (
	old    = Release{1, 7, 28}
	recent = Release{2, 3, 7}
	both   = []Release{old, recent}
)

// config returns a configuration of one or more files, of which the first is the root.
func config(r Release, files ...string) *Config {
	c := &Config{Release: r}
	for i, data := range files {
		name := configPath
		if i > 0 {
			name = "/etc/containerd/conf.d/" + string(rune('0'+i)) + ".toml"
		}
		c.Files = append(c.Files, File{name, []byte(data)})
	}
	return c
}

func nodeFile(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "nodes", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// restores fails the test unless the edits lead from Before to After and, inverted, back.
func restores(t testing.TB, b *Broken) {
	t.Helper()
	for _, f := range b.Files {
		after, err := patch.Apply(f.Before, f.Edits)
		if err != nil || !bytes.Equal(after, f.After) {
			t.Errorf("%s: the edits do not give After: %v\n%s", f.Path, err, after)
		}
		before, err := patch.Apply(f.After, patch.Invert(f.Edits))
		if err != nil || !bytes.Equal(before, f.Before) {
			t.Errorf("%s: the inverse edits do not give Before: %v\n%s", f.Path, err, before)
		}
		if bytes.Equal(f.Before, f.After) {
			t.Errorf("%s is listed and not changed", f.Path)
		}
	}
}

// broken returns the configuration with the fault applied. Files that are new are loaded last when they are drop-ins
// beside the loaded ones.
func broken(c *Config, b *Broken, dropin bool) *Config {
	after := &Config{Release: c.Release, Files: slices.Clone(c.Files)}
	for _, f := range b.Files {
		i := slices.IndexFunc(after.Files, func(have File) bool { return have.Path == f.Path })
		switch {
		case i >= 0:
			after.Files[i].Data = f.After
		case dropin:
			after.Files = append(after.Files, File{f.Path, f.After})
		}
	}
	return after
}

// onlyChanged fails the test unless all handlers but one are as they were, and returns that one before and after.
func onlyChanged(t testing.TB, before, after *Config, handler string) (Handler, Handler, bool) {
	t.Helper()
	a, b := merged(t, before), merged(t, after)
	was, is := a.Handlers[handler], b.Handlers[handler]
	_, there := b.Handlers[handler]
	delete(a.Handlers, handler)
	delete(b.Handlers, handler)
	if a.DefaultRuntime != b.DefaultRuntime || a.Version != b.Version ||
		!maps.EqualFunc(a.Handlers, b.Handlers, alike) {
		t.Errorf("more than the handler %s changed: before %+v, after %+v", handler, a, b)
	}
	return was, is, there
}

func alike(a, b Handler) bool {
	return a.Type == b.Type && a.BinaryName == b.BinaryName && flag(a.SystemdCgroup) == flag(b.SystemdCgroup) &&
		len(a.Places) == len(b.Places)
}

func flag(b *bool) string {
	switch {
	case b == nil:
		return "-"
	case *b:
		return "true"
	}
	return "false"
}

func merged(t testing.TB, c *Config) *Merged {
	t.Helper()
	m, err := c.Merged()
	if err != nil {
		t.Fatalf("%v\n%s", err, c.Files[0].Data)
	}
	return m
}

func hasWarning(m *Merged, text string) bool {
	return slices.ContainsFunc(m.Warnings, func(w string) bool { return strings.Contains(w, text) })
}
