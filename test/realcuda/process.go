package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// bench is where things lie, and what was seen so far.
type bench struct {
	bin, shim, lib, lookups, libcRoot, work string

	rows       []row
	former     *release // the last one with a driver
	generation uint64
}

// limit is for how long a program may run. A driver that mishandles a look-up makes a runtime wait for ever.
const limit = time.Minute

// result is how a program ended.
type result struct {
	code           int
	stdout, stderr string
}

// String returns what of a result fits into a table.
func (r result) String() string {
	text := strings.TrimSpace(r.stdout)
	if r.code != 0 {
		text = strings.TrimSpace(fmt.Sprintf("exit %d: %s %s", r.code, text, strings.TrimSpace(r.stderr)))
	}
	return text
}

// program is one to run with some environment, and nothing else of ours.
type program struct {
	line  []string
	env   []string // NAME=VALUE
	stdin string
	emu   bool // line[0] is qemu-user
}

// start runs it to its end. Only what kept it from running is an error, and that it did not end.
func (p program) start() (result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	line, env := p.line, []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "LC_ALL=C"}
	if p.emu {
		line = []string{p.line[0]}
	}
	for _, one := range p.env {
		// Only the loader's variables must not reach the emulator itself. All others have to: /proc/self/environ is the
		// emulator's.
		if p.emu && strings.HasPrefix(one, "LD_") {
			line = append(line, "-E", one)
		} else {
			env = append(env, one)
		}
	}
	if p.emu {
		line = append(line, p.line[1:]...)
	}
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = env, strings.NewReader(p.stdin), &stdout, &stderr,
		5*time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return result{}, fmt.Errorf("%s did not end within %s", strings.Join(p.line, " "), limit)
	case err != nil && !errors.As(err, &exit):
		return result{}, err
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}, nil
}

// preload returns the environment that puts the shim before a program: with a state, or with none at all where it is
// nil. "" is no shim.
func (b *bench) preload(shim string, state *cudafault.State) ([]string, error) {
	if shim == "" {
		return nil, nil
	}
	dir, err := os.MkdirTemp(b.work, "pod-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "state")
	if state != nil {
		b.generation++
		s := *state
		s.Run, s.Rank, s.Generation, s.ArmedAt = "real-libraries", cudafault.AllRanks, b.generation,
			time.Now().Add(-time.Second)
		data, err := s.Encode()
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, data, 0o444); err != nil {
			return nil, err
		}
	}
	return []string{
		"LD_PRELOAD=" + shim, "GPU_FAULT_STATE=" + file, "GPU_FAULT_RUN=" + filepath.Join(dir, "processes"),
	}, nil
}

// one returns the only file of a pattern; "" where there is none.
func one(pattern ...string) string {
	found, _ := filepath.Glob(filepath.Join(pattern...)) // the patterns are ours and well formed
	if len(found) == 0 {
		return ""
	}
	return found[0]
}
