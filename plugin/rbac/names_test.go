package rbac

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpu-fault/kubectl-gpu-fault/plugin/kube"
)

// TestNamesAreKeptOrRefused: a role is bound to the name that was given, character by character, or to none.
func TestNamesAreKeptOrRefused(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"a carriage return":         {"--user", "a\r"},
		"bytes that are not UTF-8":  {"--user", "a\x85b"},
		"a line break":              {"--group", "a\n- kind: User"},
		"a bidi override":           {"--group", "a\u202eb"},
		"a second line":             {"--serviceaccount", "a:b\nkind: x"},
		"a namespace":               {"-n", "a\nb"},
		"a ledger":                  {"--ledger-namespace", "a\n---"},
		"an empty one among others": {"--user", "a,,b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &bytes.Buffer{}}
			connection := kube.NewConnection(streams)
			cmd := NewCommand(connection, streams)
			connection.AddFlags(cmd.PersistentFlags())
			cmd.SetArgs(append([]string{"print", "--for", "list"}, args...))
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			if err := cmd.Execute(); err == nil || out.Len() > 0 {
				t.Errorf("%v: %v\n%s", args, err, out.String())
			}
		})
	}
}
