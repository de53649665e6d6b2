package main

import (
	"fmt"
	"os/exec"
)

// In each shell the user has kubectl's completion, and presses the tab key behind line.
const line = "kubectl gpu-fault xid explain 7"

// In bash the words are handed to the function that the tab key calls; it complains that no line is being edited.
const bash = `. /usr/share/bash-completion/bash_completion
. <(kubectl completion bash)
read -ra COMP_WORDS <<<"$0"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$0 COMP_POINT=${#0} COMP_TYPE=9
__start_kubectl kubectl 7 explain 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"`

// zsh completes only on a terminal, which its module zpty plays. The echo in two parts tells the answer from what was
// typed.
const zsh = `zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "autoload -Uz compinit; compinit -u -d $HOME/.zcompdump; source <(kubectl completion zsh); compdef _kubectl kubectl; LISTMAX=1000; echo rea''dy"
said= began=$SECONDS
until [[ $said == *ready* ]] || (( SECONDS - began > 60 )); do zpty -r -t shell part && said+=$part || sleep 0.1; done
zpty -n -w shell "$0"$'\t\t'
said= began=$SECONDS
until [[ $said == *79* ]] || (( SECONDS - began > 60 )); do zpty -r -t shell part && said+=$part || sleep 0.1; done
zpty -d shell
print -r -- $said`

const fish = `kubectl completion fish | source; complete -C "` + line + `"`

func completesInBash(w *world) (string, error) {
	return w.shell("bash", "--norc", "--noprofile", "-c", bash, line)
}

func completesInZsh(w *world) (string, error) { return w.shell("zsh", "-f", "-c", zsh, line) }

func completesInFish(w *world) (string, error) { return w.shell("fish", "--no-config", "-c", fish) }

// shell runs a shell with the user's PATH before the system's, and checks what it completes.
func (w *world) shell(name string, args ...string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("hack/install-tools.sh installs it: %w", err)
	}
	said, err := w.user([]string{"PATH=" + w.tools() + ":" + w.bin("") + ":/usr/bin:/bin", "TERM=xterm"}, path, args...)
	if err != nil {
		return "", err
	}
	return "", has(said, "70", "79")
}
