// Package shell builds the commands in fixes. Users paste the commands into a shell, and the commands contain data from
// clusters and snapshots that may be malicious.
package shell

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/snapshot"
)

// Any client that can create an event or an owner reference can choose the names in commands. Therefore, only this
// package may build commands.

// LeftOut replaces a command whose data cannot be pasted safely. It contains none of the data, and has no effect even
// in a shell that does not support comments.
const LeftOut = "# command omitted: it contains a name that cannot be pasted safely"

// Command returns a command line for the user's shell. The format is trusted and contains one unquoted %s or %d for
// each argument. Each argument becomes one shell word, or part of one, regardless of its content, so do not pass
// strings that consist of several words. Command returns LeftOut if an argument begins with "-", which programs
// interpret as a flag, or contains control characters.
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

// OnHost returns a command for a node's shell, built as by Command and wrapped in ssh, so that users cannot run it on
// their local machine by mistake. The format includes sudo if the command requires it. An empty node name becomes the
// placeholder NODE.
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

// quoteLine quotes a line as one word for the remote shell of ssh, in a readable form if the line contains quotes.
func quoteLine(line string) string {
	switch {
	case strings.Trim(line, plainRunes+" ") == "":
		return line // plain words need no quotes, because ssh joins its arguments with spaces
	case strings.Contains(line, "'") && !strings.ContainsAny(line, "\"$`\\!"):
		return `"` + line + `"`
	}
	return ShellQuote(line)
}

// isNodeName reports whether a string is a valid node name. ssh may interpret other strings as a user, port or flag.
func isNodeName(name string) bool { return IsSubdomain(name) }

// IsSubdomain reports whether a string is an RFC 1123 subdomain, like the names of Kubernetes objects and runtime
// handlers.
func IsSubdomain(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	return name != "" && len(name) <= 253 && strings.Trim(name, letters+".-") == "" &&
		strings.IndexByte(letters, name[0]) >= 0 && strings.IndexByte(letters, name[len(name)-1]) >= 0
}

// pasteable reports whether a string from a cluster can safely be a word in a command: it is not a flag and contains no
// characters that a terminal interprets.
func pasteable(text string) bool {
	return utf8.ValidString(text) && !strings.HasPrefix(text, "-") && len(text) <= 4096 &&
		!strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// plainRunes are characters without a special meaning in a shell.
const plainRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+.,:/@"

// ShellQuote quotes a string as one shell word.
func ShellQuote(text string) string {
	if text != "" && strings.Trim(text, plainRunes) == "" && text[0] != '=' { // zsh expands =ls to the path of ls
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// RevertRun returns the command that reverts a run. The command is built from the run's ID and the namespace of its
// record, because other strings in a snapshot are untrusted.
func RevertRun(run snapshot.Run) string {
	if !IsSubdomain(run.ID) {
		return LeftOut
	}
	if _, namespace, other := strings.Cut(run.Revert, " --ledger-namespace "); other && IsSubdomain(namespace) {
		return Command("kubectl gpu-fault revert %s --ledger-namespace %s", run.ID, namespace)
	}
	return Command("kubectl gpu-fault revert %s", run.ID)
}
