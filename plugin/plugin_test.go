package plugin

import (
	"bytes"
	"context"
	"errors"
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

// Help must name the program as the user calls it, on stdout and with kubectl's flags.
func TestHelpSpeaksKubectl(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--help"}, {"xid", "--help"}, {"revert", "--help"}, {"xid", "replay", "--help"}} {
		out, _, err := execute(t, args...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		for _, part := range []string{"kubectl gpu-fault", "--context", "--kubeconfig", "--namespace"} {
			if !strings.Contains(out, part) {
				t.Errorf("help of %v lacks %q", args, part)
			}
		}
	}
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
	if _, _, err := execute(t, "xid", "79", "n"); err == nil || !strings.Contains(err.Error(), "KUBECTL_GPU_FAULT_PARALLEL") {
		t.Errorf("a bad variable was not named: %v", err)
	}
	if _, _, err := execute(t, "xid", "79", "--parallel", "0", "n"); err == nil || !strings.Contains(err.Error(), "--parallel 0") {
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

// Usage errors say what to do and go to stderr only.
func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"nosuch"}, {"xid"}, {"revert"}, {"xid", "79", "n", "--nosuch"}, {"rbac", "nosuch"}} {
		out, _, err := execute(t, args...)
		if err == nil {
			t.Errorf("%v: no error", args)
			continue
		}
		if out != "" {
			t.Errorf("%v: stdout %q", args, out)
		}
		if message := ErrorMessage(err); !strings.HasPrefix(message, "error: ") {
			t.Errorf("%v: %q", args, message)
		}
	}
}
