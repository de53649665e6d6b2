package api

import (
	"fmt"
	"regexp"
	"time"
)

// unitName is what systemd takes for a unit's name (UNIT_NAME_VALID in systemd's unit-name.c), without what journalctl
// takes for a pattern.
var unitName = regexp.MustCompile(
	`^[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*\.(service|socket|mount|slice|target|timer|scope|path)$`,
)

// Validate returns which unit is none.
func (d Diagnose) Validate() error {
	if len(d.Units) > maxUnits {
		return fmt.Errorf("%d units are more than %d", len(d.Units), maxUnits)
	}
	for _, unit := range d.Units {
		if len(unit) > 255 || !unitName.MatchString(unit) {
			return fmt.Errorf("%q is not the name of a systemd unit, such as kubelet.service", Shorten(unit, 80))
		}
	}
	return nil
}

// Diagnose asks for everything on the node that tells why GPU pods may not run there. It changes nothing. Of the node's
// programs it runs nvidia-smi -q -x, where the driver is loaded, journalctl, what InspectRuntime runs, and
// nv-fabricmanager, nvidia-ctk and nvidia-container-runtime with --version; each with a time limit, and without the
// capabilities to load modules and to make devices. What InspectRuntime finds is part of the answer.
type Diagnose struct {
	// Units are systemd units whose journal is wanted besides those of the kubelet and of the runtime that it uses.
	Units []string `json:"units,omitempty"`
}

// Diagnosis is what Diagnose found. A part that could not be read is absent, and Unread says why; absent never means
// that all is well.
type Diagnosis struct {
	Info    Info    `json:"info"`
	Runtime Runtime `json:"runtime"`
	Probe   Probe   `json:"probe"`
	// SMI is the output of `nvidia-smi -q -x`; empty when it did not run, and Probe.SMIError says why. Where one of
	// several GPUs is broken both may be there, and the XML may be cut.
	SMI string `json:"smi,omitempty"`
	// KernelLog are the records since boot that say something about GPUs, PCI, NVLink, modules, memory or blocked
	// packets: the newest 1,500, and the newest 500 of those that can come in thousands (blocked packets, AER, mlx5).
	KernelLog []KernelRecord `json:"kernelLog,omitempty"`
	// Journals are the last 200 lines of units, by unit, as `journalctl -o short-iso` prints them; long lines are cut
	// with "…".
	Journals map[string]string `json:"journals,omitempty"`
}

// KernelRecord is one record of the kernel log.
type KernelRecord struct {
	Sequence uint64        `json:"sequence"`
	Uptime   time.Duration `json:"uptime"`
	// Time is the node's wall clock then, as near as it can be computed.
	Time time.Time `json:"time,omitzero"`
	// Priority is facility*8+level: below 8 the kernel itself wrote it, and 8 and above somebody in user space.
	Priority int    `json:"priority"`
	Text     string `json:"text"`
}

// Probe is what the node's files say. Paths are the node's.
type Probe struct {
	Time   time.Time     `json:"time,omitzero"` // the node's clock when it was asked
	Uptime time.Duration `json:"uptime,omitempty"`
	// OS is /etc/os-release: ID, ID_LIKE, VERSION_ID, VERSION_CODENAME, PRETTY_NAME, VARIANT_ID.
	OS      map[string]string `json:"os,omitempty"`
	Cmdline string            `json:"cmdline,omitempty"` // of the kernel

	PCI []PCIDevice `json:"pci,omitempty"` // NVIDIA's GPUs and NVSwitches
	// nvidia*, nouveau, ib_umad, mlx5_core, gdrdrv and their like, loaded
	Modules []Module    `json:"modules,omitempty"`
	Driver  DriverFiles `json:"driver"`
	// /dev/nvidia*, /dev/nvidia-caps/*, and those of /run/nvidia/driver/dev
	Devices []DeviceNode `json:"devices,omitempty"`
	// /dev/char/195:0 -> whether the link is there, for each of Devices
	DevChar map[string]bool `json:"devChar,omitempty"`

	// Processes are those that matter to GPUs, by what they are: nvidia-persistenced, nv-fabricmanager, nvidia-imex,
	// nvidia-cuda-mps-control, nvidia-cuda-mps-server, nv-hostengine, nvlsm, and the PIDs of each.
	Processes map[string][]int `json:"processes,omitempty"`
	// FabricManager is the version that the installed nv-fabricmanager says; empty when there is none.
	FabricManager string `json:"fabricManager,omitempty"`

	// /var/lib/kubelet/device-plugins/*.sock and plugins_registry
	DevicePlugins []Socket `json:"devicePlugins,omitempty"`
	// Validations are the files in /run/nvidia/validations that the GPU operator's init containers wait for.
	Validations []string  `json:"validations,omitempty"`
	CDI         []CDISpec `json:"cdi,omitempty"`
	// ToolkitConfig is /etc/nvidia-container-runtime/config.toml, or that of /usr/local/nvidia/toolkit/.config.
	ToolkitConfig     string `json:"toolkitConfig,omitempty"`
	ToolkitConfigPath string `json:"toolkitConfigPath,omitempty"`
	// ToolkitVersion is what nvidia-container-runtime or nvidia-ctk --version say.
	ToolkitVersion string `json:"toolkitVersion,omitempty"`

	// cgroupDriver, cpuManagerPolicy, topologyManagerPolicy, topologyManagerScope, memoryManagerPolicy, where it does
	// not leave them to their defaults
	KubeletConfig map[string]string `json:"kubeletConfig,omitempty"`
	CgroupVersion int               `json:"cgroupVersion,omitempty"` // 1 or 2; 0 unknown
	// fs.inotify.max_user_instances, fs.inotify.max_user_watches
	Sysctls     map[string]string `json:"sysctls,omitempty"`
	SecureBoot  string            `json:"secureBoot,omitempty"`  // enabled, disabled; empty unknown
	SELinux     string            `json:"selinux,omitempty"`     // enforcing, permissive, disabled; empty unknown
	Filesystems []Filesystem      `json:"filesystems,omitempty"` // those of the root, the kubelet and the runtime

	SMIError string `json:"smiError,omitempty"` // nvidia-smi's own words, or why it was not run
	// Units are systemd units that matter, those of the kubelet, its runtime and Processes, as far as they can be told
	// by cgroups.
	Units []Unit `json:"units,omitempty"`

	// Unread is what could not be read, wholly or in part, by the name of the field in JSON, and why: "pci",
	// "journals", "kernelLog", "runtime". processes stands for units, too, and os for cmdline. A field that is neither
	// here nor has anything is empty on the node.
	Unread map[string]string `json:"unread,omitempty"`
}

// PCIDevice is an NVIDIA device on the PCI bus, as sysfs has it.
type PCIDevice struct {
	Address string `json:"address"` // 0000:17:00.0
	Class   string `json:"class"`   // 0x030200: 3D controller, 0x068000: bridge, which NVSwitches are
	Device  string `json:"device"`  // 0x2330
	// Driver is the kernel module that has it: nvidia, nouveau, vfio-pci; empty when none.
	Driver string `json:"driver,omitempty"`
	// LinkWidth and MaxLinkWidth are lanes, LinkSpeed and MaxLinkSpeed as "16.0 GT/s PCIe"; zero and empty where sysfs
	// does not say.
	LinkWidth    int    `json:"linkWidth,omitempty"`
	MaxLinkWidth int    `json:"maxLinkWidth,omitempty"`
	LinkSpeed    string `json:"linkSpeed,omitempty"`
	MaxLinkSpeed string `json:"maxLinkSpeed,omitempty"`
	// ConfigReadable is false when the device's configuration space reads as all ones: `rev ff` in lspci, it fell off
	// the bus. It is true where it could not be read, and Unread["pci"] says so.
	ConfigReadable bool `json:"configReadable"`
	// ACSRedirect reports whether a bridge above it has ACS P2P request redirect on; nil unknown.
	ACSRedirect *bool `json:"acsRedirect,omitempty"`
}

// Module is a loaded kernel module.
type Module struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // /sys/module/NAME/version
	// Taint is /sys/module/NAME/taint: P proprietary, O out of tree, E unsigned.
	Taint string `json:"taint,omitempty"`
}

// DriverFiles is what of the NVIDIA driver lies on the node.
type DriverFiles struct {
	// Root is where the driver's user space lies: "/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia"; empty when
	// none was found.
	Root string `json:"root,omitempty"`
	// Kernel is the version of the loaded module, from /proc/driver/nvidia/version; empty when none is loaded.
	Kernel string `json:"kernel,omitempty"`
	// Open reports whether the loaded module is the open one.
	Open bool `json:"open,omitempty"`
	// Libraries are paths of libnvidia-ml.so.* and libcuda.so.*; the version is at their end. Those that
	// libnvidia-ml.so.1 and libcuda.so.1 lead to, and programs so get, come first.
	Libraries []string `json:"libraries,omitempty"`
	// Built are paths of nvidia*.ko* below /lib/modules, and that of /run/nvidia/driver, for whichever kernels.
	Built []string `json:"built,omitempty"`
	// Kernels are the kernels that have a folder in /lib/modules.
	Kernels []string `json:"kernels,omitempty"`
}

// DeviceNode is one device node. Major and Minor are zero where another file lies in its place.
type DeviceNode struct {
	Path  string `json:"path"`
	Major int    `json:"major"`
	Minor int    `json:"minor"`
	Mode  string `json:"mode"` // 0666
}

// Socket is a Unix socket, and when it was made.
type Socket struct {
	Path     string    `json:"path"`
	Modified time.Time `json:"modified,omitzero"`
	// Listening reports whether a process listens on it; nil unknown.
	Listening *bool `json:"listening,omitempty"`
}

// CDISpec is one specification of the Container Device Interface.
type CDISpec struct {
	Path    string   `json:"path"`
	Kind    string   `json:"kind,omitempty"` // nvidia.com/gpu
	Devices []string `json:"devices,omitempty"`
	// Missing are host paths that it names, and that are not there.
	Missing []string `json:"missing,omitempty"`
	// DriverVersion is the version in the names of the libraries that it mounts.
	DriverVersion string    `json:"driverVersion,omitempty"`
	Modified      time.Time `json:"modified,omitzero"`
	Error         string    `json:"error,omitempty"` // it cannot be parsed
}

// Filesystem is how full a file system is.
type Filesystem struct {
	Path      string `json:"path"`
	Bytes     uint64 `json:"bytes"`
	FreeBytes uint64 `json:"freeBytes"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// Unit is a systemd unit and its main process.
type Unit struct {
	Name    string    `json:"name"`
	PID     int       `json:"pid,omitempty"`
	Started time.Time `json:"started,omitzero"` // of the process
}
