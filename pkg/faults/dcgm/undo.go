package dcgm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Undoer injects the previous values. Engine may be empty if only Describe is called.
type Undoer struct{ Engine Engine }

var _ fault.Needer = Undoer{}

// Describe implements fault.Undoer.
func (u Undoer) Describe(ledger.Step) string {
	return "inject the previous XIDs into DCGM's host engine; data that its readers have recorded remains"
}

// Needs implements fault.Needer.
func (u Undoer) Needs(ledger.Step, string) []fault.Permission { return Permissions() }

// Feature implements fault.Needer.
func (Undoer) Feature() string { return "nvml" }

// Permissions returns the permissions that the injection and its undo need, in addition to those for every fault.
func Permissions() []fault.Permission {
	return []fault.Permission{
		{Verb: "list", Resource: "pods"}, {Verb: "create", Resource: "pods/exec"}, {Verb: "get", Resource: "pods/exec"},
	}
}

// maxXID is the largest XID in a record.
const maxXID = 99999

// Undo implements fault.Undoer. It uses the host engine that it finds on the node itself, not one named in the record.
func (u Undoer) Undo(ctx context.Context, _ ledger.Run, step ledger.Step) (ledger.State, string, error) {
	if len(step.Undo.Data) == 0 {
		return ledger.StateReverted, "nothing had been changed", nil
	}
	var d undo
	if err := json.Unmarshal(step.Undo.Data, &d); err != nil {
		return "", "", fmt.Errorf("the record's undo data cannot be read: %w", err)
	}
	for _, before := range d.Before {
		if before < 0 || before > maxXID {
			return "", "", fmt.Errorf("the record's undo data is rejected: %d is not an XID", before)
		}
	}
	if u.Engine.Client == nil || u.Engine.Execer == nil {
		return "", "", errors.New("undoing the change requires a connection to the cluster")
	}
	pods, err := u.Engine.podsOn(ctx, step.Target.Name)
	if err != nil {
		return "", "", err
	}
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return string(p.UID) == d.UID })
	if i < 0 {
		return ledger.StateReverted, "the pod with the host engine no longer exists, and neither does its cache", nil
	}
	for id, before := range d.Before {
		if err := u.Engine.set(ctx, &pods[i], id, before); err != nil {
			return "", "", err
		}
	}
	return ledger.StateReverted, "the host engine has the previous XIDs again; its readers' metrics and conditions " +
		"may remain", nil
}
