package nvidiasmi

import "github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"

// Log is the parsed output of one nvidia-smi call.
type Log struct {
	Timestamp string `json:"timestamp,omitempty"` // the node's local time, in the format of ctime
	// Driver is the version of the loaded kernel module, such as 590.48.01.
	Driver string `json:"driver,omitempty"`
	CUDA   string `json:"cuda,omitempty"` // the newest CUDA version that the driver supports: 13.1
	// Attached is the number of GPUs that the driver knows, including those that it cannot show.
	Attached *int64 `json:"attached,omitempty"`
	GPUs     []GPU  `json:"gpus"`
	// Notes are lines before and after the XML, such as "Unable to determine the device handle for GPU1: 0000:34:00.0:
	// Unknown Error".
	Notes []string `json:"notes,omitempty"`
}

// GPU is a GPU in the output.
type GPU struct {
	// ID is the PCI address in nvidia-smi's format, 00000000:17:00.0, and PCI is the parsed address; PCI is nil if ID
	// is not an address.
	ID  string   `json:"id"`
	PCI *xid.PCI `json:"pci,omitempty"`

	UUID         string `json:"uuid,omitempty"`
	Serial       string `json:"serial,omitempty"`
	Minor        *int64 `json:"minor,omitempty"` // N in /dev/nvidiaN
	Product      string `json:"product,omitempty"`
	Brand        string `json:"brand,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	// Persistence reports whether the driver stays initialized without clients.
	Persistence *bool  `json:"persistence,omitempty"`
	ComputeMode string `json:"computeMode,omitempty"` // Default, Exclusive_Process, Prohibited
	// Virtualization is None, Pass-Through, VGPU or Host VGPU.
	Virtualization string `json:"virtualization,omitempty"`
	// GSPFirmware is the version of the firmware on the GPU system processor; empty if it is not used.
	GSPFirmware string `json:"gspFirmware,omitempty"`
	// RecoveryAction is the action that the driver requests: None, Reset, Reboot, Drain P2P, Drain and Reset. It is
	// reported by R555 and later.
	RecoveryAction string `json:"recoveryAction,omitempty"`
	// ResetRequired and DrainAndReset are the predecessors of RecoveryAction, from R530 on.
	ResetRequired *bool `json:"resetRequired,omitempty"`
	DrainAndReset *bool `json:"drainAndReset,omitempty"`

	MIG         MIG          `json:"mig"`
	ECC         ECC          `json:"ecc"`
	Retired     Retired      `json:"retired"`
	Remapped    *Remapped    `json:"remapped,omitempty"` // nil if the GPU has no row remapper: before Ampere
	PCIe        PCIe         `json:"pcie"`
	Slowdown    Slowdown     `json:"slowdown"`
	Temperature Temperature  `json:"temperature"`
	Utilization *Utilization `json:"utilization,omitempty"`
	// MemoryUsed and MemoryTotal are MiB of frame buffer memory.
	MemoryUsed  *int64    `json:"memoryUsed,omitempty"`
	MemoryTotal *int64    `json:"memoryTotal,omitempty"`
	Processes   []Process `json:"processes,omitempty"`
	Fabric      Fabric    `json:"fabric"`
	License     License   `json:"license"`

	// Errors are the distinct error texts that appear in place of values, such as "GPU is lost", "Unknown Error" or
	// "ERR!".
	Errors []string `json:"errors,omitempty"`
}

// MIG describes the partitioning of a GPU.
type MIG struct {
	Enabled *bool       `json:"enabled,omitempty"`
	Pending *bool       `json:"pending,omitempty"` // mode after the next reset
	Devices []MIGDevice `json:"devices,omitempty"`
}

// MIGDevice is a partition. Memory is in MiB.
type MIGDevice struct {
	Index           *int64 `json:"index,omitempty"`
	GPUInstance     *int64 `json:"gpuInstance,omitempty"`
	ComputeInstance *int64 `json:"computeInstance,omitempty"`
	MemoryUsed      *int64 `json:"memoryUsed,omitempty"`
	MemoryTotal     *int64 `json:"memoryTotal,omitempty"`
}

// ECC describes memory error correction.
type ECC struct {
	Enabled   *bool  `json:"enabled,omitempty"`
	Pending   *bool  `json:"pending,omitempty"` // mode after the next reset
	Volatile  Counts `json:"volatile"`          // since the driver was loaded or the GPU was reset
	Aggregate Counts `json:"aggregate"`         // over the lifetime of the GPU
	// SRAMThresholdExceeded reports whether the GPU should be replaced.
	SRAMThresholdExceeded *bool `json:"sramThresholdExceeded,omitempty"`
	// ChannelRepairPending and TPCRepairPending are resolved by a reset, and UnrepairableMemory by a replacement.
	ChannelRepairPending *bool `json:"channelRepairPending,omitempty"`
	TPCRepairPending     *bool `json:"tpcRepairPending,omitempty"`
	UnrepairableMemory   *bool `json:"unrepairableMemory,omitempty"`
}

// Counts are error counts, from any schema. On GPUs before Turing, the schema has single_bit and double_bit, which
// correspond to the later correctable and uncorrectable counts of sram and dram. In such an old schema, device_memory
// is DRAM, and everything else is SRAM.
type Counts struct {
	SRAMCorrectable   *int64 `json:"sramCorrectable,omitempty"`
	SRAMUncorrectable *int64 `json:"sramUncorrectable,omitempty"` // sum of parity and SEC-DED errors
	DRAMCorrectable   *int64 `json:"dramCorrectable,omitempty"`
	DRAMUncorrectable *int64 `json:"dramUncorrectable,omitempty"`
}

// Uncorrectable returns the number of errors that could not be corrected; false if the GPU does not count them.
func (c Counts) Uncorrectable() (int64, bool) { return sum(c.SRAMUncorrectable, c.DRAMUncorrectable) }

// Retired describes memory pages that GPUs before Ampere no longer use.
type Retired struct {
	SingleBit *int64 `json:"singleBit,omitempty"` // because of several single-bit errors
	DoubleBit *int64 `json:"doubleBit,omitempty"`
	// Pending reports whether pages are waiting for a reset.
	Pending *bool `json:"pending,omitempty"`
}

// Remapped describes memory rows that GPUs since Ampere have replaced with spare rows.
type Remapped struct {
	Correctable   *int64 `json:"correctable,omitempty"`
	Uncorrectable *int64 `json:"uncorrectable,omitempty"`
	Pending       *bool  `json:"pending,omitempty"` // rows are waiting for a reset
	Failure       *bool  `json:"failure,omitempty"` // no spare row was available, or the table could not be written
	// Banks counts the banks that have all, many, some, few or none of their spare rows left.
	Banks *Histogram `json:"banks,omitempty"`
}

// Histogram counts memory banks by their remaining spare rows.
type Histogram struct {
	Max     *int64 `json:"max,omitempty"`
	High    *int64 `json:"high,omitempty"`
	Partial *int64 `json:"partial,omitempty"`
	Low     *int64 `json:"low,omitempty"`
	None    *int64 `json:"none,omitempty"`
}

// PCIe describes the link to the host. The generation drops while a GPU is idle; the width, in lanes, does not.
type PCIe struct {
	Generation     *int64 `json:"generation,omitempty"`
	MaxGeneration  *int64 `json:"maxGeneration,omitempty"`  // maximum for the GPU and the host together
	GPUGeneration  *int64 `json:"gpuGeneration,omitempty"`  // maximum for the GPU
	HostGeneration *int64 `json:"hostGeneration,omitempty"` // maximum for the host
	Width          *int64 `json:"width,omitempty"`
	MaxWidth       *int64 `json:"maxWidth,omitempty"`
	Replays        *int64 `json:"replays,omitempty"` // number of packets sent again since the last reset
	ReplayRollover *int64 `json:"replayRollover,omitempty"`
}

// Slowdown describes why clocks are reduced: clocks_throttle_reasons until R530, clocks_event_reasons since.
type Slowdown struct {
	Idle *bool `json:"idle,omitempty"`
	// Software limits that are reached, which is normal under load
	PowerCap        *bool `json:"powerCap,omitempty"`
	Hardware        *bool `json:"hardware,omitempty"`        // one of the next two, or another reason on the board
	HardwareThermal *bool `json:"hardwareThermal,omitempty"` // the GPU is too hot
	PowerBrake      *bool `json:"powerBrake,omitempty"`      // requested by the power supply
	SoftwareThermal *bool `json:"softwareThermal,omitempty"` // the driver limits the temperature
}

// Temperature is in degrees Celsius. Since Hopper, thresholds are relative to a limit that may differ between boards:
// Margin is the distance of the GPU from the limit, and the Margin thresholds are zero or negative.
type Temperature struct {
	GPU            *int64 `json:"gpu,omitempty"`
	Slowdown       *int64 `json:"slowdown,omitempty"`
	Shutdown       *int64 `json:"shutdown,omitempty"`
	Margin         *int64 `json:"margin,omitempty"`
	SlowdownMargin *int64 `json:"slowdownMargin,omitempty"`
	ShutdownMargin *int64 `json:"shutdownMargin,omitempty"`
	Memory         *int64 `json:"memory,omitempty"`
}

// Utilization is the percentage of time in use during the last sample, which takes up to a second. MIG GPUs do not
// report it.
type Utilization struct {
	GPU    *int64 `json:"gpu,omitempty"`
	Memory *int64 `json:"memory,omitempty"`
}

// Process is a client of a GPU. PIDs are in the host's namespace.
type Process struct {
	PID  int64  `json:"pid"`
	Type string `json:"type,omitempty"` // C (compute), G (graphics), M (MPS) or C+G
	Name string `json:"name,omitempty"`
	// MemoryUsed is MiB of frame buffer memory.
	MemoryUsed      *int64 `json:"memoryUsed,omitempty"`
	GPUInstance     *int64 `json:"gpuInstance,omitempty"`
	ComputeInstance *int64 `json:"computeInstance,omitempty"`
}

// Fabric describes the NVLink fabric behind NVSwitches, on Hopper and later. It is empty if there is no fabric.
type Fabric struct {
	State   string `json:"state,omitempty"`   // Not Started, In Progress, Completed
	Status  string `json:"status,omitempty"`  // Success, or the name of an NVML error
	Clique  string `json:"clique,omitempty"`  // a number
	Cluster string `json:"cluster,omitempty"` // a UUID
	// Health is the summary that R570 and later report: Healthy, Unhealthy, Limited Capacity.
	Health string `json:"health,omitempty"`
}

// License describes the license of a vGPU's software; empty if none is required.
type License struct {
	Product string `json:"product,omitempty"`
	// Licensed (Expiry: ...), Unlicensed (Unrestricted), Unlicensed (Restricted)
	Status string `json:"status,omitempty"`
}

// Lost reports whether nvidia-smi reports that the GPU is lost, or that it needs a reset before it responds.
func (g GPU) Lost() bool {
	for _, e := range g.Errors {
		if lost(e) {
			return true
		}
	}
	return false
}
