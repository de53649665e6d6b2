package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// texts is how cudart names codes, as cudaGetErrorString of 11.2 to 12.4 has it. It does not know those above what
// there was when it was made.
var texts = []struct {
	code int
	text string
}{
	{2, "out of memory"}, {100, "no CUDA-capable device is detected"}, {101, "invalid device ordinal"},
	{214, "uncorrectable ECC error encountered"},
	{220, "uncorrectable NVLink error detected during the execution"}, {226, "unrecognized error code"},
	{700, "an illegal memory access was encountered"}, {719, "unspecified launch failure"},
	{721, "unrecognized error code"},
	{802, "system not yet initialized"}, {803, "system has unsupported display driver / cuda driver combination"},
	{804, "forward compatibility was attempted on non supported HW"}, {999, "unknown error"},
	{12345, "unrecognized error code"},
}

// runtime starts a dynamic cudart: the same calls and look-ups with and without the shim, and each error of cuInit
// unchanged, with its text.
func (r *release) runtime(file string) error {
	name := strings.TrimPrefix(filepath.Base(file), "libcudart.so.")
	library := "cudart " + name
	bare, err := r.try("", nil, "", "runtime", file)
	if err != nil {
		return err
	}
	start, _, _ := strings.Cut(bare.stdout, "\n")
	r.see(library, "start-up on "+r.driver, "cudaGetDeviceCount 100", start)
	for _, c := range idle {
		ours, err := r.try(r.shim, c.state, "", "runtime", file)
		if err != nil {
			return err
		}
		r.see(library, "its first calls, "+c.what, "as without the shim", same(bare, ours))
	}
	if err := r.recorded(library, file); err != nil {
		return err
	}
	exact, wrong := 0, ""
	for _, t := range texts {
		state := cudafault.State{ErrorInit: t.code, Flags: cudafault.FlagQuiet}
		got, err := r.try(r.shim, &state, "", "runtime", file)
		if err != nil {
			return err
		}
		code := strconv.Itoa(t.code)
		wanted := []string{"cudaGetDeviceCount " + code, "text " + t.text, "peek " + code, "last " + code,
			"last again " + code,
			"cudaGetDeviceCount again " + code, "cudaSetDevice " + code, "cudaMalloc " + code}
		lines := strings.Split(got.stdout, "\n")
		ok := got.code == 0 && len(lines) > 9
		for i, line := range wanted {
			at := i // the second line is the error's name, of which there is none for a code that cudart does not know
			if i > 0 {
				at++
			}
			ok = ok && lines[at] == line
		}
		if ok {
			exact++
		} else {
			wrong += fmt.Sprintf(", %d: %s", t.code, got)
		}
	}
	r.see(library, "armed: cuInit = 2, 100, ... 999, 12345: code and text", fmt.Sprintf("%d of %[1]d", len(texts)),
		fmt.Sprintf("%d of %d%s", exact, len(texts), wrong))
	return nil
}

// idle is how the shim is there without a fault.
var idle = []struct {
	what  string
	state *cudafault.State
}{{"shim without a state", nil}, {"shim disarmed", &cudafault.State{}}}

func same(bare, ours result) string {
	if bare == ours {
		return "as without the shim"
	}
	return ours.String()
}

// recorded compares what the runtime asks the driver for, and gets, with and without the shim, and with what is on
// record. Runtimes before cuGetProcAddress (11.3) ask dlsym, which is not recorded.
func (r *release) recorded(library, file string) error {
	version := strings.Join(strings.Split(strings.TrimPrefix(library, "cudart "), ".")[:2], ".")
	list, err := os.ReadFile(filepath.Join(r.lookups, "cudart-"+version+".tsv"))
	if os.IsNotExist(err) {
		return nil
	} else if err != nil {
		return err
	}
	bare, err := r.record(file, "")
	if err != nil {
		return err
	}
	ours, err := r.record(file, r.shim)
	if err != nil {
		return err
	}
	routed, wrong, first := r.compare(bare, ours)
	r.see(library, fmt.Sprintf("%d look-ups at start-up, %d of our functions", len(bare), routed), "0 answers wrong",
		strings.TrimSpace(fmt.Sprintf("%d answers wrong %s", wrong, first)))

	asked := map[string]bool{}
	for _, line := range bare {
		question, _, _ := strings.Cut(line, "\t")
		asked[question] = true
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		if cells := strings.Split(strings.TrimSpace(line), "\t"); len(cells) >= 3 && !strings.HasPrefix(line, "#") {
			known[strings.Join(cells[:3], " ")] = true
		}
	}
	missing := 0
	for question := range asked {
		if !known[question] {
			missing++
		}
	}
	r.see(library, "look-ups, and how many are not on record", fmt.Sprintf("%d, 0", len(known)),
		fmt.Sprintf("%d, %d", len(asked), missing))
	return nil
}

// record returns the look-ups of one start, in their order: recorder.c.
func (r *release) record(file, shim string) ([]string, error) {
	env, err := r.preload(shim, nil)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(r.work, "record-")
	if err != nil {
		return nil, err
	}
	log := filepath.Join(dir, "log")
	env = append(env, "RECORD="+log, "REAL_DRIVER="+filepath.Join(r.libraries, "libcuda.so.1"),
		"LD_LIBRARY_PATH="+filepath.Join(r.bin, "recorder"))
	if _, err := (program{line: []string{filepath.Join(r.bin, "runtime"), file}, env: env}).start(); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n"), nil
}
