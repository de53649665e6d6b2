package plugin

import (
	"os/exec"
	"strings"
	"testing"
)

// The scripts complete the file that users call (not the command's name within kubectl), and each shell that is
// installed can read its own.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for shell, registers := range map[string]string{
		"bash":       "complete -o default -F __start_kubectl-gpu_fault kubectl-gpu_fault\n",
		"zsh":        "#compdef kubectl-gpu_fault\n",
		"fish":       "complete -c kubectl-gpu_fault ",
		"powershell": "Register-ArgumentCompleter -CommandName 'kubectl-gpu_fault'",
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			script, _, err := execute(t, "completion", shell)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(script, registers) {
				t.Errorf("the script lacks %q:\n%.300s", registers, script)
			}
			path, err := exec.LookPath(shell)
			if err != nil || shell == "powershell" { // which has no flag for that
				t.Logf("its script was not read by %s: install that to have it read", shell)
				return
			}
			check := exec.CommandContext(t.Context(), path, "-n")
			check.Stdin = strings.NewReader(script)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s cannot read its script: %v\n%s", shell, err, out)
			}
		})
	}
}
