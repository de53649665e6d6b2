package api

import (
	"fmt"
	"regexp"
	"time"
)

// unitName matches valid systemd unit names (UNIT_NAME_VALID in systemd's unit-name.c), except for names that
// journalctl treats as patterns.
var unitName = regexp.MustCompile(
	`^[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*\.(service|socket|mount|slice|target|timer|scope|path)$`,
)

// Validate returns an error if a unit name is invalid.
func (d Diagnose) Validate() error {
	if len(d.Units) > maxUnits {
		return fmt.Errorf("too many units: %d, but the maximum is %d", len(d.Units), maxUnits)
	}
	for _, unit := range d.Units {
		if len(unit) > 255 || !unitName.MatchString(unit) {
			return fmt.Errorf("%q is not the name of a systemd unit, such as kubelet.service", Shorten(unit, 80))
		}
	}
	return nil
}

// Diagnose requests everything on the node that can explain why GPU pods do not run there. It changes nothing. It runs
// these programs on the node: nvidia-smi -q -x, if the driver is loaded; journalctl; the programs that InspectRuntime
// runs; and nv-fabricmanager, nvidia-ctk and nvidia-container-runtime with --version. Each has a timeout, and runs
// without the capabilities to load modules and to create devices. The response includes the result of InspectRuntime.
type Diagnose struct {
	// Units are additional systemd units whose journals are requested. The journals of the kubelet and its container
	// runtime are always returned.
	Units []string `json:"units,omitempty"`
}

// Diagnosis is the response to Diagnose. If a part could not be read, it is absent, and Unread contains the reason. An
// absent part does not mean that the part is healthy.
type Diagnosis struct {
	Info    Info    `json:"info"`
	Runtime Runtime `json:"runtime"`
	Probe   Probe   `json:"probe"`
	// SMI is the output of `nvidia-smi -q -x`. If nvidia-smi did not run, SMI is empty and Probe.SMIError contains the
	// reason. If one of several GPUs is broken, both fields may be set, and the XML may be truncated.
	SMI string `json:"smi,omitempty"`
	// KernelLog contains the records about GPUs, PCI, NVLink, modules, memory or blocked packets that were logged since
	// boot. It is limited to the newest 1,500, plus the newest 500 of types that can occur in thousands (blocked
	// packets, AER, mlx5).
	KernelLog []KernelRecord `json:"kernelLog,omitempty"`
	// Journals contains the last 200 lines of each unit in the format of `journalctl -o short-iso`. Long lines are
	// truncated with "…".
	Journals map[string]string `json:"journals,omitempty"`
}

// KernelRecord is one record of the kernel log.
type KernelRecord struct {
	Sequence uint64        `json:"sequence"`
	Uptime   time.Duration `json:"uptime"`
	// Time is the approximate wall-clock time of the record on the node.
	Time time.Time `json:"time,omitzero"`
	// Priority is facility*8+level. It is below 8 for records from the kernel itself, and 8 or above for records from
	// user space.
	Priority int    `json:"priority"`
	Text     string `json:"text"`
}

// Probe is the information from the node's files. All paths are paths on the node.
type Probe struct {
	Time   time.Time     `json:"time,omitzero"` // the node's clock during the request
	Uptime time.Duration `json:"uptime,omitempty"`
	// OS contains fields from /etc/os-release: ID, ID_LIKE, VERSION_ID, VERSION_CODENAME, PRETTY_NAME, VARIANT_ID.
	OS      map[string]string `json:"os,omitempty"`
	Cmdline string            `json:"cmdline,omitempty"` // kernel command line

	PCI []PCIDevice `json:"pci,omitempty"` // NVIDIA GPUs and NVSwitches
	// Modules are the loaded nvidia*, nouveau, ib_umad, mlx5_core, gdrdrv and similar modules.
	Modules []Module    `json:"modules,omitempty"`
	Driver  DriverFiles `json:"driver"`
	// Devices are /dev/nvidia*, /dev/nvidia-caps/* and the corresponding files in /run/nvidia/driver/dev.
	Devices []DeviceNode `json:"devices,omitempty"`
	// DevChar reports, for each of Devices, whether its link exists. The keys are paths such as /dev/char/195:0.
	DevChar map[string]bool `json:"devChar,omitempty"`

	// Processes contains the PIDs of processes that affect GPUs, by program: nvidia-persistenced, nv-fabricmanager,
	// nvidia-imex, nvidia-cuda-mps-control, nvidia-cuda-mps-server, nv-hostengine, nvlsm.
	Processes map[string][]int `json:"processes,omitempty"`
	// FabricManager is the version reported by the installed nv-fabricmanager. It is empty if nv-fabricmanager is not
	// installed.
	FabricManager string `json:"fabricManager,omitempty"`

	// DevicePlugins are the sockets in /var/lib/kubelet/device-plugins and plugins_registry.
	DevicePlugins []Socket `json:"devicePlugins,omitempty"`
	// Validations are the files in /run/nvidia/validations, for which the GPU operator's init containers wait.
	Validations []string  `json:"validations,omitempty"`
	CDI         []CDISpec `json:"cdi,omitempty"`
	// ToolkitConfig is the content of /etc/nvidia-container-runtime/config.toml or of the file in
	// /usr/local/nvidia/toolkit/.config.
	ToolkitConfig     string `json:"toolkitConfig,omitempty"`
	ToolkitConfigPath string `json:"toolkitConfigPath,omitempty"`
	// ToolkitVersion is the output of nvidia-container-runtime --version or nvidia-ctk --version.
	ToolkitVersion string `json:"toolkitVersion,omitempty"`

	// KubeletConfig contains the values of cgroupDriver, cpuManagerPolicy, topologyManagerPolicy, topologyManagerScope
	// and memoryManagerPolicy that are set explicitly.
	KubeletConfig map[string]string `json:"kubeletConfig,omitempty"`
	CgroupVersion int               `json:"cgroupVersion,omitempty"` // 1 or 2; 0 if unknown
	// Sysctls contains fs.inotify.max_user_instances and fs.inotify.max_user_watches.
	Sysctls     map[string]string `json:"sysctls,omitempty"`
	SecureBoot  string            `json:"secureBoot,omitempty"`  // enabled or disabled; empty if unknown
	SELinux     string            `json:"selinux,omitempty"`     // enforcing, permissive or disabled; empty if unknown
	Filesystems []Filesystem      `json:"filesystems,omitempty"` // those of /, the kubelet and the runtime

	SMIError string `json:"smiError,omitempty"` // error from nvidia-smi, or the reason why it was not run
	// Units are the systemd units of the kubelet, of its runtime and of the programs in Processes, as far as the units
	// can be identified from cgroups.
	Units []Unit `json:"units,omitempty"`

	// Unread contains the reason for each field that could not be read completely. The key is the field's JSON name,
	// such as "pci", "journals", "kernelLog" or "runtime". The "processes" entry also covers units, and the "os" entry
	// also covers cmdline. An empty field without an entry is empty on the node.
	Unread map[string]string `json:"unread,omitempty"`
}

// PCIDevice is an NVIDIA device on the PCI bus, as reported by sysfs.
type PCIDevice struct {
	Address string `json:"address"` // such as 0000:17:00.0
	Class   string `json:"class"`   // such as 0x030200 (3D controller) or 0x068000 (bridge, NVSwitch)
	Device  string `json:"device"`  // such as 0x2330
	// Driver is the kernel module bound to the device, such as nvidia, nouveau or vfio-pci. It is empty if none is
	// bound.
	Driver string `json:"driver,omitempty"`
	// LinkWidth and MaxLinkWidth are numbers of lanes. LinkSpeed and MaxLinkSpeed have the form "16.0 GT/s PCIe". If
	// unknown, they are zero and empty, respectively.
	LinkWidth    int    `json:"linkWidth,omitempty"`
	MaxLinkWidth int    `json:"maxLinkWidth,omitempty"`
	LinkSpeed    string `json:"linkSpeed,omitempty"`
	MaxLinkSpeed string `json:"maxLinkSpeed,omitempty"`
	// ConfigReadable is false if the device's configuration space reads as all ones (`rev ff` in lspci), because the
	// device fell off the bus. It is true if the space could not be read; Unread["pci"] then contains the reason.
	ConfigReadable bool `json:"configReadable"`
	// ACSRedirect reports whether a bridge above the device has ACS P2P request redirect enabled. It is nil if unknown.
	ACSRedirect *bool `json:"acsRedirect,omitempty"`
}

// Module is a loaded kernel module.
type Module struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // from /sys/module/NAME/version
	// Taint is the content of /sys/module/NAME/taint: P for proprietary, O for out of tree, E for unsigned.
	Taint string `json:"taint,omitempty"`
}

// DriverFiles describes the files of the NVIDIA driver on the node.
type DriverFiles struct {
	// Root is the root directory of the driver's user space, such as "/", "/run/nvidia/driver" or
	// "/home/kubernetes/bin/nvidia". It is empty if it was not found.
	Root string `json:"root,omitempty"`
	// Kernel is the version of the loaded module, from /proc/driver/nvidia/version. It is empty if no module is loaded.
	Kernel string `json:"kernel,omitempty"`
	// Open reports whether the loaded module is the open kernel module.
	Open bool `json:"open,omitempty"`
	// Libraries are the paths of libnvidia-ml.so.* and libcuda.so.*, which end with the version. The targets of
	// libnvidia-ml.so.1 and libcuda.so.1, which programs load, come first.
	Libraries []string `json:"libraries,omitempty"`
	// Built contains the paths of the nvidia*.ko* files below /lib/modules, on the host and in /run/nvidia/driver, for
	// all kernels.
	Built []string `json:"built,omitempty"`
	// Kernels are the kernels with a directory in /lib/modules.
	Kernels []string `json:"kernels,omitempty"`
}

// DeviceNode is one device node. Major and Minor are zero if the file is not a device.
type DeviceNode struct {
	Path  string `json:"path"`
	Major int    `json:"major"`
	Minor int    `json:"minor"`
	Mode  string `json:"mode"` // such as 0666
}

// Socket is a Unix socket and the time at which it was created.
type Socket struct {
	Path     string    `json:"path"`
	Modified time.Time `json:"modified,omitzero"`
	// Listening reports whether a process listens on the socket. It is nil if unknown.
	Listening *bool `json:"listening,omitempty"`
}

// CDISpec is one specification of the Container Device Interface.
type CDISpec struct {
	Path    string   `json:"path"`
	Kind    string   `json:"kind,omitempty"` // such as nvidia.com/gpu
	Devices []string `json:"devices,omitempty"`
	// Missing contains the host paths that the specification refers to but that do not exist.
	Missing []string `json:"missing,omitempty"`
	// DriverVersion is the version in the names of the libraries that the specification mounts.
	DriverVersion string    `json:"driverVersion,omitempty"`
	Modified      time.Time `json:"modified,omitzero"`
	Error         string    `json:"error,omitempty"` // parse error
}

// Filesystem is the usage of a file system.
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
	Started time.Time `json:"started,omitzero"` // start time of the process
}
