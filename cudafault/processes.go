package cudafault

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Processes is the content of the file in which the shims of a pod report their status.
type Processes struct {
	// TrippedGeneration is the generation in which the fault last tripped in the pod, or 0 if it never did.
	TrippedGeneration uint64    `json:"trippedGeneration,omitempty"`
	TrippedAt         time.Time `json:"trippedAt,omitzero"`
	// Trips is the number of trips of the processes in List.
	Trips uint64    `json:"trips"`
	List  []Process `json:"processes"`
}

// Process is a process that has loaded the shim. The entry of an exited process remains until another process needs the
// slot.
type Process struct {
	PID int `json:"pid"` // in the process's own PID namespace
	// Namespace is the inode of the PID namespace. The containers of a pod share the file, but not the PID namespace.
	Namespace uint64    `json:"pidNamespace,omitempty"`
	Name      string    `json:"name"`
	Driver    int       `json:"driver,omitempty"` // cuDriverGetVersion, such as 12080 for CUDA 12.8; 0 if unknown
	Started   time.Time `json:"started,omitzero"`
	// Looked is when the process last checked the state. The process checks the state during its driver calls, at most
	// four times per second, and updates Looked at least once per second.
	Looked     time.Time `json:"looked,omitzero"`
	Generation uint64    `json:"generation,omitempty"` // generation of the last state that was read
	Status     Status    `json:"status"`
	Paths      Paths     `json:"paths"`
	Hooks      int       `json:"hooks"`               // number of hooked functions
	LastError  int       `json:"lastError,omitempty"` // CUresult, or nvmlReturn_t if Function is of NVML
	Calls      uint64    `json:"calls"`               // approximate number of counted calls
	Trips      uint64    `json:"trips"`
	TrippedAt  time.Time `json:"trippedAt,omitzero"`
	Function   string    `json:"function,omitempty"` // function that tripped last
}

// Status is the fault status of a process.
type Status int

// The statuses, as in struct gf_slot in shim/state.h.
const (
	StatusPassing      Status = iota + 1 // disarmed
	StatusArmed                          // not tripped yet
	StatusTripped                        // tripped; calls pass through again
	StatusPoisoned                       // the context is lost; all calls fail
	StatusExpired                        // calls pass through permanently
	StatusOtherNode                      // not on this node
	StatusOtherProcess                   // not this process or rank
	StatusNoState                        // no readable state
	statusWords        = "unknown passing armed tripped poisoned expired other-node other-process no-state"
)

// String returns the status as one word: armed, tripped, poisoned, ...
func (s Status) String() string {
	words := strings.Fields(statusWords)
	if s < 0 || int(s) >= len(words) {
		s = 0
	}
	return words[s]
}

// MarshalText returns the status word, for use in JSON.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Paths are the ways in which a process obtained the driver's functions.
type Paths uint32

// The paths, as bits.
const (
	PathLinked      Paths = 1 << iota // linked with the library
	PathDlsym                         // dlsym
	PathProcAddress                   // cuGetProcAddress
	PathAudit                         // the dynamic linker's audit interface
	PathNVML                          // NVML
	PathRuntime                       // the CUDA runtime's own functions
	pathWords       = "linked dlsym cuGetProcAddress audit nvml runtime"
)

// String returns the paths, such as "dlsym,cuGetProcAddress", or "none".
func (p Paths) String() string {
	var words []string
	for i, word := range strings.Fields(pathWords) {
		if p&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ",")
}

// MarshalText returns the result of String for JSON.
func (p Paths) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// The process file has a header and a fixed number of slots, as in struct gf_run in shim/state.h.
const (
	ProcessesSize    = headerSize + slots*slotSize // in bytes
	processesMagic   = "GPUFRUN1"
	processesVersion = 1
	headerSize       = 128
	slotSize         = 256
	slots            = 63
)

// DecodeProcesses parses the process file. A new file contains only zeros. Processes write to the file while it is
// read, so a field may be more recent than the field before it.
func DecodeProcesses(data []byte) (Processes, error) {
	if len(data) != ProcessesSize {
		return Processes{}, fmt.Errorf("process file: %d bytes, expected %d", len(data), ProcessesSize)
	}
	r := reader{buf: data}
	magic := string(data[:8])
	if magic == strings.Repeat("\x00", 8) {
		return Processes{}, nil
	}
	if magic != processesMagic {
		return Processes{}, errors.New("process file: it does not begin with " + processesMagic)
	}
	if v, n := r.u32(span{8, 4}), r.u32(span{12, 4}); v != processesVersion || n != slots {
		return Processes{}, fmt.Errorf("process file: version %d with %s, but this program supports version %d with %d",
			v, count.Of(n, "place"), processesVersion, slots)
	}
	all := Processes{TrippedGeneration: r.u64(span{16, 8}), TrippedAt: r.time(span{24, 8})}
	for i := range slots {
		at := headerSize + i*slotSize
		if p := process(reader{buf: data[at : at+slotSize]}); p.PID > 0 {
			all.List = append(all.List, p)
			all.Trips += p.Trips
		}
	}
	return all, nil
}

func process(r reader) Process {
	return Process{
		PID: int(int32(r.u32(span{0, 4}))), Driver: r.code(span{4, 4}), Started: r.time(span{8, 8}),
		Looked:     r.time(span{16, 8}),
		Generation: r.u64(span{24, 8}), Status: Status(r.code(span{32, 4})), Paths: Paths(r.u32(span{36, 4})),
		Namespace: r.u64(span{72, 8}), Hooks: r.code(span{40, 4}), LastError: r.code(span{44, 4}),
		Calls: r.u64(span{48, 8}), Trips: r.u64(span{56, 8}),
		TrippedAt: r.time(span{64, 8}), Name: r.text(span{80, 48}), Function: r.text(span{128, 64}),
	}
}

// DecodeReport parses the output of the shim when it runs as a program: the state file and the process file, each
// preceded by its length. The result is nil for a missing file. If one file is invalid, DecodeReport returns an error
// and the other file.
func DecodeReport(stdout []byte) (*State, *Processes, error) {
	stateFile, rest, err := cutFile(stdout)
	if err != nil {
		return nil, nil, fmt.Errorf("the shim's report, state file: %w", err)
	}
	processesFile, rest, err := cutFile(rest)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes too many", len(rest))
	}
	var faults []error
	if err != nil {
		faults, processesFile = append(faults, fmt.Errorf("the shim's report, process file: %w", err)), nil
	}
	var state *State
	if len(stateFile) > 0 {
		if s, err := DecodeState(stateFile); err != nil {
			faults = append(faults, err)
		} else {
			state = &s
		}
	}
	var processes *Processes
	if len(processesFile) > 0 {
		if p, err := DecodeProcesses(processesFile); err != nil {
			faults = append(faults, err)
		} else {
			processes = &p
		}
	}
	return state, processes, errors.Join(faults...)
}

// cutFile splits the first file off a report.
func cutFile(report []byte) (file, rest []byte, err error) {
	if len(report) < 4 {
		return nil, nil, fmt.Errorf("truncated after %d bytes, before the length", len(report))
	}
	length, report := uint64(binary.LittleEndian.Uint32(report)), report[4:]
	if length > uint64(len(report)) {
		return nil, nil, fmt.Errorf("truncated after %d of %d bytes", len(report), length)
	}
	return report[:length], report[length:], nil
}
