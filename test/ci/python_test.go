//go:build linux

package ci

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin"
	"github.com/gpu-fault/kubectl-gpu-fault/test/typed"
)

func pythonPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/guides/python.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// Every command of the page for Python is one of the program's, with flags and arguments that it takes, and prints
// JSON. TestPythonPage (test/e2e) runs them.
func TestCommandsForPython(t *testing.T) {
	t.Parallel()
	lines := typed.InTables(pythonPage(t))
	if len(lines) < 12 {
		t.Errorf("only %d commands were found", len(lines))
	}
	for _, line := range lines {
		commands, err := typed.Commands(line)
		if err != nil || len(commands) != 1 {
			t.Errorf("%s: %v, %q", line, err, commands)
			continue
		}
		if err := parses(commands[0]); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if !strings.HasSuffix(line, " -o json") {
			t.Errorf("%s: does not print JSON", line)
		}
	}
}

// parses returns an error if the program does not take the words.
func parses(words []string) error {
	var cmd *cobra.Command
	cmd, rest, err := plugin.NewCommand(genericiooptions.NewTestIOStreamsDiscard()).Find(words)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// The function of the page runs: it returns the JSON of a command, takes 2 as an answer, and raises on a failure.
func TestFunctionForPython(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal("python3 is not in PATH: install it, to run the function of the page")
	}
	_, rest, _ := strings.Cut(pythonPage(t), "```python\n")
	code, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the page has no Python")
	}
	const stubKubectl = "#!/bin/sh\necho \"$*\" >>\"$STUB/args\"\necho '{\"id\": \"xid-7k3f9q\"}'\nexit \"${CODE:-0}\"\n"
	for _, test := range []struct {
		code string
		exit int
		want string
	}{
		{"0", 0, "gpu-fault xid 79 worker-node-1 --gpu 0 --ttl 10m --yes -o json\n" +
			"gpu-fault revert xid-7k3f9q --yes -o json\n"},
		{"2", 0, "gpu-fault xid 79 worker-node-1 --gpu 0 --ttl 10m --yes -o json\n" +
			"gpu-fault revert xid-7k3f9q --yes -o json\n"},
		{"1", 1, "gpu-fault xid 79 worker-node-1 --gpu 0 --ttl 10m --yes -o json\n"},
	} {
		r := newRelease(t, stub)
		bin := t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(stubKubectl), 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := r.command([]string{"PATH=" + bin + ":" + os.Getenv("PATH"), "CODE=" + test.code}, python, "-c", code)
		said, exit := r.run(cmd)
		if got := r.read(filepath.Join(r.stub, "args")); exit != test.exit || got != test.want {
			t.Errorf("exit code %s: exit %d: %s\n%s", test.code, exit, said, got)
		}
	}
}
