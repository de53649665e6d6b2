package fault

import "github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"

// OnNode is embedded by undoers that work through debug pods on nodes. A step without undo data has changed nothing, so
// undoing it starts no pod.
type OnNode struct {
	// Progress receives progress messages about a step for the user. It may be nil.
	Progress func(step ledger.Step, text string)
}

// EntersNode implements NodeUndoer.
func (OnNode) EntersNode(step ledger.Step) bool { return len(step.Undo.Data) > 0 }

// Needs implements Needer.
func (u OnNode) Needs(step ledger.Step, ledgerNamespace string) []Permission {
	if !u.EntersNode(step) {
		return nil
	}
	return DebugPodPermissions(ledgerNamespace)
}

// Feature implements fault.Needer.
func (OnNode) Feature() string { return "" }

// Say returns a function that shows progress messages about a step to the user.
func (u OnNode) Say(step ledger.Step) func(text string) {
	return func(text string) {
		if u.Progress != nil {
			u.Progress(step, text)
		}
	}
}
