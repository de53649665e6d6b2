package cudafault

import (
	"time"
)

// State is what the client tells the shim: whether it shall act, where, when and how. The zero value is disarmed.
// Encode makes the file of it; what a field's zero means is said with each.
type State struct {
	// Run is the ID of the run, at most 31 bytes: the shim names it in its line on stderr.
	Run string `json:"run"`
	// Generation differs for each arming; what tripped under another one is forgotten.
	Generation uint64 `json:"generation"`
	// ArmedAt is when the fault begins, to the millisecond; zero is disarmed: everything passes through.
	ArmedAt time.Time `json:"armedAt"`
	// Expires is from when on everything passes through, to the millisecond, in every process for good; zero is never.
	Expires time.Time `json:"expires"`

	// Process is a glob (* ? [...]) on the name of the program, the process or the script; "" is every process. At most
	// 63 bytes.
	Process string `json:"process,omitempty"`
	// Rank limits the fault to one rank; [AllRanks] does not.
	Rank int `json:"rank"`
	// Nodes are the nodes on which it acts; none is all, more than 64 do not fit. The file holds only their hashes, so
	// that a decoded state has those, as [NodeHash] gives them.
	Nodes []string `json:"nodes,omitempty"`
	// Devices are CUDA's ordinals, 0 to 63, as the process counts when none is hidden; none is all.
	Devices []int `json:"devices,omitempty"`

	// Function is a glob on the name of a function, with or without its suffix (_v2, _ptsz); "" is by Classes. At most
	// 63 bytes.
	Function string `json:"function,omitempty"`
	// Classes are the calls that count for the trigger where there is no Function.
	Classes Class   `json:"classes"`
	Surface Surface `json:"surface"`

	// AfterCalls is how many counted calls of a process pass before one trips.
	AfterCalls uint64 `json:"afterCalls,omitempty"`
	// Every is which of the calls after those trips: each for 0 and 1.
	Every uint64 `json:"every,omitempty"`
	// Probability of a call that would trip to trip, 0 to 1, in steps of 2^-32. 0 is always, as is 1.
	Probability float64 `json:"probability,omitempty"`
	// Seed decides with Probability which calls trip, and where corruption hits.
	Seed uint64 `json:"seed,omitempty"`
	// Max is how often at most it trips in a process; 0 has no limit. A poisoned context is one trip.
	Max uint64 `json:"max,omitempty"`
	// After is for how long nothing trips, since the later of ArmedAt and the first driver call of the process. In
	// milliseconds.
	After time.Duration `json:"after,omitempty"`
	// WindowFrom and WindowTo are when it may trip, since ArmedAt. WindowTo 0 has no end. In milliseconds.
	WindowFrom time.Duration `json:"windowFrom,omitempty"`
	WindowTo   time.Duration `json:"windowTo,omitempty"`

	Flags Flags `json:"flags"`

	// Error is the CUresult of a call that trips; 0 is none.
	Error int `json:"error,omitempty"`
	// ErrorFallback stands for Error where the driver's cuDriverGetVersion is below ErrorMinDriver (12080 is CUDA
	// 12.8); 0 is none.
	ErrorFallback  int `json:"errorFallback,omitempty"`
	ErrorMinDriver int `json:"errorMinDriver,omitempty"`
	// ErrorInit is what cuInit gives to a process that starts after the fault tripped in its pod, or, where the trigger
	// is immediate, after it was armed; 0 is none.
	ErrorInit int `json:"errorInit,omitempty"`
	// NVMLError is what NVML's calls about a device return, and NVMLInitError what nvmlInit does, when ErrorInit would
	// hold and after a trip in any process of the pod; 0 is none.
	NVMLError     int `json:"nvmlError,omitempty"`
	NVMLInitError int `json:"nvmlInitError,omitempty"`

	// Latency is how long counted calls of LatencyClasses wait before anything else, and Jitter how much is added at
	// most. In microseconds.
	Latency        time.Duration `json:"latency,omitempty"`
	Jitter         time.Duration `json:"jitter,omitempty"`
	LatencyClasses Class         `json:"latencyClasses,omitempty"`
	// HangClasses are the calls that sleep until the fault ends, from when the trigger trips.
	HangClasses Class `json:"hangClasses,omitempty"`
	// MemLimit is how many bytes of memory each device seems to have; 0 is as many as it has.
	MemLimit uint64 `json:"memLimit,omitempty"`
	// Hide are the devices that a process does not see.
	Hide []int `json:"hide,omitempty"`
	// Corrupt is the probability of a copy from a device to lose a bit, 0 to 1, in steps of 2^-32; 1 is 2^-32 less than
	// always.
	Corrupt float64 `json:"corrupt,omitempty"`
}

// AllRanks is the Rank of a State that holds for all.
const AllRanks = -1

// Surface is which call returns the error.
type Surface uint32

// Where an error surfaces.
const (
	SurfaceCall Surface = 0 // the counted call itself
	SurfaceSync Surface = 1 // the next one that waits for the GPU, as with errors of a kernel that runs already
)

// String is "call" or "sync".
func (s Surface) String() string {
	if s == SurfaceSync {
		return "sync"
	}
	return "call"
}

// MarshalText writes the name, for JSON.
func (s Surface) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Flags of a State.
type Flags uint32

// What the flags say.
const (
	// After the first error all calls that need the context fail with it, until the process or the fault ends
	FlagSticky  Flags = 1 << iota
	FlagQuiet         // the shim writes no line to stderr
	FlagRuntime       // only libgpufault-cudart.so's hooks act

	allFlags = 1<<3 - 1
)

// Immediate reports whether the first counted call trips, so that new processes fail from the moment of arming.
func (s State) Immediate() bool {
	return s.AfterCalls == 0 && s.Every == 0 && probabilityBits(s.Probability) == 0 && s.Max == 0 && s.After == 0 &&
		s.WindowFrom == 0 && s.WindowTo == 0 && s.Function == ""
}

// Trips reports whether counted call i of a process trips, from 0, as far as calls decide: by AfterCalls, Every and
// Probability. The time and Max may still forbid it. The shim computes the same.
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

// hash returns an even 32-bit number for call i: splitmix64's output number i+1 from the state seed, its upper half.
func hash(seed, i uint64) uint32 {
	z := seed + (i+1)*0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return uint32((z ^ z>>31) >> 32)
}
