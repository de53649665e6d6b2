package typed

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommands(t *testing.T) {
	t.Parallel()
	for script, want := range map[string][][]string{
		"# a comment\nkubectl gpu-fault xid 79 gpu-1": {
			{"xid", "79", "gpu-1"},
		},
		"kubectl gpu-fault rbac xid --group g | kubectl apply -f -": {
			{"rbac", "xid", "--group", "g"},
		},
		"kubectl gpu-fault doctor --checks 'rt.*' > out.txt # all": {
			{"doctor", "--checks", "rt.*"},
		},
		"kubectl gpu-fault list \\\n  --all": {
			{"list", "--all"},
		},
		"run=$(kubectl gpu-fault list -o name)\nfor r in $run; do kubectl gpu-fault revert \"$r\" --yes; done": {
			{"list", "-o", "name"}, {"revert", "x", "--yes"},
		},
		"source <(kubectl gpu-fault completion bash)": {
			{"completion", "bash"},
		},
		"kubectl get nodes": nil,
	} {
		got, err := Commands(script)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", script, err, diff)
		}
	}
	if _, err := Commands("kubectl gpu-fault list 'x"); err == nil {
		t.Error("a quote that does not end was read")
	}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	page :=
		"text kubectl gpu-fault no\n\n    $ kubectl gpu-fault list\n    RUN\n    kubectl gpu-fault start \\\n      --x   # why\n\n```sh\nif true; then\n  kubectl gpu-fault version\nfi\n```\n```text\nkubectl gpu-fault no\n```\n"
	want := []string{
		"kubectl gpu-fault list", "kubectl gpu-fault start \\\n      --x   # why",
		"if true; then\n  kubectl gpu-fault version\nfi", "",
	}
	if diff := cmp.Diff(want, Scripts(page)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Commands in the tables of a page are found, and nothing else is.
func TestInTables(t *testing.T) {
	t.Parallel()
	const page = "`kubectl gpu-fault list`\n\n| a | `b`, `kubectl gpu-fault xid 79 a` |\n|---|---|\n" +
		"| c | `kubectl get nodes`; `kubectl gpu-fault revert RUN` |\n"
	want := []string{"kubectl gpu-fault xid 79 a", "kubectl gpu-fault revert RUN"}
	if got := InTables(page); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
