package cudafault

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"time"
)

// StateSize is the size of the state file in bytes.
const StateSize = 1024

// The magic string of the file, and the size limits of its lists and strings.
const (
	stateMagic   = "GPUFAULT"
	stateVersion = 1
	maxNodes     = 64
	maxDevices   = 64
)

// span is the offset and the length of a field in bytes.
type span struct{ at, size int }

// The fields, as in struct gf_state in shim/state.h. The rest of the file is zero.
var ( // variables, because Go has no struct constants; never modified
	atMagic, atVersion, atSize, atChecksum  = span{0, 8}, span{8, 4}, span{12, 4}, span{16, 8}
	atGeneration, atArmed, atExpires, atRun = span{24, 8}, span{32, 8}, span{40, 8}, span{48, 32}
	atProcess, atRank                       = span{80, 64}, span{144, 4}
	atNodeCount, atDevices, atNodes         = span{148, 4}, span{152, 8}, span{160, 8 * maxNodes}
	atFunction, atClasses, atSurface        = span{672, 64}, span{736, 4}, span{740, 4}
	atAfterCalls, atEvery, atProbability    = span{744, 8}, span{752, 8}, span{760, 4}
	atFlags, atSeed, atMax, atAfter         = span{764, 4}, span{768, 8}, span{776, 8}, span{784, 8}
	atWindowFrom, atWindowTo                = span{792, 8}, span{800, 8}
	atError, atErrorInit, atNVMLError       = span{808, 4}, span{812, 4}, span{816, 4}
	atFallback, atMinDriver                 = span{820, 4}, span{824, 4}
	atLatency, atJitter, atLatencyClasses   = span{828, 4}, span{832, 4}, span{836, 4}
	atMemLimit, atHide, atCorrupt           = span{840, 8}, span{848, 8}, span{856, 4}
	atHang, atNVMLInit                      = span{860, 4}, span{864, 4}
	atNVMLXID, atNVMLECC, atNVMLRows        = span{868, 4}, span{872, 4}, span{876, 4}
)

// Encode returns the content of the state file. It returns an error for values that the file cannot hold: strings that
// are too long, more than 64 nodes, devices outside 0 to 63, numbers that are negative or NaN, and times that are not
// whole milliseconds (microseconds for latency).
func (s State) Encode() ([]byte, error) {
	w := writer{buf: make([]byte, StateSize)}
	copy(w.buf, stateMagic)
	w.u32(atVersion, stateVersion)
	w.u32(atSize, StateSize)
	w.u64(atGeneration, s.Generation)
	w.time(atArmed, "armed", s.ArmedAt)
	w.time(atExpires, "expires", s.Expires)
	w.text(atRun, "run", s.Run)
	w.text(atProcess, "process", s.Process)
	if s.Rank < AllRanks || s.Rank > math.MaxInt32 {
		w.fail("rank %d is not %d (all) to %d", s.Rank, AllRanks, math.MaxInt32)
	}
	w.u32(atRank, uint32(int32(s.Rank)))
	w.nodes(s.Nodes)
	w.u64(atDevices, w.mask("device", s.Devices))
	w.text(atFunction, "function", s.Function)
	w.classes(atClasses, s.Classes)
	if s.Surface > SurfaceSync {
		w.fail("invalid surface %d: must be the call itself or the next synchronizing call", s.Surface)
	}
	w.u32(atSurface, uint32(s.Surface))
	w.u64(atAfterCalls, s.AfterCalls)
	w.u64(atEvery, s.Every)
	w.share("probability", s.Probability)
	w.u32(atProbability, probabilityBits(s.Probability))
	if s.Flags > allFlags {
		w.fail("unknown flags: %#x", uint32(s.Flags))
	}
	w.u32(atFlags, uint32(s.Flags))
	w.u64(atSeed, s.Seed)
	w.u64(atMax, s.Max)
	w.u64(atAfter, w.count("after", s.After, time.Millisecond, math.MaxInt64))
	w.u64(atWindowFrom, w.count("begin of the window", s.WindowFrom, time.Millisecond, math.MaxInt64))
	w.u64(atWindowTo, w.count("end of the window", s.WindowTo, time.Millisecond, math.MaxInt64))
	w.code(atError, "error", s.Error)
	w.code(atErrorInit, "error of cuInit", s.ErrorInit)
	w.code(atNVMLError, "NVML error", s.NVMLError)
	w.code(atFallback, "fallback error", s.ErrorFallback)
	w.code(atMinDriver, "driver version", s.ErrorMinDriver)
	w.u32(atLatency, uint32(w.count("latency", s.Latency, time.Microsecond, math.MaxUint32)))
	w.u32(atJitter, uint32(w.count("jitter", s.Jitter, time.Microsecond, math.MaxUint32)))
	w.classes(atLatencyClasses, s.LatencyClasses)
	w.u64(atMemLimit, s.MemLimit)
	w.u64(atHide, w.mask("hidden device", s.Hide))
	w.share("corruption rate", s.Corrupt)
	w.u32(atCorrupt, shareBits(s.Corrupt))
	w.classes(atHang, s.HangClasses)
	w.code(atNVMLInit, "error of nvmlInit", s.NVMLInitError)
	w.code(atNVMLXID, "XID of the NVML event", s.NVMLXID)
	w.code(atNVMLECC, "number of ECC errors", s.NVMLECC)
	if s.NVMLRows > allRows {
		w.fail("unknown rows: %#x", uint32(s.NVMLRows))
	}
	w.u32(atNVMLRows, uint32(s.NVMLRows))
	if w.err != nil {
		return nil, fmt.Errorf("state for the shim: %w", w.err)
	}
	w.u64(atChecksum, checksum(w.buf))
	return w.buf, nil
}

// DecodeState parses a state file. It is stricter than the shim: if it accepts a file, encoding the result returns the
// same bytes.
func DecodeState(data []byte) (State, error) {
	if err := checkState(data); err != nil {
		return State{}, fmt.Errorf("state file: %w", err)
	}
	r := reader{buf: data}
	s := State{
		Generation: r.u64(atGeneration), ArmedAt: r.time(atArmed), Expires: r.time(atExpires), Run: r.text(atRun),
		Process: r.text(atProcess), Rank: int(int32(r.u32(atRank))), Devices: r.mask(atDevices),
		Function: r.text(atFunction), Classes: Class(r.u32(atClasses)), Surface: Surface(r.u32(atSurface)),
		AfterCalls: r.u64(atAfterCalls), Every: r.u64(atEvery), Seed: r.u64(atSeed), Max: r.u64(atMax),
		Probability: float64(r.u32(atProbability)) / (1 << 32), After: r.duration(atAfter, time.Millisecond),
		WindowFrom: r.duration(atWindowFrom, time.Millisecond), WindowTo: r.duration(atWindowTo, time.Millisecond),
		Flags: Flags(r.u32(atFlags)), Error: r.code(atError), ErrorFallback: r.code(atFallback),
		ErrorMinDriver: r.code(atMinDriver),
		ErrorInit:      r.code(atErrorInit), NVMLError: r.code(atNVMLError), NVMLInitError: r.code(atNVMLInit),
		NVMLXID: r.code(atNVMLXID), NVMLECC: r.code(atNVMLECC), NVMLRows: Rows(r.u32(atNVMLRows)),
		Latency: r.duration(atLatency, time.Microsecond), Jitter: r.duration(atJitter, time.Microsecond),
		LatencyClasses: Class(r.u32(atLatencyClasses)),
		HangClasses:    Class(r.u32(atHang)), MemLimit: r.u64(atMemLimit), Hide: r.mask(atHide),
		Corrupt: float64(r.u32(atCorrupt)) / (1 << 32),
	}
	count := r.u32(atNodeCount)
	if count > maxNodes {
		return State{}, fmt.Errorf("state file: too many nodes: %d, but the maximum is %d", count, maxNodes)
	}
	for i := range int(count) {
		s.Nodes = append(s.Nodes, fmt.Sprintf("#%016x", r.u64(span{atNodes.at + 8*i, 8})))
	}
	again, err := s.Encode()
	if err != nil {
		return State{}, fmt.Errorf("state file: %w", errors.Unwrap(err))
	}
	if at := firstDifference(again, data); at >= 0 {
		return State{}, fmt.Errorf("state file: it differs from what this version would write, from byte %d on", at)
	}
	return s, nil
}

// checkState performs the same checks as the shim.
func checkState(data []byte) error {
	if len(data) != StateSize {
		return fmt.Errorf("%d bytes, want %d", len(data), StateSize)
	}
	r := reader{buf: data}
	switch {
	case string(data[:atMagic.size]) != stateMagic:
		return errors.New("it does not begin with " + stateMagic)
	case r.u32(atVersion) != stateVersion:
		return fmt.Errorf("version %d, but this program supports %d", r.u32(atVersion), stateVersion)
	case r.u32(atSize) != StateSize:
		return fmt.Errorf("its header specifies a size of %d bytes", r.u32(atSize))
	case r.u64(atChecksum) != checksum(data):
		return errors.New("the checksum is wrong: the file was truncated or changed")
	}
	return nil
}

// checksum returns the FNV-1a hash of the file, with zeros in the checksum field.
func checksum(data []byte) uint64 {
	h := fnv.New64a()
	h.Write(data[:atChecksum.at])
	h.Write(make([]byte, atChecksum.size))
	h.Write(data[atChecksum.at+atChecksum.size:])
	return h.Sum64()
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
