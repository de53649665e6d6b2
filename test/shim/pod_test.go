//go:build shim

package shim

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// pod is what a container sees of us: the two files, and the environment.
type pod struct {
	t     *testing.T
	on    platform
	state string // the state file's path
	run   string // the file of processes
	env   map[string]string
}

// newPod returns one without a state file, on this machine's glibc.
func newPod(t *testing.T) *pod {
	t.Helper()
	return newPodOn(t, x86)
}

func newPodOn(t *testing.T, on platform) *pod {
	t.Helper()
	real, isReal := os.LookupEnv(realDriver)
	if isReal && on.name != x86.name {
		t.Skip("the machine with the GPU is an x86_64 one")
	}
	dir := folder(t)
	p := &pod{
		t: t, on: on, state: filepath.Join(dir, "state"), run: filepath.Join(dir, "processes"),
		env: map[string]string{},
	}
	p.env["LD_LIBRARY_PATH"] = on.bin(t)
	if isReal {
		p.env["LD_LIBRARY_PATH"], p.env["CUDA_CACHE_DISABLE"] = real, "1"
	}
	p.env["GPU_FAULT_STATE"] = p.state
	p.env["GPU_FAULT_RUN"] = p.run
	p.env["GPU_FAULT_NODE"] = "node-a"
	return p
}

// realDriver names the variable with the folder of a real libcuda.so.1 and libnvidia-ml.so.1, with which test/gpu/run
// runs these tests; empty where the loader finds them by itself.
const realDriver = "REAL_DRIVER"

// fake sets a variable of the fake driver. A real one cannot be told to have two GPUs.
func (p *pod) fake(key, value string) {
	p.t.Helper()
	if _, ok := os.LookupEnv(realDriver); ok {
		p.t.Skip("only the fake driver does " + key + "=" + value)
	}
	p.env[key] = value
}

// folder returns a temporary one whose name has no comma, unlike some tests': qemu's -E would take it for a separator.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shim-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

var generations atomic.Uint64

// arm writes the state as the kubelet does: complete, in one step. What the test leaves open is armed now, for all.
func (p *pod) arm(s cudafault.State) cudafault.State {
	p.t.Helper()
	if s.Generation == 0 {
		s.Generation = generations.Add(1)
	}
	if s.ArmedAt.IsZero() {
		s.ArmedAt = time.Now().Add(-time.Millisecond)
	}
	if s.Run == "" {
		s.Run = "test-run"
	}
	data, err := s.Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(data)
	return s
}

// all returns a state that holds for every rank: State's zero rank is rank 0.
func all(s cudafault.State) cudafault.State {
	s.Rank = cudafault.AllRanks
	return s
}

func (p *pod) disarm() {
	p.t.Helper()
	data, err := all(cudafault.State{Run: "test-run", Generation: generations.Add(1)}).Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(data)
}

func (p *pod) write(data []byte) {
	p.t.Helper()
	if err := os.WriteFile(p.state+".new", data, 0o444); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(p.state+".new", p.state); err != nil {
		p.t.Fatal(err)
	}
}

// processes returns what the shims report.
func (p *pod) processes() cudafault.Processes {
	p.t.Helper()
	data, err := os.ReadFile(p.run)
	if err != nil {
		p.t.Fatal(err)
	}
	all, err := cudafault.DecodeProcesses(data)
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

// process returns the one with that process ID.
func (p *pod) process(pid int) cudafault.Process {
	p.t.Helper()
	list := p.processes().List
	i := slices.IndexFunc(list, func(one cudafault.Process) bool { return one.PID == pid })
	if i < 0 {
		p.t.Fatalf("process %d is not among %+v", pid, list)
	}
	return list[i]
}

// command returns a program in the pod. LD_PRELOAD and the like must reach it, and not the emulator.
func (p *pod) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=/"}
	var line []string
	if len(p.on.runner) > 0 {
		line = slices.Clone(p.on.runner)
		for _, key := range slices.Sorted(maps.Keys(p.env)) {
			line = append(line, "-E", key+"="+p.env[key])
			// /proc/self/environ is the emulator's.
			if strings.HasPrefix(key, "GPU_FAULT_") {
				env = append(env, key+"="+p.env[key])
			}
		}
	} else {
		for key, value := range p.env {
			env = append(env, key+"="+value)
		}
	}
	line = append(append(line, name), args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = env
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// program returns the path of a probe.
func (p *pod) program(name string) string { return filepath.Join(p.on.bin(p.t), name) }

// result is how a program ended.
type result struct {
	code           int
	stdout, stderr string
}

// run lets a program end by itself. A program that hangs is killed and fails the test.
func (p *pod) runProgram(name string, args ...string) result {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := p.command(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatalf("%s %s: %v\n%s", name, args, err, stderr.String())
	}
	if ctx.Err() != nil {
		p.t.Errorf("%s %s hung", name, args)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}
