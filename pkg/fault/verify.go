package fault

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// A record may have been written by anyone who may write ConfigMaps in the ledger. What is verified here holds before
// anything is undone, and is what the user is shown before the question.

// NodeUndoer is an Undoer that starts a privileged pod on the node that is the step's target.
type NodeUndoer interface {
	Undoer
	// EntersNode reports whether the undo of the step takes such a pod.
	EntersNode(step ledger.Step) bool
}

// Verifier is an Undoer that can check beforehand whether it would follow a step's undo.
type Verifier interface {
	Undoer
	// Verify returns why the undo of a step would be rejected, without changing anything.
	Verify(ctx context.Context, run ledger.Run, step ledger.Step) error
}

// CheckUndo returns, for the question before a revert, why the step of a recorded run would not be undone; nil if
// nothing is known to stand in the way.
func (s *Session) CheckUndo(ctx context.Context, run ledger.Run, step ledger.Step) error {
	gone, err := s.verify(ctx, run, step, s.Allow)
	if err == nil && gone != "" {
		return fmt.Errorf("nothing is undone: %s", gone)
	}
	return err
}

// verify returns in gone why there is nothing to undo any more.
func (s *Session) verify(
	ctx context.Context, run ledger.Run, step ledger.Step, allow Allowances,
) (gone string, err error) {
	undoer := s.Undoers[step.Undo.Kind]
	if entering, ok := undoer.(NodeUndoer); ok && entering.EntersNode(step) {
		if step.Target.Kind != kindNode {
			return "", fmt.Errorf("the record's undo is rejected: it changes a node, and its target is %s", step.Target)
		}
		if gone, err := s.mayEnter(ctx, run, step.Target, allow); err != nil || gone != "" {
			return gone, err
		}
		if err := s.checkNamespaceAccess(ctx); err != nil {
			return "", err
		}
	} else if gone, err := s.replaced(ctx, step); err != nil || gone != "" {
		return gone, err
	}
	if verifier, ok := undoer.(Verifier); ok {
		return "", verifier.Verify(ctx, run, step)
	}
	return "", nil
}

// checkRepetition rejects a record that changes one node twice in the same way. A run never does so: the node has one
// record of it. A forged record of thousands of such steps would start one pod after the other.
func (s *Session) checkRepetition(run ledger.Run) error {
	type change struct{ kind, node string }
	seen := map[change]int{}
	for _, step := range run.Steps {
		entering, ok := s.Undoers[step.Undo.Kind].(NodeUndoer)
		if !ok || !step.InPlace() || !entering.EntersNode(step) {
			continue
		}
		one := change{step.Undo.Kind, step.Target.Name}
		if seen[one]++; seen[one] > 1 {
			return fmt.Errorf("the record of run %s is rejected: it names %s more than once for the same change (%s)",
				run.ID, step.Target, step.Undo.Kind)
		}
	}
	return nil
}

// mayEnter refuses nodes on which the user would not have broken anything. gone says that the node is another one, or
// none.
func (s *Session) mayEnter(
	ctx context.Context, run ledger.Run, target ledger.Target, allow Allowances,
) (gone string, err error) {
	if problems := validation.NameIsDNSSubdomain(target.Name, false); len(problems) > 0 {
		return "", fmt.Errorf("the record's undo is rejected: %q is not the name of a node: %s", target.Name,
			strings.Join(problems, "; "))
	}
	node, gone, err := s.sameNode(ctx, target)
	if err != nil || gone != "" {
		return gone, err
	}
	if role, ok := ControlPlaneRole(*node); ok && !allow.ControlPlane {
		command := []string{"revert", run.ID}
		if run.Fault == "scenario" {
			command = []string{"scenario", "end", run.ID}
		}
		return "",
			fmt.Errorf("node %q belongs to the control plane (label %s), and the undo starts a privileged pod there: if the run is genuine: %s",
				target.Name, role, s.Ledger.Command(append(command, "--allow-control-plane")...))
	}
	return "", nil
}

// sameNode returns the node of a target, or in gone why it is not the one that was changed.
func (s *Session) sameNode(ctx context.Context, target ledger.Target) (node *corev1.Node, gone string, err error) {
	node, err = s.Client.CoreV1().Nodes().Get(ctx, target.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf(
			"node %q is not in the cluster; if its machine still runs, its dead man's switch or its next boot restores it",
			target.Name,
		), nil
	case err != nil:
		return nil, "", fmt.Errorf("check whether node %q is the one that was changed: %w", target.Name, err)
	case target.UID != "" && string(node.UID) != target.UID:
		return nil,
			fmt.Sprintf("node %q is another one than was changed (UID %s, not %s); if it is the same machine, its dead man's switch or its next "+
				"boot restores it", target.Name, node.UID, target.UID), nil
	}
	return node, "", nil
}

// replaced reports that a node is not the one that was changed, and so is not changed; empty when it is the same.
func (s *Session) replaced(ctx context.Context, step ledger.Step) (string, error) {
	if step.Target.Kind != kindNode || step.Target.UID == "" || step.Undo.IsPermanent() {
		return "", nil
	}
	_, gone, err := s.sameNode(ctx, step.Target)
	return gone, err
}
