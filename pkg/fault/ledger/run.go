// Package ledger keeps a record of every run in the cluster: its changes, how to undo them, and its progress.
//
// A record is written before the first change, so that any user with access to the cluster can undo a run whose client
// died. Records are ConfigMaps and locks are Leases in one namespace. They need no CustomResourceDefinition, and
// kubectl can read them.
package ledger

import (
	"encoding/json"
	"fmt"
	"time"
)

// APIVersion and KindRun identify the versioned format in which runs are stored and printed.
const (
	APIVersion = "gpufault.dev/v1alpha1"
	KindRun    = "Run"
)

// Run is the record of one run.
type Run struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Namespace is the ledger namespace of the record. It is not stored.
	Namespace string `json:"namespace,omitempty"`

	ID string `json:"id"` // used in `revert ID`: the kind of fault and six characters
	// Fleet is the ID of the fleet that the run is part of; see FleetRun. It is empty for all other runs.
	Fleet string `json:"fleet,omitempty"`
	// Fault is the command that injects the fault, such as xid, cuda, runtime, network or device.
	Fault   string   `json:"fault"`
	Summary string   `json:"summary"` // such as "XID 79 on GPU 0"
	Command []string `json:"command,omitempty"`
	By      string   `json:"by,omitempty"`   // user name according to the API server
	From    string   `json:"from,omitempty"` // client's host name
	Client  string   `json:"client,omitempty"`

	Created time.Time `json:"created"`
	// Deadline is the time by which the client must have finished. After that, other runs may take over the run's
	// locks.
	Deadline time.Time `json:"deadline"`
	// Until is the time at which the fault's TTL ends. It is zero if the fault stays until it is reverted; in that
	// case, Reason is the reason that the user specified.
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// Owner is the Job that the cluster deletes when the TTL expires, along with the run's locks and debug pods. It is
	// nil without a TTL.
	Owner *Owner `json:"owner,omitempty"`
	// Closed is the time at which the run was closed. It is zero while the run is in progress or its fault is in place.
	// A closed run never changes.
	Closed time.Time `json:"closed,omitzero"`

	Phase Phase  `json:"phase"`
	Steps []Step `json:"steps"`
	// InOrder means that later steps depend on earlier ones. The steps are undone in reverse order, regardless of
	// target.
	InOrder bool `json:"inOrder,omitempty"`
	// UndoTogether means that the steps do not depend on each other when they are undone. They are undone in parallel.
	UndoTogether bool `json:"undoTogether,omitempty"`
	// Quiet means that no client writes Events on the targets.
	Quiet bool `json:"quiet,omitempty"`
	// Message describes how the run ended, or why it stopped.
	Message string `json:"message,omitempty"`
}

// Owner identifies the Job that owns a run's locks and debug pods; see Store.Expire.
type Owner struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// Phase is the progress of a run.
type Phase string

// Phases of a run, in order.
const (
	Planned  Phase = "Planned"  // recorded; nothing changed yet
	Applying Phase = "Applying" // changes are in progress
	Proven   Phase = "Proven"   // all changes are verified
	// a step could not be applied or verified, and was undone if possible; other steps stay in place
	Failed Phase = "Failed"
	// interrupted by the user or taken over by a revert; changes were undone if possible
	Interrupted Phase = "Interrupted"
	Reverted    Phase = "Reverted" // undone, or closed because nothing can be undone
)

// Step is one change to one target.
type Step struct {
	ID     string `json:"id"` // unique in the run
	Target Target `json:"target"`
	// Action describes the step, such as "write 1 record to the kernel log".
	Action string `json:"action"`
	State  State  `json:"state"`
	Undo   Undo   `json:"undo"`
	// Detail is data that the fault stores for the step, such as the records that xid writes.
	Detail json.RawMessage `json:"detail,omitempty"`
	// Evidence shows that the change is in place, quoted from its source.
	Evidence []Evidence `json:"evidence,omitempty"`
	Started  time.Time  `json:"started,omitzero"`
	Ended    time.Time  `json:"ended,omitzero"`
	// Undone is the time at which the change was undone or found to be missing. If the step was started and Undone is
	// zero, the change may be in place.
	Undone  time.Time `json:"undone,omitzero"`
	Message string    `json:"message,omitempty"`
}

// State is the progress of a step. From StateApplying on, the change may be in place.
type State string

// States of a step.
const (
	StatePlanned    State = "planned"
	StateApplying   State = "applying"
	StateApplied    State = "applied"
	StateProven     State = "proven"
	StateReverted   State = "reverted"
	StateSuperseded State = "superseded" // changed by another client in the meantime; not reverted
	StatePermanent  State = "permanent"  // closed but cannot be undone; see Message
	StateFailed     State = "failed"     // not applied or not verified; Undone reports whether the change was undone
	StateSkipped    State = "skipped"    // never started
)

// Target is the object that a step changes.
type Target struct {
	Kind      string `json:"kind"` // such as Node or Deployment
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// Undo is the data, never code, that is needed to undo a step from another machine, even after a crash.
type Undo struct {
	// Kind selects the fault.Undoer.
	Kind string          `json:"kind"`
	Data json.RawMessage `json:"data,omitempty"`
	// Permanent means that the change, such as a line in a kernel log, cannot be undone. After the change, the step
	// needs no revert and no lock. The Undoer for this kind of undo, if any, only returns a message.
	Permanent bool `json:"permanent,omitempty"`
}

// UndoNone is the kind of undo for changes that leave nothing to undo and need no message. It implies Permanent.
const UndoNone = "none"

// Evidence shows that a change is in place.
type Evidence struct {
	Source string    `json:"source"` // such as "/dev/kmsg sequence 4711"
	Time   time.Time `json:"time"`
	Text   string    `json:"text"`
	// Omitted is the number of items that were omitted after this one; see Condense.
	Omitted int `json:"omitted,omitempty"`
}

// NewEvidence returns evidence with the current time.
func NewEvidence(source, format string, args ...any) Evidence {
	return Evidence{
		Source: source, Time: time.Now().UTC().Truncate(time.Millisecond), Text: fmt.Sprintf(format, args...),
	}
}
