package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sandbox"
)

// What an agent could not see or must not see is refused before anything is started.
func TestIsolationFlags(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	secret := t.TempDir()
	if err := os.WriteFile(filepath.Join(secret, "config"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "agent"), nil, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags isolation
		agent string
		want  string
	}{
		{isolation{}, "./agent", "cannot see ./agent"},
		{isolation{}, filepath.Join(dir, "agent"), "--agent-dir"},
		{isolation{dir: dir}, "./other", "no such file"},
		{isolation{dir: home}, "sh", "contains your home directory"},
		{isolation{dir: secret}, "sh", "config is in " + secret},
		{isolation{dir: "/"}, "sh", "contains your home directory"},
		{isolation{dir: filepath.Join(dir, "agent")}, "sh", "is not a directory"},
		{isolation{dir: filepath.Join(dir, "none")}, "sh", "--agent-dir"},
		{isolation{env: []string{"NO_SUCH_VARIABLE"}}, "sh", `"NO_SUCH_VARIABLE" is not set`},
		{isolation{hosts: []string{"https://x"}}, "sh", "HOST:PORT"},
		{isolation{off: true, dir: dir}, "sh", "remove --no-isolation"},
		{isolation{dir: dir}, "./agent --flag", ""},
		{isolation{dir: dir}, filepath.Join(dir, "agent"), ""},
		{isolation{}, "/bin/sh agent", ""},
		{isolation{}, "python3 -m agent", ""},
		{isolation{}, "$AGENT/run", ""},
		{isolation{off: true}, "./agent", ""},
	} {
		err := c.flags.complete(c.agent, []string{filepath.Join(secret, "config")})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v %q: %v, want %q", c.flags, c.agent, err, c.want)
		}
	}
}

func TestMain(m *testing.M) {
	if code, is := sandbox.First(os.Args, os.Stdout, os.Stderr); is {
		os.Exit(code)
	}
	os.Exit(m.Run())
}
