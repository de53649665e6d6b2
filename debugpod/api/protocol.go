// Package api defines the requests and responses exchanged by the client and the helper on a node.
//
// The client sends one Request as JSON. The helper writes Answers as JSON, one per line. Both reject anything unknown:
// another protocol version, an unknown field, or a request without exactly one operation.
//
// A request is one line of standard input, or is appended to the helper's executable (see Attach). Any further standard
// input is ignored, but its end means that the client has disconnected, and the helper stops.
package api

import (
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// Protocol is the version of Request and Answer. It is incremented when the meaning of a field changes.
const Protocol = 1

// Program is the path of the helper in images that contain it.
const Program = "/gpu-fault-node"

// Request is a request to the helper. It has exactly one operation.
type Request struct {
	Protocol int    `json:"protocol"`
	Run      string `json:"run"` // ID of the run, for messages
	// Key is the key of the run's record, for Change, Await and Restore. It is nil if the record is not encrypted.
	Key []byte `json:"key,omitempty"`

	Inspect        *Inspect         `json:"inspect,omitempty"`
	WriteKmsg      *WriteKmsg       `json:"writeKmsg,omitempty"`
	InspectRuntime *InspectRuntime  `json:"inspectRuntime,omitempty"`
	Change         *deadman.Change  `json:"change,omitempty"`
	Await          *Await           `json:"await,omitempty"`
	Restore        *deadman.Restore `json:"restore,omitempty"`
	Leftovers      *Leftovers       `json:"leftovers,omitempty"`
	Diagnose       *Diagnose        `json:"diagnose,omitempty"`
	BuildModule    *BuildModule     `json:"buildModule,omitempty"`
	WriteModule    *WriteModule     `json:"writeModule,omitempty"`
	RemoveModule   *RemoveModule    `json:"removeModule,omitempty"`
	Firewall       *Firewall        `json:"firewall,omitempty"`
	RemoveFirewall *RemoveFirewall  `json:"removeFirewall,omitempty"`
	ListDevices    *ListDevices     `json:"listDevices,omitempty"`
	FailDevices    *FailDevices     `json:"failDevices,omitempty"`
	RecoverDevices *RecoverDevices  `json:"recoverDevices,omitempty"`
	ResetGPU       *ResetGPU        `json:"resetGPU,omitempty"`
	ReadKernelLog  *ReadKernelLog   `json:"readKernelLog,omitempty"`
	RemoveFiles    *RemoveFiles     `json:"removeFiles,omitempty"`
}

// RemoveFiles removes files in the directories that Info.State lists.
type RemoveFiles struct {
	// Digests are the files' digests in Info.State, by path. A file with another digest is not removed.
	Digests map[string]string `json:"digests"`
}

// RemovedFiles is the response to RemoveFiles.
type RemovedFiles struct {
	Removed []string          `json:"removed,omitempty"`
	Kept    map[string]string `json:"kept,omitempty"` // with the reasons
}

// Await waits until the run's dead man's switch has applied its change or failed. The client sends it if restarting the
// container runtime closed the connection of a Change.
type Await struct{}

// Leftovers finds artifacts that this program and other fault injectors left on the node: files, processes, a kernel
// module and firewall rules. If Clean is set, they are removed, except for the records of runs in Keep and records
// whose files have not been restored.
type Leftovers struct {
	Clean bool     `json:"clean,omitempty"`
	Keep  []string `json:"keep,omitempty"` // IDs of the runs
}

// Inspect requests information about the node's GPUs, its kernel log settings and its journald. It changes nothing.
type Inspect struct {
	// PodUIDs are the UIDs of pods on the node. The response contains the GPUs and the main process of each pod.
	PodUIDs []string `json:"podUIDs,omitempty"`
	// Strangers means that the response also contains processes that were not started by the programs in these pods.
	// OwnSessions means that these programs start processes in their own sessions. Such processes cannot be
	// distinguished from those of kubectl exec.
	Strangers   bool `json:"strangers,omitempty"`
	OwnSessions bool `json:"ownSessions,omitempty"`
	// State means that the response also contains what stays on the node when a pod is gone.
	State bool `json:"state,omitempty"`
}

// WriteKmsg writes records to the kernel log and reads them back.
type WriteKmsg struct {
	Records []KmsgRecord `json:"records"`
}

// ReadKernelLog requests the kernel log records about GPUs, within the limits of Diagnosis.KernelLog. It changes
// nothing.
type ReadKernelLog struct {
	// After is the sequence number after which records are returned. nil means all records.
	After *uint64 `json:"after,omitempty"`
}

// KernelRecords is the response to ReadKernelLog, in the order of the log.
type KernelRecords struct {
	Records []KernelRecord `json:"records"`
}

// KmsgRecord is one write(2) to /dev/kmsg, which creates one record in the kernel log.
type KmsgRecord struct {
	// Data is the record, such as "<4>kernel: NVRM: Xid ... ", and is written unchanged. See Validate for the rules.
	// For the kernel module, the priority is removed, because the module sets its own, as the driver does.
	Data string `json:"data"`
	// Delay is the delay after writing the previous record.
	Delay time.Duration `json:"delay,omitempty"`
}

// Answer is one line of the helper's standard output. The last one has Done or Error set. If neither arrives, output
// was lost.
type Answer struct {
	Protocol int `json:"protocol"`

	Info    *Info         `json:"info,omitempty"`    // to Inspect
	Written []WrittenKmsg `json:"written,omitempty"` // response to WriteKmsg and WriteModule; sent repeatedly
	Runtime *Runtime      `json:"runtime,omitempty"` // to InspectRuntime

	DeadMan   *deadman.Status    `json:"deadMan,omitempty"`   // response to Change and Await; sent repeatedly
	Restored  *deadman.Restored  `json:"restored,omitempty"`  // to Restore
	Leftovers []deadman.Leftover `json:"leftovers,omitempty"` // to Leftovers
	Diagnosis *Diagnosis         `json:"diagnosis,omitempty"` // to Diagnose

	Built   *BuiltModule   `json:"built,omitempty"`   // to BuildModule
	Removed *RemovedModule `json:"removed,omitempty"` // to RemoveModule

	Firewall        *BuiltFirewall   `json:"firewall,omitempty"`        // to Firewall
	RemovedFirewall *RemovedFirewall `json:"removedFirewall,omitempty"` // to RemoveFirewall

	Devices          *Devices          `json:"devices,omitempty"`          // to ListDevices
	FailedDevices    *FailedDevices    `json:"failedDevices,omitempty"`    // to FailDevices
	RecoveredDevices *RecoveredDevices `json:"recoveredDevices,omitempty"` // to RecoverDevices
	GPUReset         *GPUReset         `json:"gpuReset,omitempty"`         // to ResetGPU

	KernelLog    *KernelRecords `json:"kernelLog,omitempty"`    // to ReadKernelLog
	RemovedFiles *RemovedFiles  `json:"removedFiles,omitempty"` // to RemoveFiles

	Done  bool   `json:"done,omitempty"`
	Error *Error `json:"error,omitempty"`
}

// Error describes why the helper did not complete a request.
type Error struct {
	Code Code `json:"code"`
	// Message describes the failure to the user, and says what to do.
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Info is the response to Inspect.
type Info struct {
	Hostname      string `json:"hostname"`
	KernelRelease string `json:"kernelRelease"`
	BootID        string `json:"bootID"`
	// DriverVersion is empty if no NVIDIA driver is loaded.
	DriverVersion string            `json:"driverVersion,omitempty"`
	GPUs          []GPU             `json:"gpus,omitempty"`
	KernelLog     KernelLog         `json:"kernelLog"`
	Journald      Journald          `json:"journald"`
	Pods          map[string]PodUse `json:"pods,omitempty"` // by the requested UIDs
	// State contains a digest for each item that stays on the node when a pod is gone. Each item starts with one of the
	// State constants, such as "file /etc/crontab".
	State map[string]string `json:"state,omitempty"`
	// Warnings describe what could not be read, and why.
	Warnings []string `json:"warnings,omitempty"`
}

// Kinds of items in Info.State. The digest of a process or kernel module is empty.
const (
	StateFile    = "file"
	StateMount   = "mount"
	StateModule  = "kernel module"
	StateProcess = "process"
	StateTable   = "nftables table"
	StateBuiltIn = "iptables table" // only the rules of its built-in chains that jump nowhere
	StateRule    = "routing rule"
	StateRoute   = "route" // only those that reject packets
	StateQdisc   = "qdisc" // only those that delay, lose or limit packets
)

// The digest of a table in Info.State is StateOfRun if a run of this tool added the table and the run's rule still
// exists. The digest starts with StateDrops if another rule or the policy of a chain drops packets.
const (
	StateOfRun = "run"
	StateDrops = "drops "
)

// GPU is one GPU that the NVIDIA driver manages.
type GPU struct {
	// Index is the index in nvidia-smi, in the order of PCI addresses.
	Index int `json:"index"`
	// Minor is the N in /dev/nvidiaN, which may differ from Index. It is -1 if unknown.
	Minor int `json:"minor"`
	// UUID is empty if neither the driver nor nvidia-smi reports it, which is the case before the first use of the GPU
	// after boot.
	UUID  string `json:"uuid,omitempty"`
	PCI   string `json:"pci"` // dddd:bb:dd.f, lower case
	Model string `json:"model,omitempty"`
	// DeviceID is the PCI vendor and device ID, such as 10de:2330, or "" if unknown.
	DeviceID string `json:"deviceID,omitempty"`
}

// KernelLog contains the kernel settings for writers and readers of /dev/kmsg.
type KernelLog struct {
	// PrintkDevkmsg is kernel.printk_devkmsg: on, off or ratelimit.
	PrintkDevkmsg string `json:"printkDevkmsg,omitempty"`
	// DmesgRestrict is kernel.dmesg_restrict: 0 or 1.
	DmesgRestrict string `json:"dmesgRestrict,omitempty"`
}

// Journald contains the settings of the node's systemd-journald that affect the kernel log.
type Journald struct {
	Running  bool   `json:"running"`
	ReadKMsg string `json:"readKMsg,omitempty"` // yes or no, as configured or by default
	// ForwardKMsg is yes or no. If it is yes, journald ignores records that are not from the kernel itself.
	ForwardKMsg string `json:"forwardToKMsg,omitempty"`
	// Storage is volatile, persistent, auto (the default) or none.
	Storage      string `json:"storage,omitempty"`
	IsPersistent bool   `json:"isPersistent"` // whether journald writes to /var/log/journal
}

// PodUse describes what a pod uses on the node.
type PodUse struct {
	// GPUs are the UUIDs of GPUs or MIG devices, or the device plugin's own IDs if they cannot be converted to UUIDs.
	GPUs []string `json:"gpus,omitempty"`
	// PID is the PID, in the node's PID namespace, of the process that the driver would name in an XID line: the oldest
	// process that has a GPU open or, if there is none, the oldest process in the pod's containers.
	PID int `json:"pid,omitempty"`
	// Process is the kernel's name of the process, at most 15 bytes.
	Process string `json:"process,omitempty"`
	// Strangers describes processes that run in the pod's containers but were not started by the containers' programs
	// (for example, processes started by kubectl exec), and programs that differ from those in the image.
	Strangers []string `json:"strangers,omitempty"`
	// Unseen is the reason why there may be more strangers, or empty.
	Unseen string `json:"unseen,omitempty"`
}

// WrittenKmsg is a verified record, as read back from /dev/kmsg.
type WrittenKmsg struct {
	// Record is the index in WriteKmsg.Records.
	Record int `json:"record"`
	// Sequence is the kernel's sequence number of the record.
	Sequence uint64 `json:"sequence"`
	// Uptime is the time of the record since boot, according to the monotonic clock.
	Uptime time.Duration `json:"uptime"`
	// Time is the node's wall-clock time of the write. It is not computed from Uptime, because the kernel timestamps
	// records with local_clock(), which, unlike CLOCK_MONOTONIC, is not disciplined by NTP, and excludes suspended
	// time.
	Time time.Time `json:"time"`
	// Priority is facility*8+level as stored by the kernel.
	Priority int `json:"priority"`
	// Text is the record as readers of /dev/kmsg see it, including escapes.
	Text string `json:"text"`
}
