package plugin

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// execute runs a command line without a cluster.
func execute(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := NewCommand(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

// Help must name the program as the user calls it, on stdout, with the command's own flags only and no line that is too
// long.
func TestHelpSpeaksKubectl(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		has  []string
	}{
		{[]string{"--help"}, []string{"\n  kubectl gpu-fault COMMAND", "\n  xid "}},
		{nil, []string{"\n  kubectl gpu-fault COMMAND"}},
		{[]string{"help", "xid"}, []string{"\n  kubectl gpu-fault xid CODE", "--count", "\n  replay "}},
		{[]string{"xid", "--help"}, []string{"\n  kubectl gpu-fault xid CODE", "--count", "\n  replay "}},
		{[]string{"revert", "--help"}, []string{"\n  kubectl gpu-fault revert (RUN...", "--node"}},
		{[]string{"xid", "replay", "--help"}, []string{"\n  kubectl gpu-fault xid replay FILE", "--speed"}},
		{[]string{"rbac"}, []string{"\n  xid ", "\n  leftovers ", "root on every node", "\n  print "}},
		{
			[]string{"rbac", "print", "--help"},
			[]string{
				"--user stringArray", "not the kubeconfig user", "specify all of them each time", "-n NAMESPACE",
			},
		},
	} {
		out, _, err := execute(t, test.args...)
		if err != nil {
			t.Fatalf("%v: %v", test.args, err)
		}
		for _, part := range append(test.has, `Use "kubectl gpu-fault options" for a list of global flags (apply to all commands).`) {
			if !strings.Contains(out, part) {
				t.Errorf("help of %v lacks %q:\n%s", test.args, part, out)
			}
		}
		for _, part := range []string{"--context", "--kubeconfig", "--ledger-namespace", "--help  "} {
			if strings.Contains(out, part) {
				t.Errorf("help of %v has %q, which is for `options`", test.args, part)
			}
		}
		fits(t, out)
	}
}

// fits holds that no line of help is wider than 100 columns.
func fits(t *testing.T, help string) {
	t.Helper()
	for line := range strings.Lines(help) {
		if len([]rune(strings.TrimSuffix(line, "\n"))) > widthOfHelp {
			t.Errorf("wider than %d columns: %s", widthOfHelp, line)
		}
	}
}

func TestEveryHelpFits(t *testing.T) {
	t.Parallel()
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		out, _, err := execute(t, append(strings.Fields(cmd.CommandPath())[2:], "--help")...)
		if err != nil {
			t.Errorf("%s: %v", cmd.CommandPath(), err)
		}
		fits(t, out)
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(NewCommand(genericiooptions.NewTestIOStreamsDiscard()))
}

func TestOptionsHasWhatHelpLeavesOut(t *testing.T) {
	t.Parallel()
	out, _, err := execute(t, "options")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"--context", "--kubeconfig", "-n, --namespace", "--ledger-namespace", "-v, --v",
		"KUBECTL_GPU_FAULT_LEDGER_NAMESPACE", "Supported flags:",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("options lacks %q:\n%s", part, out)
		}
	}
	fits(t, out)
}

// Every command says what it does in kubectl's style, and has an example where it takes arguments.
func TestEveryCommandIsDocumented(t *testing.T) {
	t.Parallel()
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		if cmd.Name() == "help" || cmd.Hidden {
			return
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") || cmd.Short[:1] != strings.ToUpper(cmd.Short[:1]) {
			t.Errorf("%s: Short %q begins with a capital verb and has no full stop", cmd.CommandPath(), cmd.Short)
		}
		if cmd.HasParent() && cmd.Runnable() && !strings.Contains(cmd.Example, "kubectl gpu-fault ") {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
	}
	visit(NewCommand(genericiooptions.NewTestIOStreamsDiscard()))
}

func TestFlagBeatsEnvironmentBeatsDefault(t *testing.T) {
	t.Setenv("KUBECTL_GPU_FAULT_PARALLEL", "none-of-your-business")
	if _, _, err := execute(t, "xid", "79", "n"); err == nil ||
		!strings.Contains(err.Error(), "KUBECTL_GPU_FAULT_PARALLEL") {
		t.Errorf("a bad variable was not named: %v", err)
	}
	if _, _, err := execute(t, "xid", "79", "--parallel", "-1", "n"); err == nil ||
		!strings.Contains(err.Error(), "-1 for --parallel") {
		t.Errorf("the flag did not win: %v", err)
	}
	// A variable that somebody forgot must not confirm a fault.
	t.Setenv("KUBECTL_GPU_FAULT_PARALLEL", "")
	t.Setenv("KUBECTL_GPU_FAULT_YES", "not-a-bool")
	if _, _, err := execute(t, "xid", "79"); err == nil || strings.Contains(err.Error(), "YES") {
		t.Errorf("--yes was read from the environment: %v", err)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	interrupted, cancel := context.WithCancelCause(t.Context())
	cancel(ErrInterrupted)
	for name, test := range map[string]struct {
		ctx  context.Context
		err  error
		want int
	}{
		"done":        {t.Context(), nil, 0},
		"could not":   {t.Context(), errors.New("x"), 1},
		"interrupted": {interrupted, errors.New("x"), 130},
	} {
		if got := ExitCode(test.ctx, test.err); got != test.want {
			t.Errorf("%s: exit %d, wanted %d", name, got, test.want)
		}
	}
}

// A command's own flag may have the name of a connection flag: rbac's --user names whom to bind, not the kubeconfig's
// user.
func TestEnvironmentDoesNotBindUsers(t *testing.T) {
	t.Setenv("KUBECTL_GPU_FAULT_USER", "admin")
	t.Setenv("KUBECTL_GPU_FAULT_GROUP", "everybody")
	out, _, err := execute(t, "rbac", "xid")
	if err != nil || strings.Contains(out, "Binding") {
		t.Errorf("a variable bound roles (%v):\n%s", err, out)
	}
}

// Usage errors say what to do, in one line on stderr, without the words of cobra, pflag or Go.
func TestUsageErrors(t *testing.T) {
	t.Setenv("KUBECTL_GPU_FAULT_KUBECONFIG", "")
	for line, want := range map[string]string{
		"nosuch":                            `unknown command "nosuch"; see: kubectl gpu-fault --help`,
		"nosuch --flag":                     `unknown command "nosuch"; see: kubectl gpu-fault --help`,
		"lsit":                              `unknown command "lsit"; did you mean list?`,
		"help nosuch":                       `unknown command "nosuch"; see: kubectl gpu-fault --help`,
		"help xid explian":                  `unknown command "explian"; did you mean explain?`,
		"options x":                         "options takes no arguments",
		"list xid-foo":                      "list takes no arguments",
		"version 1":                         "version takes no arguments",
		"revert":                            "specify exactly one of: run IDs",
		"xid 79 n --nosuch":                 "unknown flag: --nosuch; see: kubectl gpu-fault xid --help",
		"xid 79 n --count x":                `invalid value "x" for --count: must be a whole number`,
		"xid list a b":                      "xid list takes only one word, as in: kubectl gpu-fault xid list nvlink",
		"xid explain":                       "xid explain requires a code, as in: kubectl gpu-fault xid explain 79",
		"rbac print":                        "specify features, as in: kubectl gpu-fault rbac print --for xid,doctor; supported values: xid, runtime",
		"rbac print xid":                    "rbac print takes no arguments",
		"rbac foo":                          `unknown feature "foo": supported values: xid`,
		"rbac print --for xid,foo":          `unknown feature "foo": supported values: xid`,
		"rbac print --for xid --api-only":   "--api-only requires --for doctor",
		"completion tcsh":                   `no completion for "tcsh"; supported values: bash, zsh, fish, powershell`,
		"list --kubeconfig /nope":           "kubeconfig /nope does not exist",
		"version --kubeconfig /nope":        "kubeconfig /nope does not exist (pass --client to print only the version of the plugin)",
		"xid list -o jsonpath={.items":      "-o jsonpath: template {.items: unclosed action",
		"xid list -o jsonpath={.items[9e9]": "-o jsonpath: template {.items[9e9]: ",
	} {
		out, _, err := execute(t, strings.Fields(line)...)
		if err == nil {
			t.Errorf("%s: no error", line)
			continue
		}
		if out != "" {
			t.Errorf("%s: stdout %q", line, out)
		}
		if message := ErrorMessage(err); !strings.HasPrefix(message, "error: "+want) ||
			strings.Contains(message, "\n") {
			t.Errorf("%s:\n%s, wanted\nerror: %s", line, message, want)
		}
	}
}

// TestAnArchiveIsNotText: what is for programs goes to standard output byte for byte, through all that escapes text
// for people.
func TestAnArchiveIsNotText(t *testing.T) {
	t.Parallel()
	out, errOut, err := execute(t, "image", "save", "node", "-f", "-")
	if err != nil && strings.Contains(err.Error(), "make build") {
		t.Skip("needs the node helpers: run `make build` first")
	}
	if err != nil {
		t.Fatal(err, errOut)
	}
	files := tar.NewReader(strings.NewReader(out))
	for n := 0; ; n++ {
		header, err := files.Next()
		if errors.Is(err, io.EOF) && n > 0 {
			return
		}
		if err == nil {
			_, err = io.Copy(io.Discard, files)
		}
		if err != nil {
			t.Fatalf("entry %d, %+v, of %d bytes: %v", n, header, len(out), err)
		}
	}
}
