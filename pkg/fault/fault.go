// Package fault makes all changes to the cluster. Every fault is a Plan, which a Session preflights, records, applies,
// verifies, and undoes. Before a change is made, the ledger already contains what is needed to undo it.
//
// If a client dies, Revert can undo the recorded changes from any machine. While a run is in progress, its client owns
// the run. A forced revert takes over the run, and the client's next Save fails.
package fault

import (
	"context"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Plan describes a run.
type Plan struct {
	// ID is the ID of the run. It is empty for a new run. Fleet is the fleet that the run is part of, or empty.
	ID, Fleet string

	Fault   string // kind of fault, such as xid
	Summary string // such as "XID 79 on GPU 0"
	Command []string
	// Changes are applied in order on each target, and in parallel on different targets.
	Changes []Change
	// InOrder means that each change depends on the previous ones, regardless of target. Changes are applied one at a
	// time. If one fails, all are undone in reverse order.
	InOrder bool
	// UndoTogether means that the changes do not depend on each other when they are undone, even if they are in order
	// or on the same target. They are undone in parallel.
	UndoTogether bool
	// Quiet disables Events on the targets for both the run and its revert, so that observers of the targets do not
	// learn the cause.
	Quiet bool
	// Needs are the permissions that the run requires. Preflight checks each permission with the API server.
	Needs []Permission
	// TTL is the time after which the cluster removes the run's resources and the fault ends. If it is zero, the fault
	// stays until it is reverted, and Reason is the user's reason for that.
	TTL    time.Duration
	Reason string
	// NoPods means that the fault starts no debug pods. The run then needs no Job to terminate them and no permission
	// to create a Job, which is equivalent to root on the nodes. The run's locks remain until it is reverted.
	NoPods bool
	// Allow lifts individual limits on the blast radius.
	Allow Allowances
	// Checks are preflight checks specific to the fault. They make no changes and may run in parallel.
	Checks []func(context.Context) error
}

// Change is one change to one target.
type Change struct {
	Target ledger.Target
	// Action describes the change, such as "write 1 record to the kernel log".
	Action string
	// Harmless means that the change does not reduce the capacity of its node. Such a change is allowed on control
	// plane nodes and does not count toward the blast radius.
	Harmless bool
	// Undo describes how to undo the change, as far as this is known before the change. Its Kind is a key of
	// Session.Undoers, or ledger.UndoNone.
	Undo ledger.Undo
	// Apply makes the change and returns evidence of it. A change without evidence counts as failed. Before Apply
	// changes anything, it must save the data that the undo needs through the Recorder, and it must change nothing if
	// Save fails. If Apply fails, it may still return evidence of what it changed. It must clean up its own processes
	// and pods, even if ctx is canceled.
	Apply func(ctx context.Context, r Recorder) ([]ledger.Evidence, error)
}

// Recorder saves the progress of a step. Save returns after the ledger has stored it.
type Recorder interface {
	// Run returns the record as created, including its ID.
	Run() ledger.Run
	// Save changes the step and stores the run. It may call change several times, each time with a newer record, so
	// change must assign and not append. If Save returns an error, the caller must not change anything in the cluster.
	Save(ctx context.Context, change func(*ledger.Step)) error
	// Progress shows a message such as "debug pod running" to the user. The message is not recorded.
	Progress(text string)
}

// Undoer undoes the steps with one kind of Undo. It changes only objects that still have the state that the run set.
type Undoer interface {
	// Describe describes what Undo would do. The description is shown by `list -o wide` and in confirmation prompts.
	Describe(step ledger.Step) string
	// Undo undoes the step and returns its final state (reverted, superseded, or permanent) and a message for the user.
	// It must be idempotent, because an interrupted revert is repeated, and must accept a step that started but changed
	// nothing.
	Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error)
}

// Permission is one verb on one resource.
type Permission struct {
	Verb      string
	Group     string // "" for the core group
	Resource  string // such as "pods" or "pods/exec"
	Namespace string // "" for all namespaces or cluster-scoped resources
	// Optional permissions cause only a warning if they are missing.
	Optional bool
}

// Allowances lift individual limits on the blast radius.
type Allowances struct {
	ControlPlane bool // --allow-control-plane
	LastGPUNode  bool // --allow-last-gpu-node
	Majority     bool // --allow-majority: more than half of the GPU nodes
}
