package cudafault

import (
	"strings"
	"time"
)

// State is the configuration of the shim: whether, where, when and how it acts. The zero value is disarmed. Encode
// returns the state file. The comment on each field describes the meaning of the field's zero value.
type State struct {
	// Run is the ID of the run, at most 31 bytes. The shim includes it in its message on stderr.
	Run string `json:"run"`
	// Generation is different each time that the fault is armed. The shim discards the trips of other generations.
	Generation uint64 `json:"generation"`
	// ArmedAt is when the fault begins, in whole milliseconds. The zero value means that the shim is disarmed and all
	// calls pass through.
	ArmedAt time.Time `json:"armedAt"`
	// Expires is when the fault ends, in whole milliseconds. From then on, all calls of every process pass through
	// permanently. The zero value means never.
	Expires time.Time `json:"expires"`

	// Process is a glob (* ? [...]) of at most 63 bytes for the name of the program, the process or the script. ""
	// matches every process.
	Process string `json:"process,omitempty"`
	// Rank limits the fault to one rank, unless it is [AllRanks].
	Rank int `json:"rank"`
	// Nodes are the nodes on which the fault acts, at most 64; none means all. The file contains only their hashes, so
	// a decoded state has the hashes in the form of [NodeHash].
	Nodes []string `json:"nodes,omitempty"`
	// Devices are CUDA device ordinals from 0 to 63 as seen by the process, which does not count hidden devices. An
	// empty list means all devices.
	Devices []int `json:"devices,omitempty"`

	// Function is a glob of at most 63 bytes for the name of a function, with or without its suffix (_v2, _ptsz). If it
	// is "", Classes applies.
	Function string `json:"function,omitempty"`
	// Classes are the classes of calls that count toward the trigger if Function is "".
	Classes Class   `json:"classes"`
	Surface Surface `json:"surface"`

	// AfterCalls is the number of a process's counted calls that pass through before the first one can trip.
	AfterCalls uint64 `json:"afterCalls,omitempty"`
	// Every is N if the first call after AfterCalls trips, and then every Nth call. Both 0 and 1 mean every call.
	Every uint64 `json:"every,omitempty"`
	// Probability is the probability, from 0 to 1 in steps of 2^-32, that an eligible call trips. Both 0 and 1 mean
	// always.
	Probability float64 `json:"probability,omitempty"`
	// Seed is the random seed for Probability and for corruption.
	Seed uint64 `json:"seed,omitempty"`
	// Max is the maximum number of trips in a process; 0 means no limit. A poisoned context counts as one trip.
	Max uint64 `json:"max,omitempty"`
	// After is the time, in whole milliseconds, during which nothing trips. It starts at ArmedAt or at the first driver
	// call of the process, whichever is later.
	After time.Duration `json:"after,omitempty"`
	// WindowFrom and WindowTo limit when the fault may trip. Both are times since ArmedAt, in whole milliseconds. A
	// WindowTo of 0 means no end.
	WindowFrom time.Duration `json:"windowFrom,omitempty"`
	WindowTo   time.Duration `json:"windowTo,omitempty"`

	Flags Flags `json:"flags"`

	// Error is the CUresult of a call that trips; 0 means none.
	Error int `json:"error,omitempty"`
	// ErrorFallback replaces Error if the driver's cuDriverGetVersion returns less than ErrorMinDriver (12080 is CUDA
	// 12.8). An ErrorFallback of 0 means none.
	ErrorFallback  int `json:"errorFallback,omitempty"`
	ErrorMinDriver int `json:"errorMinDriver,omitempty"`
	// ErrorInit is the CUresult of cuInit in a process that starts after the fault has tripped in its pod or, if the
	// trigger is immediate, after arming; 0 means none.
	ErrorInit int `json:"errorInit,omitempty"`
	// NVMLError is the return code of NVML calls that concern a device, and NVMLInitError is the return code of
	// nvmlInit; 0 means none. They apply when ErrorInit would apply, and after a trip in any process of the pod.
	NVMLError     int `json:"nvmlError,omitempty"`
	NVMLInitError int `json:"nvmlInitError,omitempty"`

	// NVMLXID is the XID of an NVML event for the devices; 0 means none. The event is sent once, when the fault would
	// first apply to NVML calls, to the event sets that exist at that time.
	NVMLXID int `json:"nvmlXID,omitempty"`
	// NVMLECC is the number of uncorrectable ECC errors that NVML counts once the fault applies to NVML calls, and
	// NVMLRows is what NVML then reports about rows.
	NVMLECC  int  `json:"nvmlECC,omitempty"`
	NVMLRows Rows `json:"nvmlRows,omitempty"`

	// Latency is how long counted calls in LatencyClasses are delayed, and Jitter is the maximum random addition to
	// Latency. Both are in whole microseconds.
	Latency        time.Duration `json:"latency,omitempty"`
	Jitter         time.Duration `json:"jitter,omitempty"`
	LatencyClasses Class         `json:"latencyClasses,omitempty"`
	// HangClasses are the classes of calls that, once the trigger has tripped, block until the fault ends.
	HangClasses Class `json:"hangClasses,omitempty"`
	// MemLimit is the apparent memory size of each device in bytes; 0 means the real size.
	MemLimit uint64 `json:"memLimit,omitempty"`
	// Hide contains the devices that are hidden from processes.
	Hide []int `json:"hide,omitempty"`
	// Corrupt is the probability, from 0 to 1 in steps of 2^-32, that a copy from a device has a flipped bit. The value
	// 1 means 1 - 2^-32.
	Corrupt float64 `json:"corrupt,omitempty"`
}

// AllRanks is the Rank of a State that applies to all ranks.
const AllRanks = -1

// Surface is the call that returns the error.
type Surface uint32

// The values of Surface.
const (
	SurfaceCall Surface = 0 // the counted call itself
	SurfaceSync Surface = 1 // the next synchronizing call, as for errors of a running kernel
)

// String returns "call" or "sync".
func (s Surface) String() string {
	if s == SurfaceSync {
		return "sync"
	}
	return "call"
}

// MarshalText returns the name, for use in JSON.
func (s Surface) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Rows is what NVML reports about the rows of a device's memory.
type Rows uint32

// The bits of Rows.
const (
	RowRemapped Rows = 1 << iota // one more row remapped because of an uncorrectable error
	RowPending                   // a reset of the GPU is pending
	RowFailed                    // a row could not be remapped

	allRows = 1<<3 - 1
)

// rowNames are the names of the bits of Rows.
var rowNames = []string{"remapped", "pending", "failed"}

// String returns the names of the bits, such as "remapped,pending".
func (r Rows) String() string {
	var names []string
	for i, name := range rowNames {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// Flags are the flags of a State.
type Flags uint32

// The flags.
const (
	// FlagSticky makes all calls that need the context fail after the first error, until the process or the fault ends.
	FlagSticky  Flags = 1 << iota
	FlagQuiet         // the shim does not write to stderr
	FlagRuntime       // only the hooks of libgpufault-cudart.so act

	allFlags = 1<<3 - 1
)

// Immediate reports whether the first counted call trips, so that new processes fail as soon as the fault is armed.
func (s State) Immediate() bool {
	return s.AfterCalls == 0 && s.Every == 0 && probabilityBits(s.Probability) == 0 && s.Max == 0 && s.After == 0 &&
		s.WindowFrom == 0 && s.WindowTo == 0 && s.Function == ""
}

// Trips reports whether counted call i of a process, starting at 0, trips according to AfterCalls, Every and
// Probability. The time limits and Max may still prevent the trip. The shim uses the same algorithm.
func (s State) Trips(i uint64) bool {
	switch {
	case i < s.AfterCalls:
		return false
	case s.Every > 1 && (i-s.AfterCalls)%s.Every != 0:
		return false
	}
	p := probabilityBits(s.Probability)
	return p == 0 || hash(s.Seed, i) < p
}

// hash returns a uniformly distributed 32-bit number for call i: the upper half of output i+1 of splitmix64 with this
// seed.
func hash(seed, i uint64) uint32 {
	z := seed + (i+1)*0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return uint32((z ^ z>>31) >> 32)
}
