package faults

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/faults/cudashim"
	"github.com/gpu-fault/kubectl-gpu-fault/plugin/printer"
)

// targets returns the names of up to three targets of a run.
func targets(run ledger.Run) string {
	var names []string
	for _, t := range run.Targets() {
		names = append(names, targetName(t))
	}
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ","), len(names)-3)
	}
	return strings.Join(names, ",")
}

// targetName returns only the name of a node, since most targets are nodes.
func targetName(t ledger.Target) string {
	if t.Kind == "Node" {
		return t.Name
	}
	return t.String()
}

// undo describes what reverting the run does.
func undo[U interface{ Describe(ledger.Step) string }](undoers map[string]U, run ledger.Run, now time.Time) string {
	var all []string
	inWorkload := func(step ledger.Step) bool { return step.Undo.Kind == cudashim.UndoKind && step.InPlace() }
	if run.Expired(now) && slices.ContainsFunc(run.Steps, inWorkload) {
		all = append(all,
			fmt.Sprintf("the processes have been healthy since %s, but the shim is still in the pod template",
				run.Until.Local().Format("15:04")))
	}
	for _, step := range run.Steps {
		u, ok := undoers[step.Undo.Kind]
		if !ok {
			all = append(all, "not supported by this version: "+step.Undo.Kind)
			continue
		}
		if text := u.Describe(step); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	if len(all) > mostUndone { // an exercise may have dozens of steps
		all = append(all[:mostUndone:mostUndone], fmt.Sprintf("and %d more", len(all)-mostUndone))
	}
	return strings.Join(all, "; ")
}

// mostUndone is the maximum number of undo descriptions to list.
const mostUndone = 3

// message returns one line that describes how the run ended. For a failed run, this is the error of the first failed
// step.
func message(run ledger.Run) string {
	text := run.Message
	if i := slices.IndexFunc(
		run.Steps, func(s ledger.Step) bool { return s.State == ledger.StateFailed && s.Message != "" },
	); i >= 0 && run.Phase == ledger.Failed {
		text = run.Steps[i].Message
		if len(run.Steps) > 1 {
			text = targetName(run.Steps[i].Target) + ": " + text
		}
	}
	first, _, _ := strings.Cut(text, "\n")
	return first
}

// plain matches words that need no quoting in a shell.
var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// commandLine returns the user's command, quoted for a shell.
func commandLine(words []string) string {
	if len(words) == 0 {
		return ""
	}
	quoted := make([]string, len(words))
	for i, word := range words {
		if quoted[i] = word; !plain.MatchString(word) {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	// On Windows, the file name ends with .exe.
	if strings.HasPrefix(filepath.Base(words[0]), "kubectl-gpu_fault") {
		quoted[0] = "kubectl gpu-fault"
	}
	return strings.Join(quoted, " ")
}

// outcome returns the result of reverting a step.
func outcome(step ledger.Step) string {
	switch {
	case step.State == ledger.StatePlanned, step.State == ledger.StateSkipped, // never started
		step.State == ledger.StateFailed && !step.InPlace(),
		step.State == ledger.StateReverted && step.Undo.IsPermanent(): // a permanent change, but never made
		return "nothing to undo"
	case step.Pending(), step.State == ledger.StateFailed:
		return "not undone"
	default:
		return string(step.State)
	}
}

// remarks returns the messages of steps without duplicates. A message is a heading, optionally followed by lines. Lines
// below the same heading are merged. Because records are untrusted, each line is marked as a note or indented.
func remarks(runs []ledger.Run) string {
	var order []string
	below := map[string][]string{}
	for _, run := range runs {
		for _, step := range run.Steps {
			if step.Message == "" || outcome(step) == "nothing to undo" || outcome(step) == "not undone" {
				continue // the outcome or the error already describes it
			}
			lines := strings.Split(step.Message, "\n")
			heading := lines[0]
			if !slices.Contains(order, heading) {
				order = append(order, heading)
			}
			for _, line := range lines[1:] {
				if !slices.Contains(below[heading], line) {
					below[heading] = append(below[heading], line)
				}
			}
		}
	}
	var all []string
	for _, heading := range order {
		all = append(all, "Note: "+printer.Indented(strings.Join(append([]string{heading}, below[heading]...), "\n")))
	}
	return strings.Join(all, "\n")
}
