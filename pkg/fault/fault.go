// Package fault is the only way to change a cluster: every fault is a Plan that a Session preflights, records, applies,
// proves and undoes. Nothing is changed before its undo is in the ledger, and everything ends proven or reverted.
//
// A client may die at any moment. What it did is then in the ledger, and Revert undoes it from any machine. While a run
// is in its way its client has the say; a revert that is forced takes it away, and the client's next Save fails.
package fault

import (
	"context"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/fault/ledger"
)

// Plan is what one run is going to do.
type Plan struct {
	Fault   string // the kind of fault: xid, ...
	Summary string // "XID 79 on GPU 0"
	Command []string
	// Changes are made in their order on each target, and on many targets at the same time.
	Changes []Change
	// InOrder says that the changes are made one after the other, whatever their targets, and that all are undone, the
	// last first, at the first that fails: later ones build upon earlier ones.
	InOrder bool
	// Quiet says that no Events are written on the targets, neither now nor when it is undone: whoever looks at them
	// must not learn the cause.
	Quiet bool
	// Needs are the permissions without which the run could not finish; preflight asks the API server for each.
	Needs []Permission
	// TTL is how long the fault stays; what belongs to the run goes away then by itself. Zero: until it is reverted,
	// for the Reason that the user gave.
	TTL    time.Duration
	Reason string
	// NoPods says that the fault starts no debug pods: then no Job has to end them, and nobody needs the right to
	// create one, which makes root on the nodes. The run's locks stay until it is reverted.
	NoPods bool
	// Allow lifts limits of the blast radius.
	Allow Allowances
	// Checks are the fault's own preflight checks. They change nothing and may run at the same time.
	Checks []func(context.Context) error
}

// Change is one change to one target.
type Change struct {
	Target ledger.Target
	// Action says what the change does: "write 1 record to the kernel log".
	Action string
	// Harmless says that the change takes nothing away from its node: those of the control plane may have it, and it
	// counts in no blast radius.
	Harmless bool
	// Undo is what is known of the undo beforehand. Its kind is one of the Session's Undoers, or ledger.UndoNone.
	Undo ledger.Undo
	// Apply makes the change and returns the evidence that it landed; without evidence it has failed. What it must
	// remember for the undo it saves with Recorder before it changes anything, and it changes nothing when Save fails.
	// When it fails, evidence of what landed nevertheless is welcome. Processes and pods of its own it removes itself,
	// also when ctx ends.
	Apply func(ctx context.Context, r Recorder) ([]ledger.Evidence, error)
}

// Recorder saves a step's progress durably: Save returns once the ledger has it.
type Recorder interface {
	// Run is the record as created, with its ID.
	Run() ledger.Run
	// Save changes the step and stores the run. The change may be called several times, each time for a newer record:
	// it assigns and does not append. An error means that nothing may be changed in the cluster.
	Save(ctx context.Context, change func(*ledger.Step)) error
	// Progress tells the user, not the ledger, what is going on: "debug pod running".
	Progress(text string)
}

// Undoer undoes the steps whose Undo has its kind. It touches only what is still ours.
type Undoer interface {
	// Describe says what Undo would do, for `list -o wide` and before asking.
	Describe(step ledger.Step) string
	// Undo returns the state that the step ended in (reverted, superseded, permanent) and a sentence for the user.
	// It is idempotent: a revert that was stopped is repeated, and a step that was only begun may have changed nothing.
	Undo(ctx context.Context, run ledger.Run, step ledger.Step) (ledger.State, string, error)
}

// Permission is one verb on one resource.
type Permission struct {
	Verb      string
	Group     string // "" is the core group
	Resource  string // "pods", "pods/exec"
	Namespace string // "" for all, or for resources of the cluster
	// Optional is for what a run can do without, with a warning.
	Optional bool
}

// Allowances lift the limits of the blast radius, one by one.
type Allowances struct {
	ControlPlane bool // --allow-control-plane
	LastGPUNode  bool // --allow-last-gpu-node
	Majority     bool // --allow-majority: over half of the GPU nodes
}
