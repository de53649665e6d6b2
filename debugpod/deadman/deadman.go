// Package deadman changes files of a node in a way that heals by itself. A process on the node, the dead man, outlives
// the client, the debug pod, the kubelet and containerd. It knows how everything was before it changes anything, and
// puts it back when its time is up, when its pod ends, or when it is asked to.
//
// Its record is on the node, in Dir/RUN, is writable only by root, and is written and synced before the first change.
// Only this record determines what to restore. A record in the cluster, which others may write, only names the run.
package deadman

import (
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// Dir is where the records lie on a node, one directory for each run. What is there also says how to restore by hand:
// `sh /var/lib/gpu-fault/RUN/restore.sh`.
const Dir = "/var/lib/gpu-fault"

// Absent is the sum of a file that is not there.
const Absent = ""

// Change asks for files to be changed behind a dead man. The helper finds the kubelet's container runtime itself, and
// refuses files, a unit or a socket that are not its own.
type Change struct {
	// TTL is how long the change stays, from the moment the dead man is armed, by the node's own clocks, also while it
	// is suspended. Zero: until it is asked for, or the pod ends.
	TTL   time.Duration `json:"ttl,omitempty"`
	Files []File        `json:"files"`
	// Service is restarted after the files were changed, and after they were put back. Nil: nobody knows how.
	Service *Service `json:"service,omitempty"`
	// NoRestart leaves the service as it is after the change. Putting the files back still restarts it when it has
	// taken the change up meanwhile.
	NoRestart bool `json:"noRestart,omitempty"`
	// MayFail reports whether the service is not expected to serve with the changed files: then it is proof that it
	// does not.
	MayFail bool `json:"mayFail,omitempty"`
	// BootRestore also puts the files back when the node boots, before the service starts, where the node has systemd.
	BootRestore bool `json:"bootRestore,omitempty"`
}

// File is one file's change.
type File struct {
	Path string `json:"path"` // absolute, clean, on the node
	// Before and After are the SHA-256 of the contents, in hexadecimal, or Absent.
	Before string       `json:"before"`
	After  string       `json:"after"`
	Edits  []patch.Edit `json:"edits"`
	// Meta is how the file was; nil where it was absent.
	Meta *Meta `json:"meta,omitempty"`
}

// Meta is what a file has beside its content.
type Meta struct {
	// permission bits, with setuid, setgid and sticky, as stat(2) has them (07777)
	Mode    uint32            `json:"mode"`
	UID     int               `json:"uid"`
	GID     int               `json:"gid"`
	ModTime time.Time         `json:"modTime"`
	Xattrs  map[string][]byte `json:"xattrs,omitempty"`
	// Link is the target when the path is a symbolic link; the rest is then about the file it leads to, and the link
	// stays.
	Link string `json:"link,omitempty"`
}

// Service is what has to be restarted to take the files up, and how one sees that it has.
type Service struct {
	// Unit is the systemd unit: containerd.service.
	Unit string `json:"unit"`
	// Socket is the path of its CRI socket on the node: /run/containerd/containerd.sock.
	Socket string `json:"socket"`
	// Config is the sum (ConfigSum) of the configuration that CRI showed before the change; empty when it showed none.
	Config string `json:"config,omitempty"`
}

// Phase is how far a dead man is.
type Phase string

// The phases of a dead man, in their order.
const (
	PhaseRecorded   Phase = "recorded"   // the record is on the disk, nothing is changed
	PhaseArmed      Phase = "armed"      // the dead man lives, nothing is changed
	PhaseWritten    Phase = "written"    // the files are changed
	PhaseApplied    Phase = "applied"    // and the service has taken them up, or has failed to: Status says which
	PhaseRestoring  Phase = "restoring"  // files are being put back
	PhaseRestored   Phase = "restored"   // all is as it was; the record goes away right after
	PhaseSuperseded Phase = "superseded" // all that was still ours is as it was; the rest is somebody else's
	PhaseFailed     Phase = "failed"     // it could not be changed, or not be put back: see Message
)

// Status is what a dead man last said about itself: the file status.json of its record.
type Status struct {
	Run   string    `json:"run"`
	Phase Phase     `json:"phase"`
	Until time.Time `json:"until,omitzero"` // by the node's wall clock
	PID   int       `json:"pid,omitempty"`
	// Files are as they were found when the dead man was armed, Meta included.
	Files []File `json:"files,omitempty"`
	// Restarted reports whether the service was told to restart after the change.
	Restarted bool `json:"restarted,omitempty"`
	// CRI is what the service showed then; nil when it did not serve.
	CRI *cri.Info `json:"cri,omitempty"`
	// ServiceError is why the service does not serve, with the last lines of its log where they are known.
	ServiceError string `json:"serviceError,omitempty"`
	// Cause is why it was put back: "TTL", "the pod ended", "asked to", "the node booted".
	Cause   string    `json:"cause,omitempty"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time"`
}

// Restore asks for the files of the request's run to be put back, by the node's own record.
type Restore struct {
	// Overwrite also puts back what somebody has changed meanwhile, where the node still has the content of before.
	Overwrite bool `json:"overwrite,omitempty"`
	// Forget removes what is left of a restore whose result has arrived: its record. Until then a repeated Restore
	// gives the same result, as the restart of the container runtime, which a restore may need, cuts the connection on
	// which the result comes.
	Forget bool `json:"forget,omitempty"`
}

// Restored is what became of each file.
type Restored struct {
	Files []RestoredFile `json:"files"`
	// Restarted reports whether the service had to be restarted.
	Restarted bool `json:"restarted,omitempty"`
	// CRI is what the service shows now; nil when there is no service to ask, or it does not serve.
	CRI *cri.Info `json:"cri,omitempty"`
	// SameConfig reports whether CRI shows the configuration it showed before the change; true when that is not known.
	SameConfig bool `json:"sameConfig"`
	// ByDeadMan is the dead man's own last word, when it had put the files back before we came, or could not.
	ByDeadMan *Status `json:"byDeadMan,omitempty"`
	// RecordMissing reports whether the node lacks a record of the run, so that no file was changed. Either the dead
	// man restored the files and removed the record, or nothing was ever changed, or the record was removed.
	RecordMissing bool `json:"recordMissing,omitempty"`
	// Told reports whether a dead man still ran without its record and was told to restore.
	Told bool `json:"told,omitempty"`
	// Script is the path of restore.sh if only the rest of the record is missing.
	Script string `json:"script,omitempty"`
}

// Outcome is what became of one file.
type Outcome string

// The outcomes of putting back a file.
const (
	OutcomeRestored   Outcome = "restored"   // it was ours, and is as it was before
	OutcomeAlready    Outcome = "already"    // its content was as before; somebody or the dead man had put it back
	OutcomeSuperseded Outcome = "superseded" // somebody changed it meanwhile; theirs was left
)

// RestoredFile is one file after Restore.
type RestoredFile struct {
	Path    string  `json:"path"`
	Outcome Outcome `json:"outcome"`
	// Overwritten reports whether it held somebody else's content, which is gone: it was asked for.
	Overwritten bool `json:"overwritten,omitempty"`
	// SameMeta reports whether also mode, owner, times and extended attributes are as before.
	SameMeta bool `json:"sameMeta,omitempty"`
	// Now is the content that was left, when it was superseded, for a three-way report; nil when the file was deleted
	// or is larger than 256 KiB.
	Now []byte `json:"now,omitempty"`
	// Ours is what we had made of it, when it was superseded and the node still knows that.
	Ours []byte `json:"ours,omitempty"`
	// Before, After and Edits are the change, when it was superseded.
	Before string       `json:"before,omitempty"`
	After  string       `json:"after,omitempty"`
	Edits  []patch.Edit `json:"edits,omitempty"`
	// Deleted reports whether a superseded file is not there at all.
	Deleted bool `json:"deleted,omitempty"`
}

// Leftover is something of ours, or of another fault injector, that lies on a node.
type Leftover struct {
	// record, boot-unit, dead-man, prepared-file, kernel-module, firewall, foreign
	Kind   string  `json:"kind"`
	Path   string  `json:"path"`             // or "pid 4711"
	Run    string  `json:"run,omitempty"`    // whose it is
	Status *Status `json:"status,omitempty"` // of a record
	// Removed reports whether it is gone now, as cleaning was asked for.
	Removed bool `json:"removed,omitempty"`
	// Problem is why it was not removed, or could not be read.
	Problem string `json:"problem,omitempty"`
}

// The kinds of Leftover.
const (
	LeftoverRecord   = "record"
	LeftoverBootUnit = "boot-unit"
	LeftoverDeadMan  = "dead-man"
	LeftoverPrepared = "prepared-file"
	LeftoverModule   = "kernel-module"
	LeftoverFirewall = "firewall"
	LeftoverForeign  = "foreign"
)
