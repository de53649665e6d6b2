package kernellog

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// UndoKind is the ledger.Undo.Kind of records in a kernel log.
const UndoKind = "kernel-log"

// Undoer closes steps that wrote to a kernel log. It changes nothing on the node: the log cannot be unwritten.
type Undoer struct {
	// Forget says, for the XIDs written, what each detector needs to forget them: a sentence per detector.
	Forget func(xids []string) []string
}

// Describe implements fault.Undoer.
func (u Undoer) Describe(ledger.Step) string {
	return "none (kernel log)"
}

// Undo implements fault.Undoer.
func (u Undoer) Undo(_ context.Context, _ ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if len(step.Evidence) == 0 && len(step.Detail) == 0 {
		return ledger.StateReverted, "nothing had been written to the kernel log", nil
	}
	var d Detail
	_ = json.Unmarshal(step.Detail, &d) // an unreadable detail costs the list of XIDs, not the revert
	lines := []string{
		"the lines stay in the kernel log: it cannot be unwritten. What each detector needs to forget them:",
	}
	if u.Forget != nil {
		for _, line := range u.Forget(d.XIDs) {
			lines = append(lines, "  "+line)
		}
	}
	return ledger.StatePermanent, strings.Join(lines, "\n"), nil
}
