// Package deadman changes files on a node and restores them automatically. A process on the node, the dead man's
// switch, outlives the client, the debug pod, the kubelet and containerd. The switch records the original files before
// changing them, and restores them when the TTL expires, when the pod terminates, or on request.
//
// The record is in the node's directory Dir/RUN. It is writable only by root, and is written and synced before the
// first change. Only this record determines what to restore. A record in the cluster, which other users may be able to
// write, only identifies the run.
package deadman

import (
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/cri"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/patch"
)

// Dir is the directory of the records on a node. It has one subdirectory for each run. To restore a run manually, run
// `sh /var/lib/gpu-fault/RUN/restore.sh`.
const Dir = "/var/lib/gpu-fault"

// Absent is the checksum of a file that does not exist.
const Absent = ""

// Change is a request to change files under a dead man's switch. The helper itself determines the kubelet's container
// runtime, and rejects any file, unit or socket that does not belong to the runtime.
type Change struct {
	// TTL is the duration of the change, starting when the switch is armed. It is measured by the node's clocks and
	// includes time during which the node is suspended. If it is zero, the change lasts until a restore is requested or
	// the pod terminates.
	TTL   time.Duration `json:"ttl,omitempty"`
	Files []File        `json:"files"`
	// Service is the service to restart after the files have been changed and after they have been restored. If it is
	// nil, no service is restarted.
	Service *Service `json:"service,omitempty"`
	// NoRestart skips the restart after the change. A restore still restarts the service if the service has loaded the
	// changed files.
	NoRestart bool `json:"noRestart,omitempty"`
	// MayFail means that the service is expected to fail with the changed files. The change then succeeds even if the
	// service does not respond.
	MayFail bool `json:"mayFail,omitempty"`
	// BootRestore also restores the files when the node boots, before the service starts. It requires systemd.
	BootRestore bool `json:"bootRestore,omitempty"`
	// Key, if not nil, is the key with which the node encrypts its record, so that users who are root on the node
	// cannot read what was changed. The key is not in the record, so BootRestore must not be set.
	Key []byte `json:"-"`
}

// KeySize is the size of a Key, in bytes.
const KeySize = 32

// EncryptedMark is the first line of the files of an encrypted record.
const EncryptedMark = "gpu-fault: this file is encrypted"

// File describes the change to one file.
type File struct {
	Path string `json:"path"` // absolute and clean, on the node
	// Before and After are the hexadecimal SHA-256 checksums of the content, or Absent.
	Before string       `json:"before"`
	After  string       `json:"after"`
	Edits  []patch.Edit `json:"edits"`
	// Meta contains the original attributes of the file. It is nil if the file did not exist.
	Meta *Meta `json:"meta,omitempty"`
}

// Meta contains the attributes of a file.
type Meta struct {
	// Mode contains the permission bits including setuid, setgid and sticky, as in stat(2) (07777).
	Mode    uint32            `json:"mode"`
	UID     int               `json:"uid"`
	GID     int               `json:"gid"`
	ModTime time.Time         `json:"modTime"`
	Xattrs  map[string][]byte `json:"xattrs,omitempty"`
	// Link is the target if the path is a symbolic link. The other fields then describe the target, and the link is
	// kept.
	Link string `json:"link,omitempty"`
}

// Service is the service that loads the files when it restarts.
type Service struct {
	// Unit is the systemd unit, such as containerd.service.
	Unit string `json:"unit"`
	// Socket is the path of the CRI socket on the node, such as /run/containerd/containerd.sock.
	Socket string `json:"socket"`
	// Config is the checksum (ConfigSum) of the configuration that CRI reported before the change. It is empty if CRI
	// reported none.
	Config string `json:"config,omitempty"`
}

// Phase is the progress of a dead man's switch.
type Phase string

// The phases of a dead man's switch, in order.
const (
	PhaseRecorded   Phase = "recorded"   // the record is on disk; nothing is changed
	PhaseArmed      Phase = "armed"      // the switch is running; nothing is changed
	PhaseWritten    Phase = "written"    // the files are changed
	PhaseApplied    Phase = "applied"    // the service has loaded the files or failed to; see Status
	PhaseRestoring  Phase = "restoring"  // files are being restored
	PhaseRestored   Phase = "restored"   // all files are restored; the record is removed next
	PhaseSuperseded Phase = "superseded" // files changed by others were kept; the rest is restored
	PhaseFailed     Phase = "failed"     // the change or the restore failed; see Message
)

// Status is the latest status of a dead man's switch, from the file status.json in its record.
type Status struct {
	Run   string    `json:"run"`
	Phase Phase     `json:"phase"`
	Until time.Time `json:"until,omitzero"` // according to the node's wall clock
	PID   int       `json:"pid,omitempty"`
	// Files contains the state of the files when the switch was armed, including Meta.
	Files []File `json:"files,omitempty"`
	// Restarted reports whether the service was restarted after the change.
	Restarted bool `json:"restarted,omitempty"`
	// CRI is the CRI status after the change. It is nil if the service did not respond.
	CRI *cri.Info `json:"cri,omitempty"`
	// ServiceError describes why the service does not respond, with the last lines of its log if available.
	ServiceError string `json:"serviceError,omitempty"`
	// Cause is the cause of the restore: "TTL", "the pod terminated", "asked to" or "the node booted".
	Cause   string    `json:"cause,omitempty"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time"`
}

// Restore is a request to restore the files of the request's run from the record on the node.
type Restore struct {
	// Overwrite also restores files that have been modified since the change, if the node still has their original
	// content.
	Overwrite bool `json:"overwrite,omitempty"`
	// Forget removes the record of a completed restore after the client has received its result. Until then, a repeated
	// Restore returns the same result, because the restore may restart the container runtime, which closes the
	// connection before the result arrives.
	Forget bool `json:"forget,omitempty"`
	// Key is the key of the Change.
	Key []byte `json:"-"`
}

// Restored is the result of a restore.
type Restored struct {
	Files []RestoredFile `json:"files"`
	// Restarted reports whether the service was restarted.
	Restarted bool `json:"restarted,omitempty"`
	// CRI is the CRI status after the restore. It is nil without a service, or if the service does not respond to CRI
	// requests.
	CRI *cri.Info `json:"cri,omitempty"`
	// SameConfig reports whether CRI reports the same configuration as before the change. It is true if the previous
	// configuration is unknown.
	SameConfig bool `json:"sameConfig"`
	// ByDeadMan is the final status of a dead man's switch that had already restored the files or failed to do so.
	ByDeadMan *Status `json:"byDeadMan,omitempty"`
	// RecordMissing reports whether the node has no record of the run. The restore then changes no file. Either the
	// dead man's switch already restored the files and removed the record, or nothing was ever changed, or another
	// process removed the record.
	RecordMissing bool `json:"recordMissing,omitempty"`
	// Told reports whether a dead man's switch was still running without its record and was signaled to restore the
	// files.
	Told bool `json:"told,omitempty"`
	// Script is the path of restore.sh if the rest of the record is missing.
	Script string `json:"script,omitempty"`
}

// Outcome is the result of restoring one file.
type Outcome string

// The outcomes of restoring a file.
const (
	OutcomeRestored   Outcome = "restored"   // the change was reverted
	OutcomeAlready    Outcome = "already"    // the file already had its original content
	OutcomeSuperseded Outcome = "superseded" // the file was modified since the change, and was kept
)

// RestoredFile is the result of a restore for one file.
type RestoredFile struct {
	Path    string  `json:"path"`
	Outcome Outcome `json:"outcome"`
	// Overwritten reports whether the restore discarded a later modification, as requested.
	Overwritten bool `json:"overwritten,omitempty"`
	// SameMeta reports whether the mode, owner, times and extended attributes are also restored.
	SameMeta bool `json:"sameMeta,omitempty"`
	// Now is the current content of a superseded file, for a three-way report. It is nil if the file was deleted or is
	// larger than 256 KiB.
	Now []byte `json:"now,omitempty"`
	// Ours is the content of a superseded file after the change, if the node still has it.
	Ours []byte `json:"ours,omitempty"`
	// Before, After and Edits describe the change to a superseded file.
	Before string       `json:"before,omitempty"`
	After  string       `json:"after,omitempty"`
	Edits  []patch.Edit `json:"edits,omitempty"`
	// Deleted reports whether a superseded file no longer exists.
	Deleted bool `json:"deleted,omitempty"`
}

// Leftover is an artifact of this program or another fault injector that remains on a node.
type Leftover struct {
	// Kind is record, boot-unit, dead-man, prepared-file, kernel-module, firewall, failed-devices or foreign.
	Kind   string  `json:"kind"`
	Path   string  `json:"path"`             // path, or "pid 4711"
	Run    string  `json:"run,omitempty"`    // run to which it belongs
	Status *Status `json:"status,omitempty"` // only for a record
	// Ended reports whether the leftover no longer has an effect. It is used only for unhealthy devices.
	Ended bool `json:"ended,omitempty"`
	// Removed reports whether the cleanup removed the leftover.
	Removed bool `json:"removed,omitempty"`
	// Problem describes why the leftover was not removed or could not be read.
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
	LeftoverDevices  = "failed-devices"
	LeftoverForeign  = "foreign"
)
