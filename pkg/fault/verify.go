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

// A record may have been written by anyone with permission to write ConfigMaps in the ledger. The checks in this file
// run before anything is undone, and before the user is asked to confirm a revert.

// NodeUndoer is an Undoer that can start a privileged pod on the step's target node.
type NodeUndoer interface {
	Undoer
	// EntersNode reports whether undoing the step requires a privileged pod.
	EntersNode(step ledger.Step) bool
}

// Verifier is an Undoer that can check in advance whether it accepts a step's undo data.
type Verifier interface {
	Undoer
	// Verify returns an error if undoing the step would be rejected. It changes nothing.
	Verify(ctx context.Context, run ledger.Run, step ledger.Step) error
}

// CheckUndo returns the reason why a step of a recorded run would not be undone, so that it can be shown before the
// user confirms a revert. It returns nil if no problem is found.
func (s *Session) CheckUndo(ctx context.Context, run ledger.Run, step ledger.Step) error {
	gone, err := s.verify(ctx, run, step, s.Allow)
	if err == nil && gone != "" {
		return fmt.Errorf("not undone: %s", gone)
	}
	return err
}

// verify checks a step before it is undone. If there is nothing left to undo, gone is the reason.
func (s *Session) verify(
	ctx context.Context, run ledger.Run, step ledger.Step, allow Allowances,
) (gone string, err error) {
	undoer := s.Undoers[step.Undo.Kind]
	if entering, ok := undoer.(NodeUndoer); ok && entering.EntersNode(step) {
		if step.Target.Kind != kindNode {
			return "", fmt.Errorf("the record's undo data is rejected: the undo changes a node, but its target is "+
				"%s", step.Target)
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

// checkRepetition rejects a record that makes the same change to a node more than once. A run never does so, because a
// node keeps one record for each change. A forged record with thousands of such steps would start one pod after
// another.
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

// mayEnter rejects nodes on which the user was not allowed to inject a fault. gone is non-empty if the node was
// replaced or deleted.
func (s *Session) mayEnter(
	ctx context.Context, run ledger.Run, target ledger.Target, allow Allowances,
) (gone string, err error) {
	if problems := validation.NameIsDNSSubdomain(target.Name, false); len(problems) > 0 {
		return "", fmt.Errorf("the record's undo data is rejected: %q is not the name of a node: %s", target.Name,
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
			fmt.Errorf("node %q belongs to the control plane (label %s), and the undo starts a privileged pod there. If you know that the record of the run is genuine, use: %s",
				target.Name, role, s.Ledger.Command(append(command, "--allow-control-plane")...))
	}
	return "", nil
}

// sameNode returns the node of a target. If the node is not the one that was changed, gone is the reason.
func (s *Session) sameNode(ctx context.Context, target ledger.Target) (node *corev1.Node, gone string, err error) {
	node, err = s.Client.CoreV1().Nodes().Get(ctx, target.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf(
			"node %q is not in the cluster; if the machine is still running, its dead man's switch or its next boot restores it",
			target.Name,
		), nil
	case err != nil:
		return nil, "", fmt.Errorf("check whether node %q is the one that was changed: %w", target.Name, err)
	case target.UID != "" && string(node.UID) != target.UID:
		return nil,
			fmt.Sprintf("node %q is not the node that was changed (UID %s, not %s); if it is the same machine, its dead man's switch or its next "+
				"boot restores it", target.Name, node.UID, target.UID), nil
	}
	return node, "", nil
}

// replaced returns a message if the node is not the one that was changed and must therefore not be modified. It returns
// "" if the node is the same.
func (s *Session) replaced(ctx context.Context, step ledger.Step) (string, error) {
	if step.Target.Kind != kindNode || step.Target.UID == "" || step.Undo.IsPermanent() {
		return "", nil
	}
	_, gone, err := s.sameNode(ctx, step.Target)
	return gone, err
}
