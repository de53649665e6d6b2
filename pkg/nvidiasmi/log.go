package nvidiasmi

import "github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"

// Log is one output of nvidia-smi.
type Log struct {
	Timestamp string `json:"timestamp,omitempty"` // the node's local time, as ctime prints it
	// Driver is the version of the loaded kernel module: 590.48.01.
	Driver string `json:"driver,omitempty"`
	CUDA   string `json:"cuda,omitempty"` // newest CUDA version that the driver serves: 13.1
	// Attached is how many GPUs the driver knows, also those that it cannot show.
	Attached *int64 `json:"attached,omitempty"`
	GPUs     []GPU  `json:"gpus"`
	// Notes are lines before and after the XML: "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown
	// Error".
	Notes []string `json:"notes,omitempty"`
}

// GPU is one GPU that the driver shows.
type GPU struct {
	// ID is the PCI address as nvidia-smi writes it, 00000000:17:00.0, and PCI the same; PCI is nil when ID is none.
	ID  string   `json:"id"`
	PCI *xid.PCI `json:"pci,omitempty"`

	UUID         string `json:"uuid,omitempty"`
	Serial       string `json:"serial,omitempty"`
	Minor        *int64 `json:"minor,omitempty"` // N of /dev/nvidiaN
	Product      string `json:"product,omitempty"`
	Brand        string `json:"brand,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	// Persistence reports whether the driver stays initialised without clients.
	Persistence *bool  `json:"persistence,omitempty"`
	ComputeMode string `json:"computeMode,omitempty"` // Default, Exclusive_Process, Prohibited
	// Virtualization is None, Pass-Through, VGPU or Host VGPU.
	Virtualization string `json:"virtualization,omitempty"`
	// GSPFirmware is the version of the firmware on the GPU's system processor; empty when it does not use one.
	GSPFirmware string `json:"gspFirmware,omitempty"`
	// RecoveryAction is what the driver asks for: None, Reset, Reboot, Drain P2P, Drain and Reset. R555 and later.
	RecoveryAction string `json:"recoveryAction,omitempty"`
	// ResetRequired and DrainAndReset were there before RecoveryAction, from R530 on.
	ResetRequired *bool `json:"resetRequired,omitempty"`
	DrainAndReset *bool `json:"drainAndReset,omitempty"`

	MIG         MIG          `json:"mig"`
	ECC         ECC          `json:"ecc"`
	Retired     Retired      `json:"retired"`
	Remapped    *Remapped    `json:"remapped,omitempty"` // nil where the GPU has no row remapper: before Ampere
	PCIe        PCIe         `json:"pcie"`
	Slowdown    Slowdown     `json:"slowdown"`
	Temperature Temperature  `json:"temperature"`
	Utilization *Utilization `json:"utilization,omitempty"`
	// MemoryUsed and MemoryTotal are MiB of the frame buffer.
	MemoryUsed  *int64    `json:"memoryUsed,omitempty"`
	MemoryTotal *int64    `json:"memoryTotal,omitempty"`
	Processes   []Process `json:"processes,omitempty"`
	Fabric      Fabric    `json:"fabric"`
	License     License   `json:"license"`

	// Errors are the distinct texts that stand where values should: "GPU is lost", "Unknown Error", "ERR!".
	Errors []string `json:"errors,omitempty"`
}

// MIG is a GPU's partitioning.
type MIG struct {
	Enabled *bool       `json:"enabled,omitempty"`
	Pending *bool       `json:"pending,omitempty"` // after the next reset
	Devices []MIGDevice `json:"devices,omitempty"`
}

// MIGDevice is one partition. Memory is in MiB.
type MIGDevice struct {
	Index           *int64 `json:"index,omitempty"`
	GPUInstance     *int64 `json:"gpuInstance,omitempty"`
	ComputeInstance *int64 `json:"computeInstance,omitempty"`
	MemoryUsed      *int64 `json:"memoryUsed,omitempty"`
	MemoryTotal     *int64 `json:"memoryTotal,omitempty"`
}

// ECC is error correction of memory.
type ECC struct {
	Enabled   *bool  `json:"enabled,omitempty"`
	Pending   *bool  `json:"pending,omitempty"` // after the next reset
	Volatile  Counts `json:"volatile"`          // since the driver was loaded or the GPU was reset
	Aggregate Counts `json:"aggregate"`         // since the GPU was made
	// SRAMThresholdExceeded says that the GPU should be replaced.
	SRAMThresholdExceeded *bool `json:"sramThresholdExceeded,omitempty"`
	// ChannelRepairPending and TPCRepairPending end with a reset; UnrepairableMemory with a replacement.
	ChannelRepairPending *bool `json:"channelRepairPending,omitempty"`
	TPCRepairPending     *bool `json:"tpcRepairPending,omitempty"`
	UnrepairableMemory   *bool `json:"unrepairableMemory,omitempty"`
}

// Counts are errors, of whichever schema: single_bit and double_bit of GPUs before Turing are what sram and dram,
// correctable and uncorrectable, are later. An old schema's device_memory is DRAM, and all else of it SRAM.
type Counts struct {
	SRAMCorrectable   *int64 `json:"sramCorrectable,omitempty"`
	SRAMUncorrectable *int64 `json:"sramUncorrectable,omitempty"` // parity and SEC-DED together
	DRAMCorrectable   *int64 `json:"dramCorrectable,omitempty"`
	DRAMUncorrectable *int64 `json:"dramUncorrectable,omitempty"`
}

// Uncorrectable returns how many errors could not be corrected; false when the GPU does not count them.
func (c Counts) Uncorrectable() (int64, bool) { return sum(c.SRAMUncorrectable, c.DRAMUncorrectable) }

// Retired are pages of memory that GPUs before Ampere no longer use.
type Retired struct {
	SingleBit *int64 `json:"singleBit,omitempty"` // for several errors of a single bit
	DoubleBit *int64 `json:"doubleBit,omitempty"`
	// Pending says that pages wait for a reset.
	Pending *bool `json:"pending,omitempty"`
}

// Remapped are rows of memory that GPUs since Ampere have replaced by spare ones.
type Remapped struct {
	Correctable   *int64 `json:"correctable,omitempty"`
	Uncorrectable *int64 `json:"uncorrectable,omitempty"`
	Pending       *bool  `json:"pending,omitempty"` // rows wait for a reset
	Failure       *bool  `json:"failure,omitempty"` // no spare row was left, or the table could not be written
	// Banks is how many banks have all, many, some, few and none of their spare rows left.
	Banks *Histogram `json:"banks,omitempty"`
}

// Histogram counts banks of memory by what is left of their spare rows.
type Histogram struct {
	Max     *int64 `json:"max,omitempty"`
	High    *int64 `json:"high,omitempty"`
	Partial *int64 `json:"partial,omitempty"`
	Low     *int64 `json:"low,omitempty"`
	None    *int64 `json:"none,omitempty"`
}

// PCIe is the link to the host. Generations fall while a GPU is idle; widths, in lanes, do not.
type PCIe struct {
	Generation     *int64 `json:"generation,omitempty"`
	MaxGeneration  *int64 `json:"maxGeneration,omitempty"`  // that GPU and host can do together
	GPUGeneration  *int64 `json:"gpuGeneration,omitempty"`  // that the GPU can do
	HostGeneration *int64 `json:"hostGeneration,omitempty"` // that the host can do
	Width          *int64 `json:"width,omitempty"`
	MaxWidth       *int64 `json:"maxWidth,omitempty"`
	Replays        *int64 `json:"replays,omitempty"` // packets sent again since the last reset
	ReplayRollover *int64 `json:"replayRollover,omitempty"`
}

// Slowdown is why clocks are lower than they could be: clocks_throttle_reasons until R530, clocks_event_reasons since.
type Slowdown struct {
	Idle *bool `json:"idle,omitempty"`
	// By software: the limit is reached, which is normal under load
	PowerCap        *bool `json:"powerCap,omitempty"`
	Hardware        *bool `json:"hardware,omitempty"`        // any of the next two, or another reason of the board
	HardwareThermal *bool `json:"hardwareThermal,omitempty"` // too hot
	PowerBrake      *bool `json:"powerBrake,omitempty"`      // the power supply asked for it
	SoftwareThermal *bool `json:"softwareThermal,omitempty"` // the driver holds the temperature down
}

// Temperature is in degrees Celsius. Since Hopper thresholds are distances to a limit that may differ per board: Margin
// is how far the GPU is from it, and the Margin thresholds are zero or negative.
type Temperature struct {
	GPU            *int64 `json:"gpu,omitempty"`
	Slowdown       *int64 `json:"slowdown,omitempty"`
	Shutdown       *int64 `json:"shutdown,omitempty"`
	Margin         *int64 `json:"margin,omitempty"`
	SlowdownMargin *int64 `json:"slowdownMargin,omitempty"`
	ShutdownMargin *int64 `json:"shutdownMargin,omitempty"`
	Memory         *int64 `json:"memory,omitempty"`
}

// Utilization is in per cent of time over the last sample, which is up to a second. MIG GPUs do not tell it.
type Utilization struct {
	GPU    *int64 `json:"gpu,omitempty"`
	Memory *int64 `json:"memory,omitempty"`
}

// Process is a client of a GPU. PIDs are the host's.
type Process struct {
	PID  int64  `json:"pid"`
	Type string `json:"type,omitempty"` // C compute, G graphics, M MPS; C+G both
	Name string `json:"name,omitempty"`
	// MemoryUsed is MiB of the frame buffer.
	MemoryUsed      *int64 `json:"memoryUsed,omitempty"`
	GPUInstance     *int64 `json:"gpuInstance,omitempty"`
	ComputeInstance *int64 `json:"computeInstance,omitempty"`
}

// Fabric is the NVLink fabric behind NVSwitches, on Hopper and later; empty where there is none.
type Fabric struct {
	State   string `json:"state,omitempty"`   // Not Started, In Progress, Completed
	Status  string `json:"status,omitempty"`  // Success, or NVML's name of an error
	Clique  string `json:"clique,omitempty"`  // number
	Cluster string `json:"cluster,omitempty"` // UUID
	// Health is the summary of R570 and later: Healthy, Unhealthy, Limited Capacity.
	Health string `json:"health,omitempty"`
}

// License is that of a vGPU's software; empty where none is needed.
type License struct {
	Product string `json:"product,omitempty"`
	// Licensed (Expiry: ...), Unlicensed (Unrestricted), Unlicensed (Restricted)
	Status string `json:"status,omitempty"`
}

// Lost reports whether nvidia-smi says of the GPU that it is lost, or that it needs a reset before it answers.
func (g GPU) Lost() bool {
	for _, e := range g.Errors {
		if lost(e) {
			return true
		}
	}
	return false
}
