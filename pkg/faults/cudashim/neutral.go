package cudashim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
)

// Strings in the shim (cudafault/shim: shim.h, state.h, look.c, run.c, trigger.c) that reveal its purpose, and their
// replacements in an exercise. Each string ends with a zero byte in the file, and no replacement is longer than the
// original.
const (
	fileState  = LibraryDir + "/" + StateKey // GF_STATE_PATH
	fileRun    = RunDir + "/processes"       // GF_RUN_PATH
	magicState = "GPUFAULT"
	magicLab   = "GPULAYER"
)

// neutralLibrary returns the library with the directories of an exercise and without the strings that reveal its
// purpose, so that even strings(1) does not reveal the answer.
func (s Shim) neutralLibrary(library []byte) ([]byte, error) {
	library = bytes.Clone(library)
	for _, name := range []struct {
		old, now string
		whole    bool // whether the string occurs once, followed by a zero byte
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
			return nil, fmt.Errorf("unsupported version of the shim: it contains %q %d times", name.old, n)
		}
		library = bytes.ReplaceAll(library, old, now)
	}
	return library, nil
}

// Offsets of the checksum and the run ID in a state file (cudafault/shim/state.h, struct gf_state).
const (
	stateSize  = 1024
	stateSum   = 16
	stateRun   = 48
	stateRunTo = 80
)

// neutralState returns the state file for a neutral library: with a different magic number, and without the run ID.
func neutralState(state []byte) ([]byte, error) {
	if len(state) != stateSize || !bytes.HasPrefix(state, []byte(magicState)) ||
		binary.LittleEndian.Uint64(state[stateSum:]) != sumState(state) {
		return nil, errors.New("unsupported version of the state file")
	}
	state = bytes.Clone(state)
	copy(state, magicLab)
	clear(state[stateRun:stateRunTo])
	binary.LittleEndian.PutUint64(state[stateSum:], sumState(state))
	return state, nil
}

// sumState returns the FNV-1a hash of a state file with a zero checksum field.
func sumState(state []byte) uint64 {
	state = bytes.Clone(state)
	clear(state[stateSum : stateSum+8])
	sum := fnv.New64a()
	_, _ = sum.Write(state) // never fails
	return sum.Sum64()
}
