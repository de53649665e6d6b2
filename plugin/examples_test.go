package plugin

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sandbox"
	"github.com/gpu-fault/kubectl-gpu-fault/test/typed"
)

// parses returns nil when cobra takes the command line: the command, its flags with their types, its arguments. Nothing
// runs.
func parses(args []string) error {
	root := NewCommand(genericiooptions.NewTestIOStreamsDiscard())
	var still func(*cobra.Command)
	still = func(cmd *cobra.Command) {
		if cmd.Name() != "help" && cmd != root { // which refuse commands that there are not
			cmd.RunE = func(*cobra.Command, []string) error { return nil }
		}
		for _, sub := range cmd.Commands() {
			still(sub)
		}
	}
	still(root)
	root.SetArgs(args)
	return root.Execute()
}

// everyParse holds it of all commands of a script, and returns how many there were.
func everyParse(t *testing.T, where, script string) int {
	t.Helper()
	commands, err := typed.Commands(script)
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, script)
	}
	for _, args := range commands {
		if err := parses(args); err != nil {
			t.Errorf("%s: kubectl gpu-fault %s: %v", where, strings.Join(args, " "), err)
		}
	}
	return len(commands)
}

// unreachable is a cluster of which nothing answers.
const unreachable = `
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none}}]
current-context: none
`

func TestMain(m *testing.M) {
	if code, is := sandbox.First(os.Args, os.Stdout, os.Stderr); is {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// A user copies an example of the help and runs it. Each, run as it stands, gets as far as the cluster (which does not
// answer here), to a file that only the user can have, or to the question: so nothing is wrong with its words.
func TestExamplesRun(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("config", []byte(unreachable), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", "config")
	t.Setenv("MODEL_API_KEY", "that examples pass on")
	if err := os.WriteFile("my-agent", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	count := 0
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		count += everyParse(t, cmd.CommandPath(), cmd.Example)
		commands, _ := typed.Commands(cmd.Example)
		for _, args := range commands {
			// Which would make a link for kubectl, and ask a registry
			if args[0] == "completion" || args[0] == "image" {
				continue
			}
			if _, _, err := execute(t, args...); err != nil && !beyondTheWords(err.Error()) {
				t.Errorf("%s: example: kubectl gpu-fault %s: %v", cmd.CommandPath(), strings.Join(args, " "), err)
			}
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(NewCommand(genericiooptions.NewTestIOStreamsDiscard()))
	if count < 60 {
		t.Errorf("found only %d examples", count)
	}
}

// beyondTheWords reports whether an error is about what the command line names, and not about the command line.
func beyondTheWords(message string) bool {
	for _, about := range []string{
		"127.0.0.1:1", "no such file or directory", "stdin is not a terminal",
		"--recipient age1...",    // a key is too long for an example
		"gpu-fault-0123456789ab", // the tag of an image is that of one build
	} {
		if strings.Contains(message, about) {
			return true
		}
	}
	return false
}

// What the pages of the repository tell to type is a command line that there is.
func TestCommandsOfPagesParse(t *testing.T) {
	t.Parallel()
	count := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if name == "testdata" || strings.HasPrefix(name, ".") && path != ".." {
				return fs.SkipDir
			}
			return nil
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		for _, script := range typed.Scripts(string(text)) {
			count += everyParse(t, path, script)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if count < 150 {
		t.Errorf("found only %d commands", count)
	}
}
