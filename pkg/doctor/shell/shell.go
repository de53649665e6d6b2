// Package shell writes the commands of fixes. They are pasted into a shell, and what stands in them comes from clusters
// and snapshots, whose authors may mean harm.
package shell

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// Commands of fixes are pasted into a shell, and what stands in them comes from clusters and snapshots, whose authors
// may mean harm: whoever may write an event or an owner reference chooses names. So each command is made here and
// nowhere else.

// LeftOut stands for a command whose data cannot be pasted. It has nothing of the data, and nothing that a shell
// without comments would obey.
const LeftOut = "# a command is left out here: a name that belongs in it cannot be pasted safely"

// Command returns one line for a shell of the user's machine. The format is ours, with a %s or %d outside of quotes for
// each argument; an argument is one word of the shell, or part of one, whatever it holds. Texts of several words that
// are commands already (none of them data) do not belong here. An argument that begins with "-", which programs take
// for a flag, or that has control characters, leaves the command out.
func Command(format string, args ...any) string {
	words := make([]any, len(args))
	for i, arg := range args {
		if number, ok := arg.(int); ok {
			words[i] = number
			continue
		}
		text := fmt.Sprint(arg)
		if !pasteable(text) {
			return LeftOut
		}
		words[i] = ShellQuote(text)
	}
	return fmt.Sprintf(format, words...)
}

// OnHost returns a command for the shell of a node, as command makes it, that a user's machine cannot run by mistake:
// ssh takes it to the node. The format says sudo where the command needs it. A node without a name is NODE, to be
// filled in.
func OnHost(name, format string, args ...any) string {
	remote := Command(format, args...)
	switch {
	case name == "":
		name = "NODE"
	case !isNodeName(name):
		return LeftOut
	}
	if remote == LeftOut {
		return LeftOut
	}
	return "ssh " + name + " " + quoteLine(remote)
}

// quoteLine makes one word of a line for the shell at the other end of ssh, so that it can still be read where the line
// has quotes itself.
func quoteLine(line string) string {
	switch {
	case strings.Trim(line, plainRunes+" ") == "":
		return line // words are all the same to ssh
	case strings.Contains(line, "'") && !strings.ContainsAny(line, "\"$`\\!"):
		return `"` + line + `"`
	}
	return ShellQuote(line)
}

// isNodeName reports whether a text is a name as Kubernetes gives to nodes: ssh takes others for a user, a port or a
// flag.
func isNodeName(name string) bool { return IsSubdomain(name) }

// IsSubdomain reports whether a text is a name of RFC 1123, as objects of Kubernetes and handlers of runtimes have it.
func IsSubdomain(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	return name != "" && len(name) <= 253 && strings.Trim(name, letters+".-") == "" &&
		strings.IndexByte(letters, name[0]) >= 0 && strings.IndexByte(letters, name[len(name)-1]) >= 0
}

// pasteable reports whether a text from a cluster may be a word of a command: no flag, and nothing that a terminal
// would obey.
func pasteable(text string) bool {
	return utf8.ValidString(text) && !strings.HasPrefix(text, "-") && len(text) <= 4096 &&
		!strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// plainRunes mean nothing to a shell.
const plainRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+.,:/@"

// ShellQuote makes one word of a shell of a text.
func ShellQuote(text string) string {
	if text != "" && strings.Trim(text, plainRunes) == "" && text[0] != '=' { // zsh replaces =ls by its path
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// RevertRun returns the command that ends a run. It is made from the run's ID: the words in a snapshot may be
// anybody's, and of them only the namespace of the records is taken.
func RevertRun(run snapshot.Run) string {
	if !IsSubdomain(run.ID) {
		return LeftOut
	}
	if _, namespace, other := strings.Cut(run.Revert, " --ledger-namespace "); other && IsSubdomain(namespace) {
		return Command("kubectl gpu-fault revert %s --ledger-namespace %s", run.ID, namespace)
	}
	return Command("kubectl gpu-fault revert %s", run.ID)
}
