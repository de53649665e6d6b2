// Package api has the requests and answers that the client and the helper on a node exchange.
//
// The client sends one Request as JSON; the helper writes Answers as JSON, one per line. Both sides refuse what they do
// not know: another protocol version, an unknown field, a request with no operation or with two.
//
// A request is one line of standard input, or lies at the end of the helper's own executable (see Attach). Whatever
// comes on standard input after it is ignored, but its end means that the client is gone, and the helper stops.
package api

import (
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/deadman"
)

// Protocol is the version of Request and Answer. It changes whenever a field changes its meaning.
const Protocol = 1

// Program is where the helper is in an image of ours, and how it is started there.
const Program = "/gpu-fault-node"

// Request asks the helper for exactly one operation.
type Request struct {
	Protocol int    `json:"protocol"`
	Run      string `json:"run"` // the run's ID, for messages

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
}

// Await asks for the run's dead man to be waited for, until it has applied its change, or failed. The client asks again
// after a restart of the container runtime has cut its connection.
type Await struct{}

// Leftovers asks for what we and other fault injectors left on the node: files, processes, a kernel module, firewall
// rules. With Clean it is removed, but for the records of the runs in Keep, and those whose files are not as they were.
type Leftovers struct {
	Clean bool     `json:"clean,omitempty"`
	Keep  []string `json:"keep,omitempty"` // IDs of runs
}

// Inspect asks what the node is: its GPUs, its kernel log's settings, its journald. It changes nothing.
type Inspect struct {
	// PodUIDs are pods of this node whose GPUs and main process are wanted.
	PodUIDs []string `json:"podUIDs,omitempty"`
}

// WriteKmsg writes records to the kernel log and reads them back.
type WriteKmsg struct {
	Records []KmsgRecord `json:"records"`
}

// KmsgRecord is one write(2) to /dev/kmsg, and so one record of the kernel log.
type KmsgRecord struct {
	// Data is written as it is: "<4>kernel: NVRM: Xid ...\n". Validate has its rules. The kernel module gets it without
	// the priority, and chooses that itself, as the driver does.
	Data string `json:"data"`
	// Delay is waited before the write, counted from the write of the record before it.
	Delay time.Duration `json:"delay,omitempty"`
}

// Answer is one line of the helper's standard output. The last one has Done or Error; without it output was lost.
type Answer struct {
	Protocol int `json:"protocol"`

	Info    *Info         `json:"info,omitempty"`    // to Inspect
	Written []WrittenKmsg `json:"written,omitempty"` // to WriteKmsg and WriteModule; several answers while it goes on
	Runtime *Runtime      `json:"runtime,omitempty"` // to InspectRuntime

	DeadMan   *deadman.Status    `json:"deadMan,omitempty"`   // to Change and Await; several answers while it goes on
	Restored  *deadman.Restored  `json:"restored,omitempty"`  // to Restore
	Leftovers []deadman.Leftover `json:"leftovers,omitempty"` // to Leftovers
	Diagnosis *Diagnosis         `json:"diagnosis,omitempty"` // to Diagnose

	Built   *BuiltModule   `json:"built,omitempty"`   // to BuildModule
	Removed *RemovedModule `json:"removed,omitempty"` // to RemoveModule

	Firewall        *BuiltFirewall   `json:"firewall,omitempty"`        // to Firewall
	RemovedFirewall *RemovedFirewall `json:"removedFirewall,omitempty"` // to RemoveFirewall

	Done  bool   `json:"done,omitempty"`
	Error *Error `json:"error,omitempty"`
}

// Error says why the helper did not do what it was asked.
type Error struct {
	Code Code `json:"code"`
	// Message is for people: what failed, and what to do.
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Info is what Inspect found.
type Info struct {
	Hostname      string `json:"hostname"`
	KernelRelease string `json:"kernelRelease"`
	BootID        string `json:"bootID"`
	// DriverVersion is empty when no NVIDIA driver is loaded.
	DriverVersion string            `json:"driverVersion,omitempty"`
	GPUs          []GPU             `json:"gpus,omitempty"`
	KernelLog     KernelLog         `json:"kernelLog"`
	Journald      Journald          `json:"journald"`
	Pods          map[string]PodUse `json:"pods,omitempty"` // by the UIDs asked for
	// Warnings name what could not be read, and why.
	Warnings []string `json:"warnings,omitempty"`
}

// GPU is one GPU that the NVIDIA driver drives.
type GPU struct {
	// Index is nvidia-smi's: the position in the order of PCI addresses.
	Index int `json:"index"`
	// Minor is N of /dev/nvidiaN; it may differ from Index. -1 when the driver does not say.
	Minor int `json:"minor"`
	// UUID is empty when neither the driver nor nvidia-smi tells it: before the GPU's first use after boot.
	UUID  string `json:"uuid,omitempty"`
	PCI   string `json:"pci"` // dddd:bb:dd.f, lower case
	Model string `json:"model,omitempty"`
}

// KernelLog is how the node treats writers and readers of /dev/kmsg.
type KernelLog struct {
	// PrintkDevkmsg is kernel.printk_devkmsg: on, off or ratelimit.
	PrintkDevkmsg string `json:"printkDevkmsg,omitempty"`
	// DmesgRestrict is kernel.dmesg_restrict: 0 or 1.
	DmesgRestrict string `json:"dmesgRestrict,omitempty"`
}

// Journald is the node's systemd-journald, as far as it concerns the kernel log.
type Journald struct {
	Running  bool   `json:"running"`
	ReadKMsg string `json:"readKMsg,omitempty"` // yes or no, as configured or by default
	// With yes, journald ignores records that are not the kernel's own
	ForwardKMsg string `json:"forwardToKMsg,omitempty"`
	// volatile, persistent, auto (also when not configured) or none
	Storage      string `json:"storage,omitempty"`
	IsPersistent bool   `json:"isPersistent"` // /var/log/journal is written
}

// PodUse is what a pod holds on the node.
type PodUse struct {
	// GPUs are UUIDs of GPUs or MIG devices; a device plugin's own ID where it cannot be translated.
	GPUs []string `json:"gpus,omitempty"`
	// PID, in the node's PID namespace, is the oldest process that has a GPU open, else the oldest one of the pod's
	// containers: what the driver would name in an XID line.
	PID int `json:"pid,omitempty"`
	// Process is its name as the kernel has it, 15 bytes at most.
	Process string `json:"process,omitempty"`
}

// WrittenKmsg proves one record: it was read back from /dev/kmsg.
type WrittenKmsg struct {
	// Record is the position in WriteKmsg.Records.
	Record int `json:"record"`
	// Sequence is the kernel's number of the record.
	Sequence uint64 `json:"sequence"`
	// Uptime is the record's time since boot, by the monotonic clock.
	Uptime time.Duration `json:"uptime"`
	// Time is the node's wall clock at the write. It is not computed from Uptime: the kernel stamps records with
	// local_clock(), which is not disciplined by NTP as CLOCK_MONOTONIC is, and does not count suspended time.
	Time time.Time `json:"time"`
	// Priority is facility*8+level as the kernel stored it.
	Priority int `json:"priority"`
	// Text is the record as readers of /dev/kmsg see it, escapes included.
	Text string `json:"text"`
}
