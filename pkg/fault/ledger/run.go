// Package ledger keeps the record of every run in the cluster: what it changes, how that is undone, and how far it got.
//
// A record is written before the first change, so that whoever has the cluster can undo a run whose client died.
// Records are ConfigMaps and locks are Leases, both in one namespace, so that they need no CustomResourceDefinition and
// can be read with kubectl.
package ledger

import (
	"encoding/json"
	"time"
)

// APIVersion and KindRun name the versioned form in which runs are stored and printed.
const (
	APIVersion = "gpufault.dev/v1alpha1"
	KindRun    = "Run"
)

// Run is one use of the tool that changes something.
type Run struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Namespace is the ledger that the record was read from. It is not stored.
	Namespace string `json:"namespace,omitempty"`

	ID string `json:"id"` // as in `revert ID`: the fault's kind and six letters or digits
	// Fault is the kind of fault: xid, cuda, runtime, workload.
	Fault   string   `json:"fault"`
	Summary string   `json:"summary"` // "XID 79 on GPU 0"
	Command []string `json:"command,omitempty"`
	By      string   `json:"by,omitempty"`   // the user as the API server knows them
	From    string   `json:"from,omitempty"` // the client's host name
	Client  string   `json:"client,omitempty"`

	Created time.Time `json:"created"`
	// Deadline is when the client must have finished; after it the run's locks may be taken over.
	Deadline time.Time `json:"deadline"`
	// Until is when the fault is to be gone: its TTL. Zero when it stays until it is reverted, for the Reason that the
	// user gave.
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// Owner is what the cluster deletes when the time is up, and with it the run's locks and debug pods; nil without a
	// TTL.
	Owner *Owner `json:"owner,omitempty"`
	// Closed is zero while the run is in its way, or its fault is in place. A closed run never changes again.
	Closed time.Time `json:"closed,omitzero"`

	Phase Phase  `json:"phase"`
	Steps []Step `json:"steps"`
	// InOrder says that later steps build upon earlier ones, so that the last is undone first, whatever their targets.
	InOrder bool `json:"inOrder,omitempty"`
	// Quiet says that no Events are written on the targets, by whom ever.
	Quiet bool `json:"quiet,omitempty"`
	// Message says in a sentence how the run ended, or what stopped it.
	Message string `json:"message,omitempty"`
}

// Owner names the Job that owns a run's locks and debug pods: see Store.Expire.
type Owner struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// Phase is how far a run is.
type Phase string

// The phases of a run, in their order.
const (
	Planned  Phase = "Planned"  // recorded, nothing changed yet
	Applying Phase = "Applying" // changes are under way
	Proven   Phase = "Proven"   // all changes are proven to have landed
	// A step could not be applied or proven, and was undone where that is possible; the others stand
	Failed Phase = "Failed"
	// stopped by the user, or taken over by a revert; what was changed is undone where that is possible
	Interrupted Phase = "Interrupted"
	Reverted    Phase = "Reverted" // undone, or closed where nothing can be undone
)

// Step is one change to one target.
type Step struct {
	ID     string `json:"id"` // unique in its run
	Target Target `json:"target"`
	// Action says what the step does: "write 1 record to the kernel log".
	Action string `json:"action"`
	State  State  `json:"state"`
	Undo   Undo   `json:"undo"`
	// Detail is what the fault needs to remember of the step: for xid the records it writes.
	Detail json.RawMessage `json:"detail,omitempty"`
	// Evidence proves that the change landed, in the words of whoever shows it.
	Evidence []Evidence `json:"evidence,omitempty"`
	Started  time.Time  `json:"started,omitzero"`
	Ended    time.Time  `json:"ended,omitzero"`
	// Undone is when the change was undone, or found not to be there. While it is zero a begun step's change may be in
	// place.
	Undone  time.Time `json:"undone,omitzero"`
	Message string    `json:"message,omitempty"`
}

// State is how far a step is. A change may be in place from StateApplying on.
type State string

// The states of a step.
const (
	StatePlanned    State = "planned"
	StateApplying   State = "applying"
	StateApplied    State = "applied"
	StateProven     State = "proven"
	StateReverted   State = "reverted"
	StateSuperseded State = "superseded" // somebody else changed it meanwhile; theirs was left
	StatePermanent  State = "permanent"  // closed, though it cannot be undone; see Message
	StateFailed     State = "failed"     // not applied or not proven; Undone reports whether its change is gone
	StateSkipped    State = "skipped"    // never begun
)

// Target is what a step changes.
type Target struct {
	Kind      string `json:"kind"` // Node, Deployment, ...
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// Undo is data, never code: enough to put back from another machine, after a crash, what a step changed.
type Undo struct {
	// Kind picks who can undo it: see fault.Undoer.
	Kind string          `json:"kind"`
	Data json.RawMessage `json:"data,omitempty"`
	// Permanent says that the change cannot be undone, as a line in a kernel log: it needs no revert and holds no lock
	// once it is made. An Undoer of its kind, if there is one, only tells what there is to say about it.
	Permanent bool `json:"permanent,omitempty"`
}

// UndoNone is the kind of changes for which there is nothing to undo and nothing to say. It implies Permanent.
const UndoNone = "none"

// Evidence is one proof that a change landed.
type Evidence struct {
	Source string    `json:"source"` // "/dev/kmsg sequence 4711"
	Time   time.Time `json:"time"`
	Text   string    `json:"text"`
	// Omitted counts proofs that were left out between this one and the next; see Condense.
	Omitted int `json:"omitted,omitempty"`
}
