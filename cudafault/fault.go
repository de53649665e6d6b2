package cudafault

import (
	"strconv"
	"time"
)

// Fault is a request to inject a fault: what fails, how, when and in which processes. The zero value requests nothing,
// and Validate rejects it. A record can store a Fault.
type Fault struct {
	// XID selects the profile that determines the errors; 0 selects none.
	XID int `json:"xid,omitempty"`
	// Error is the CUresult for running processes; 0 means none. It cannot be combined with XID.
	Error int `json:"error,omitempty"`
	// PhaseNew is the CUresult of cuInit in processes that start after the fault has tripped, and NVML is the code that
	// NVML then returns. Both override the profile. A pointer to 0 means no error.
	PhaseNew *int `json:"phaseNew,omitempty"`
	NVML     *int `json:"nvml,omitempty"`
	// Sticky reports whether all calls of a process fail after the first one that fails. If Sticky is nil, the error
	// determines whether they do.
	Sticky *bool `json:"sticky,omitempty"`
	// DriverMismatch and FabricNotReady select the profiles that have no XID.
	DriverMismatch bool `json:"driverMismatch,omitempty"`
	FabricNotReady bool `json:"fabricNotReady,omitempty"`

	Latency time.Duration `json:"latency,omitempty"`
	Jitter  time.Duration `json:"jitter,omitempty"` // maximum random addition to Latency
	Hang    bool          `json:"hang,omitempty"`   // synchronizing calls and copies do not return until the fault ends
	// MemLimit is the apparent memory size of each device in bytes; 0 means the real size.
	MemLimit    uint64  `json:"memLimit,omitempty"`
	HideDevices []int   `json:"hideDevices,omitempty"` // CUDA ordinals, or AllDevices
	CorruptD2H  float64 `json:"corruptD2H,omitempty"`  // probability that a copy from a device has a flipped bit

	Trigger
	Scope

	Layer Layer `json:"layer,omitempty"` // "" means LayerDriver
	Quiet bool  `json:"quiet,omitempty"` // do not write a line to the stderr of the processes
}

// Trigger selects the calls that trip the fault. The zero value selects every counted call.
type Trigger struct {
	Function    string        `json:"function,omitempty"` // glob: only calls of these functions count
	AfterCalls  uint64        `json:"afterCalls,omitempty"`
	After       time.Duration `json:"after,omitempty"`
	Every       uint64        `json:"every,omitempty"`
	Probability float64       `json:"probability,omitempty"`
	Seed        uint64        `json:"seed,omitempty"`
	WindowFrom  time.Duration `json:"windowFrom,omitempty"` // since arming
	WindowTo    time.Duration `json:"windowTo,omitempty"`   // 0 means no end
	Max         uint64        `json:"max,omitempty"`
}

// Scope limits the fault to certain processes and nodes. The zero value has no limits.
type Scope struct {
	Devices []int    `json:"devices,omitempty"` // CUDA ordinals in the process, without hidden devices
	Rank    *int     `json:"rank,omitempty"`
	Process string   `json:"process,omitempty"` // glob for the name of the program, the process or the script
	Nodes   []string `json:"nodes,omitempty"`   // names, at most 64
}

// Layer is the API that the shim intercepts.
type Layer string

// The layers.
const (
	LayerDriver  Layer = "driver"  // used by every CUDA program
	LayerRuntime Layer = "runtime" // only calls to a dynamic CUDA runtime, for comparison
)

// AllDevices returns all device ordinals that a fault can specify.
func AllDevices() []int {
	all := make([]int, maxDevices)
	for i := range all {
		all[i] = i
	}
	return all
}

// effect is the result of resolving a fault: the error codes and the calls that they affect.
type effect struct {
	name                         string // for the summary
	running, fallback, minDriver int
	sticky                       bool
	surface                      Surface
	classes                      Class // calls that count if no function is set
	counted                      Class // classes of the calls that actually count
	fresh, nvml, nvmlInit        int   // for processes that start after the fault tripped
	nvmlXID, nvmlECC             int   // XID of an NVML event, and number of ECC errors
	nvmlRows                     Rows
	latency, jitter              time.Duration
	latencyClasses               Class
	hang                         Class
}

// The default classes of calls for the effects that return no error: latency and hang.
const (
	latencyDefault = ClassCopy | ClassLaunch | ClassSync
	// hangDefault excludes ClassQuery, because queries of a hung GPU return "not ready", on which watchdogs rely.
	hangDefault = ClassCopy | ClassSync
)

// effect resolves the profile and its overrides. The fault must be valid.
func (f Fault) effect() effect {
	var e effect
	if named := f.profileName(); named != "" {
		p, _ := NamedProfile(named)
		e = effect{
			name: named, running: p.Running, fallback: p.Fallback, minDriver: p.MinDriver, sticky: p.Sticky,
			surface: p.Surface, classes: p.Classes,
			fresh: p.New, nvml: p.NVML, nvmlInit: p.NVMLInit, latency: p.Latency, latencyClasses: p.LatencyClasses,
			hang: p.HangClasses, nvmlECC: p.NVMLECC, nvmlRows: p.NVMLRows,
		}
		if p.NVMLEvent {
			e.nvmlXID = p.XID
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
			e.surface = SurfaceCall // the user selected this function to fail
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
		e.classes |= ClassDevice // the runtime has no cuInit; its first calls enumerate devices
	}
	e.counted = e.classes
	if f.Function != "" {
		f.narrow(&e)
	}
	return e
}

// profileName returns the name of the fault's profile, or "" for none.
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

// overrideNew applies the fault's overrides for new processes.
func (f Fault) overrideNew(e *effect) {
	if f.PhaseNew != nil {
		e.fresh = *f.PhaseNew
	}
	if f.NVML != nil {
		e.nvml, e.nvmlInit = *f.NVML, 0
		if *f.NVML == 0 {
			e.nvmlXID, e.nvmlECC, e.nvmlRows = 0, 0, 0 // NVML notices nothing
		}
		if code, _ := findNVML(*f.NVML); code.init {
			e.nvml, e.nvmlInit = 0, *f.NVML
		}
	}
	if len(f.HideDevices) == maxDevices && e.fresh == 0 {
		e.fresh = codeNoDevice // as from a driver without devices, which never returns a count of 0
	}
	if f.layer() == LayerRuntime {
		// The runtime layer does not include NVML or cuInit.
		e.nvml, e.nvmlInit, e.nvmlXID, e.nvmlECC, e.nvmlRows = 0, 0, 0, 0, 0
	}
}

// codeNoDevice is CUDA_ERROR_NO_DEVICE.
const codeNoDevice = 100

// narrow limits latency and hang to the classes of the functions that match the glob.
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

// State returns the state that arms the shim for a run that begins at armedAt and ends at expires. If expires is zero,
// the run has no end.
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
		NVMLInitError: e.nvmlInit, NVMLXID: e.nvmlXID, NVMLECC: e.nvmlECC, NVMLRows: e.nvmlRows,
		Latency: e.latency, Jitter: e.jitter, LatencyClasses: e.latencyClasses, HangClasses: e.hang,
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
	_, err := s.Encode() // detects values that do not fit
	return s, err
}
