package cudashim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
)

// The names in the shim (cudafault/shim: shim.h, state.h, look.c, run.c, trigger.c) that tell what it is, and what
// stands for them in a lab. They are texts that end with a zero byte, each is in the file as it is here, and what takes
// its place is no longer.
const (
	fileState  = LibraryDir + "/" + StateKey // GF_STATE_PATH
	fileRun    = RunDir + "/processes"       // GF_RUN_PATH
	magicState = "GPUFAULT"
	magicLab   = "GPULAYER"
)

// neutralLibrary returns the library with the folders of a lab in it, and without the names that tell what it is: who
// looks at its strings must not find the answer either.
func (s Shim) neutralLibrary(library []byte) ([]byte, error) {
	library = bytes.Clone(library)
	for _, name := range []struct {
		old, now string
		whole    bool // once in the file, with the zero byte behind it
	}{
		{fileState, s.Dir + "/" + StateKey, true},
		{fileRun, s.RunDir + "/processes", true},
		{magicState, magicLab, true},
		{NodeVar, shimNodeVar, true},
		{"GPU_FAULT_", "GPU_LAYER_", false},
		{"gpu-fault: ", "gpu-layer: ", false},
	} {
		old := []byte(name.old)
		if name.whole {
			old = append(old, 0)
		}
		now := append([]byte(name.now), make([]byte, len(old)-len(name.now))...)
		if n := bytes.Count(library, old); n == 0 || name.whole && n != 1 {
			return nil, fmt.Errorf("it is no shim of this version: it has %q %d times", name.old, n)
		}
		library = bytes.ReplaceAll(library, old, now)
	}
	return library, nil
}

// Where in a state file (cudafault/shim/state.h, struct gf_state) are its checksum and the run's ID.
const (
	stateSize  = 1024
	stateSum   = 16
	stateRun   = 48
	stateRunTo = 80
)

// neutralState returns the state file for a neutral library: under another name, and without the run's ID.
func neutralState(state []byte) ([]byte, error) {
	if len(state) != stateSize || !bytes.HasPrefix(state, []byte(magicState)) ||
		binary.LittleEndian.Uint64(state[stateSum:]) != sumState(state) {
		return nil, errors.New("the state file is none of this version")
	}
	state = bytes.Clone(state)
	copy(state, magicLab)
	clear(state[stateRun:stateRunTo])
	binary.LittleEndian.PutUint64(state[stateSum:], sumState(state))
	return state, nil
}

// sumState is FNV-1a of a state file, with its checksum as zero.
func sumState(state []byte) uint64 {
	state = bytes.Clone(state)
	clear(state[stateSum : stateSum+8])
	sum := fnv.New64a()
	_, _ = sum.Write(state) // never fails
	return sum.Sum64()
}
