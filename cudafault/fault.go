package cudafault

import (
	"strconv"
	"time"
)

// Fault is what somebody asks for: what fails, how, when and in which processes. The zero value asks for nothing, which
// Validate refuses. It is data that a record can keep.
type Fault struct {
	// XID takes the errors from the XID's profile; 0 is none.
	XID int `json:"xid,omitempty"`
	// Error is the CUresult that running processes get; 0 is none. Not with XID.
	Error int `json:"error,omitempty"`
	// PhaseNew is the CUresult of cuInit in processes that start after the fault tripped, and NVML what NVML returns
	// then, in place of the profile's; a pointer to 0 is no error.
	PhaseNew *int `json:"phaseNew,omitempty"`
	NVML     *int `json:"nvml,omitempty"`
	// Sticky reports whether all calls of a process fail after the first; nil is as the error's nature is.
	Sticky *bool `json:"sticky,omitempty"`
	// DriverMismatch and FabricNotReady are the profiles without an XID.
	DriverMismatch bool `json:"driverMismatch,omitempty"`
	FabricNotReady bool `json:"fabricNotReady,omitempty"`

	Latency time.Duration `json:"latency,omitempty"`
	Jitter  time.Duration `json:"jitter,omitempty"` // added to Latency, at most
	Hang    bool          `json:"hang,omitempty"`   // calls that wait, and copies, do not return until the fault ends
	// MemLimit is how many bytes of memory each device seems to have; 0 is as many as it has.
	MemLimit    uint64  `json:"memLimit,omitempty"`
	HideDevices []int   `json:"hideDevices,omitempty"` // CUDA's ordinals; AllDevices for all
	CorruptD2H  float64 `json:"corruptD2H,omitempty"`  // probability of a copy from a device to lose a bit

	Trigger
	Scope

	Layer Layer `json:"layer,omitempty"` // "" is LayerDriver
	Quiet bool  `json:"quiet,omitempty"` // no line on the stderr of the processes
}

// Trigger is which calls trip. The zero value is each that counts.
type Trigger struct {
	Function    string        `json:"function,omitempty"` // glob: only calls of these functions count
	AfterCalls  uint64        `json:"afterCalls,omitempty"`
	After       time.Duration `json:"after,omitempty"`
	Every       uint64        `json:"every,omitempty"`
	Probability float64       `json:"probability,omitempty"`
	Seed        uint64        `json:"seed,omitempty"`
	WindowFrom  time.Duration `json:"windowFrom,omitempty"` // since arming
	WindowTo    time.Duration `json:"windowTo,omitempty"`   // 0 has no end
	Max         uint64        `json:"max,omitempty"`
}

// Scope is where the fault acts. The zero value is everywhere.
type Scope struct {
	Devices []int    `json:"devices,omitempty"` // CUDA's ordinals, as the process counts when none is hidden
	Rank    *int     `json:"rank,omitempty"`
	Process string   `json:"process,omitempty"` // glob on the name of the program, the process or the script
	Nodes   []string `json:"nodes,omitempty"`   // by name, at most 64
}

// Layer is at which API the shim stands.
type Layer string

// The layers.
const (
	LayerDriver  Layer = "driver"  // where every CUDA program must pass
	LayerRuntime Layer = "runtime" // only what calls a dynamic CUDA runtime, for comparison
)

// AllDevices returns all ordinals that a fault can name.
func AllDevices() []int {
	all := make([]int, maxDevices)
	for i := range all {
		all[i] = i
	}
	return all
}

// effect is what a fault comes down to: the codes and which calls they concern.
type effect struct {
	name                         string // for the summary
	running, fallback, minDriver int
	sticky                       bool
	surface                      Surface
	classes                      Class // that count where there is no function
	counted                      Class // of the calls that do count
	fresh, nvml, nvmlInit        int   // of processes that start afterwards
	latency, jitter              time.Duration
	latencyClasses               Class
	hang                         Class
}

// What counts for effects that have no error of their own.
const (
	latencyDefault = ClassCopy | ClassLaunch | ClassSync
	// Not ClassQuery: a GPU that hangs answers "not ready", and watchdogs live on that
	hangDefault = ClassCopy | ClassSync
)

// effect resolves the profile and what overrides it. The fault must be valid.
func (f Fault) effect() effect {
	var e effect
	if named := f.profileName(); named != "" {
		p, _ := NamedProfile(named)
		e = effect{
			name: named, running: p.Running, fallback: p.Fallback, minDriver: p.MinDriver, sticky: p.Sticky,
			surface: p.Surface, classes: p.Classes,
			fresh: p.New, nvml: p.NVML, nvmlInit: p.NVMLInit, latency: p.Latency, latencyClasses: p.LatencyClasses,
			hang: p.HangClasses,
		}
		if p.XID != 0 {
			e.name = "XID " + named
		}
	}
	if f.Error != 0 {
		code, _ := findError(f.Error)
		e.name, e.running, e.sticky, e.surface, e.classes = ErrorName(f.Error), f.Error, code.sticky, code.surface,
			code.classes
		if f.Function != "" {
			e.surface = SurfaceCall // who names a function wants that one to fail
		}
	}
	if f.Sticky != nil {
		e.sticky = *f.Sticky
	}
	if f.Hang {
		e.running, e.fallback, e.minDriver, e.sticky, e.surface = 0, 0, 0, false, SurfaceCall
		e.classes, e.hang, e.latency, e.latencyClasses = hangDefault, hangDefault, 0, 0
	}
	if f.Latency > 0 {
		e.latency, e.jitter = f.Latency, f.Jitter
		if e.latencyClasses == 0 {
			e.latencyClasses = e.classes
		}
		if e.latencyClasses == 0 {
			e.classes, e.latencyClasses = latencyDefault, latencyDefault
		}
	}
	if f.CorruptD2H > 0 && e.classes == 0 {
		e.classes = ClassCopy
	}
	f.overrideNew(&e)
	if f.layer() == LayerRuntime && e.classes&ClassInit != 0 {
		e.classes |= ClassDevice // the runtime has no cuInit: what asks it for devices comes first
	}
	e.counted = e.classes
	if f.Function != "" {
		f.narrow(&e)
	}
	return e
}

// profileName is of the profile that the fault starts from, "" for none.
func (f Fault) profileName() string {
	switch {
	case f.XID != 0:
		return strconv.Itoa(f.XID)
	case f.DriverMismatch:
		return driverMismatch
	case f.FabricNotReady:
		return fabricNotReady
	default:
		return ""
	}
}

// overrideNew sets what happens to new processes where the fault says so.
func (f Fault) overrideNew(e *effect) {
	if f.PhaseNew != nil {
		e.fresh = *f.PhaseNew
	}
	if f.NVML != nil {
		e.nvml, e.nvmlInit = *f.NVML, 0
		if code, _ := findNVML(*f.NVML); code.init {
			e.nvml, e.nvmlInit = 0, *f.NVML
		}
	}
	if len(f.HideDevices) == maxDevices && e.fresh == 0 {
		e.fresh = codeNoDevice // what a driver without devices answers; a count of 0 it never gives
	}
	if f.layer() == LayerRuntime {
		e.nvml, e.nvmlInit = 0, 0 // NVML is not of the runtime; for cuInit stands its first call
	}
}

// codeNoDevice is CUDA_ERROR_NO_DEVICE.
const codeNoDevice = 100

// narrow leaves of latency and hang the calls that the function's glob matches, which alone count.
func (f Fault) narrow(e *effect) {
	e.counted = classesOf(f.Function, f.layer())
	if e.latency > 0 {
		e.latencyClasses = e.counted
	}
	if e.hang != 0 {
		e.hang = e.counted
	}
}

func (f Fault) layer() Layer {
	if f.Layer == "" {
		return LayerDriver
	}
	return f.Layer
}

// State makes what arms the shim for a run, from armedAt to expires (zero: without end).
func (f Fault) State(run string, generation uint64, armedAt, expires time.Time) (State, error) {
	if err := f.Validate(); err != nil {
		return State{}, err
	}
	e := f.effect()
	s := State{
		Run: run, Generation: generation, ArmedAt: armedAt.Truncate(time.Millisecond),
		Expires: expires.Truncate(time.Millisecond),
		Process: f.Process, Rank: AllRanks, Nodes: f.Nodes, Devices: f.Devices,
		Function: f.Function, Classes: e.classes, Surface: e.surface,
		AfterCalls: f.AfterCalls, Every: f.Every, Probability: f.Probability, Seed: f.Seed, Max: f.Max,
		After: f.After, WindowFrom: f.WindowFrom, WindowTo: f.WindowTo,
		Error: e.running, ErrorFallback: e.fallback, ErrorMinDriver: e.minDriver, ErrorInit: e.fresh, NVMLError: e.nvml,
		NVMLInitError: e.nvmlInit,
		Latency:       e.latency, Jitter: e.jitter, LatencyClasses: e.latencyClasses, HangClasses: e.hang,
		MemLimit: f.MemLimit, Hide: f.HideDevices, Corrupt: f.CorruptD2H,
	}
	if f.Rank != nil {
		s.Rank = *f.Rank
	}
	if e.sticky {
		s.Flags |= FlagSticky
	}
	if f.Quiet {
		s.Flags |= FlagQuiet
	}
	if f.layer() == LayerRuntime {
		s.Flags |= FlagRuntime
	}
	_, err := s.Encode() // what does not fit shows now
	return s, err
}
