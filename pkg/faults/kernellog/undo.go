package kernellog

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// UndoKind is the ledger.Undo.Kind for records in a kernel log.
const UndoKind = "kernel-log"

// Undoer closes steps that wrote to a kernel log. It changes nothing on the node, because records cannot be removed
// from the log.
type Undoer struct {
	// Forget returns one sentence for each detector. The sentence describes how to clear the given XIDs from the
	// detector.
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
	_ = json.Unmarshal(step.Detail, &d) // if the detail is not readable, only the list of XIDs is missing
	lines := []string{
		"the lines stay in the kernel log, because they cannot be removed. To clear them from each detector:",
	}
	if u.Forget != nil {
		for _, line := range u.Forget(d.XIDs) {
			lines = append(lines, "  "+line)
		}
	}
	return ledger.StatePermanent, strings.Join(lines, "\n"), nil
}
