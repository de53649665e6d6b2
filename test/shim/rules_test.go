//go:build shim

package shim

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// sticky999 returns a state under which every call that counts fails from the first one on.
func sticky999() cudafault.State {
	return all(cudafault.State{Error: 999, Flags: cudafault.FlagSticky | cudafault.FlagQuiet, Classes: launches})
}

const launches = cudafault.ClassLaunch

// TestRules runs what other interposers got wrong. What the program prints must not change, whether the shim is armed
// or not: names that only begin like the driver's (HAMi-core#215), RTLD_NEXT, messages of dlerror, no driver at all,
// first look-ups of 64 threads at once, and an allocator that calls dlsym in the middle of malloc.
func TestRules(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		for _, test := range []struct {
			name    string
			args    []string
			after   string
			nothing bool // no driver to be found
		}{
			{name: "names that begin like the driver's", args: []string{"rules", "namesakes", "namesakes.so"}},
			{name: "look-ups", args: []string{"rules", "lookups"}},
			{name: "look-ups without a driver", args: []string{"rules", "lookups"}, nothing: true},
			{name: "weak reference without a driver", args: []string{"rules", "weak"}, nothing: true},
			{name: "first look-ups at once", args: []string{"rules", "race"}},
			{name: "allocator that calls dlsym", args: []string{"loaded", "dlsym"}, after: "allocator.so"},
			{name: "no driver", args: []string{"idle"}, nothing: true},
		} {
			t.Run(on.name+"/"+test.name, func(t *testing.T) {
				p := newPodOn(t, on)
				if test.nothing {
					delete(p.env, "LD_LIBRARY_PATH")
				}
				args := slices.Clone(test.args)
				for i, arg := range args {
					if i == 0 || strings.HasSuffix(arg, ".so") {
						args[i] = p.program(arg)
					}
				}
				var preload []string
				if test.after != "" {
					preload = []string{p.program(test.after)}
				}
				p.env["LD_PRELOAD"] = strings.Join(preload, ":")
				want := p.runProgram(args[0], args[1:]...)
				if want.code != 0 || want.stdout == "" {
					t.Fatalf("without a shim: %+v", want)
				}
				p.env["LD_PRELOAD"] = strings.Join(append([]string{on.library(t)}, preload...), ":")
				if got := p.runProgram(args[0], args[1:]...); got != want {
					t.Errorf("unarmed: %+v\nwithout a shim: %+v", got, want)
				}
				// Armed for a class that none of these programs calls.
				p.arm(all(cudafault.State{Error: 999, Classes: cudafault.ClassIPC}))
				if got := p.runProgram(args[0], args[1:]...); got != want {
					t.Errorf("armed: %+v\nwithout a shim: %+v", got, want)
				}
			})
		}
	}
}

// TestFile holds what makes one file work everywhere: no constructors (ICD loaders crashed), no library needed, no
// version of a symbol needed (a shim built on a new distribution kept containers from starting), nothing exported but
// hooks, and a size that fits a ConfigMap twice.
func TestFile(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		t.Run(on.name, func(t *testing.T) {
			path := on.library(t)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > 96<<10 {
				t.Errorf("%d bytes, want at most %d", info.Size(), 96<<10)
			}
			file, err := elf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			for _, tag := range []elf.DynTag{
				elf.DT_INIT, elf.DT_INIT_ARRAY, elf.DT_FINI, elf.DT_FINI_ARRAY, elf.DT_NEEDED, elf.DT_VERNEED,
				elf.DT_TEXTREL,
			} {
				if values, err := file.DynValue(tag); err != nil || len(values) > 0 {
					t.Errorf("it has %v: %v %v", tag, values, err)
				}
			}
			symbols, err := file.DynamicSymbols()
			if err != nil {
				t.Fatal(err)
			}
			ours := regexp.MustCompile(`^(cu[A-Z]|nvml[A-Z]|dlsym$|dlclose$|la_|f?exec|posix_spawnp?$)`)
			exported := 0
			for _, s := range symbols {
				switch {
				case elf.ST_TYPE(s.Info) == elf.STT_SECTION:
				case s.Section == elf.SHN_UNDEF:
					if elf.ST_BIND(s.Info) != elf.STB_WEAK {
						t.Errorf("it needs %s", s.Name)
					}
				case !ours.MatchString(s.Name):
					t.Errorf("it exports %s", s.Name)
				default:
					exported++
				}
			}
			if exported < 200 {
				t.Errorf("%d names are exported: that is too few", exported)
			}
			// What must never be hooked: cudart's check of the driver goes through it, and it hands out tables nobody
			// knows.
			for _, s := range symbols {
				if slices.Contains([]string{
					"cuGetExportTable", "cuDriverGetVersion", "cuModuleUnload", "cuDevicePrimaryCtxRelease_v2",
				}, s.Name) {
					t.Errorf("it hooks %s", s.Name)
				}
			}
		})
	}
}

// TestErrno protects callers that look at errno after a driver call that went well: the slow path opens files, and some
// are not there.
func TestErrno(t *testing.T) {
	p := newPod(t)
	a := p.actor()
	a.want("start", "0")
	a.want("errno launch", "0 errno 4321")
	p.env["GPU_FAULT_RUN"] = "/no/such/folder/processes"
	b := p.actor()
	b.want("start", "0")
	b.want("errno launch", "0 errno 4321")
	p.arm(sticky999())
	a.until("launch", 999)
	a.want("errno launch", "999 errno 4321")
}

// TestNullArguments calls with the pointers NULL that may be (HAMi-core#333), while the answers are altered.
func TestNullArguments(t *testing.T) {
	p := newPod(t)
	p.arm(all(cudafault.State{MemLimit: 12 << 30}))
	a := p.actor()
	a.want("start", "0")
	a.want("infonull", "0")
	if got := a.ask("info"); !strings.HasSuffix(got, fmt.Sprint(" ", 12<<30)) {
		t.Errorf("info: %s, want a total of 12 GiB", got)
	}
	// The driver's own answers to what may not be NULL, whichever of its answers the shim would alter.
	corrupt := cudafault.State{Corrupt: 0.9, Classes: cudafault.ClassCopy, Flags: cudafault.FlagQuiet}
	for _, s := range []cudafault.State{{MemLimit: 1 << 30}, {Hide: []int{1}}, corrupt} {
		p := newPod(t)
		p.fake("FAKECUDA_DEVICES", "2")
		p.disarm()
		a := p.actor()
		a.want("start", "0")
		want := a.ask("nulls")
		p.arm(all(s))
		b := p.actor()
		b.want("start", "0")
		if got := b.ask("nulls"); got != want {
			t.Errorf("%+v: %s, want %s", s, got, want)
		}
	}
}

// TestFork protects programs that fork workers, before CUDA is used (multiprocessing) and after (DataLoader): the child
// has a place of its own among the processes, counts for itself, and sees the driver's own error where it may not use
// CUDA.
func TestFork(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		t.Run(on.name, func(t *testing.T) {
			p := newPodOn(t, on)
			// Launches, and the enumeration of devices, which works without cuInit.
			p.arm(
				all(
					cudafault.State{Error: 719, Flags: cudafault.FlagQuiet, Function: "cu[DL][ea]*[tl]", AfterCalls: 5},
				),
			)
			a := p.actor()
			for range 3 {
				a.want("count", "3 0") // counted: the parent has used the shim, and not CUDA
			}
			child, answers := inChild(a, "fork start; launch 6; count")
			if answers != "0; 0*4 719*2; 719 0" { // start asks cuDeviceGet once
				t.Errorf("the child before CUDA was used: %s", answers)
			}
			if got := p.process(child); got.Trips != 3 || got.Paths == 0 {
				t.Errorf("the child reports %+v, want 3 trips", got)
			}
			a.want("start", "0")
			a.want("launch 3", "0*1 719*2")
			// The driver refuses a child of a process that has initialised it: 3, not initialized.
			if _, answers := inChild(a, "fork init"); answers != "3*1" {
				t.Errorf("the child after CUDA was used: %s", answers)
			}
			if got := p.process(a.pid).Trips; got != 2 {
				t.Errorf("the parent reports %d trips, want 2", got)
			}
		})
	}
}

// inChild takes the process ID off the answer of a forked child.
func inChild(a *actor, command string) (pid int, answers string) {
	a.t.Helper()
	first, rest, _ := strings.Cut(a.ask("%s", command), "; ")
	pid, err := strconv.Atoi(first)
	if err != nil {
		a.t.Fatalf("%s: %v", command, err)
	}
	return pid, rest
}

// TestNoLockHeld protects threads from each other: one that hangs in a call must not keep others from theirs (HAMi#2641
// deadlocked in NCCL).
func TestNoLockHeld(t *testing.T) {
	p := newPod(t)
	p.arm(
		all(
			cudafault.State{HangClasses: cudafault.ClassSync, Classes: cudafault.ClassSync, Flags: cudafault.FlagQuiet},
		),
	)
	a := p.actor()
	a.want("start", "0")
	a.want("background sync", "0")
	a.want("launch 3", "0*3")
	a.want("thread launch 3", "0*3")
	a.want("alloc plain 4096", "0")
	a.want("background", "running")
	p.disarm()
	a.want("join", "0")
}

// TestUnusableRunFile keeps the program working where the file for the heartbeat cannot be used, and the fault too: the
// heartbeat is only proof.
func TestUnusableRunFile(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(path string) error
	}{
		{"no folder", func(path string) error { return os.RemoveAll(filepath.Dir(path)) }},
		{"a folder in its place", func(path string) error { return os.Mkdir(path, 0o755) }},
		{"empty", func(path string) error { return os.WriteFile(path, nil, 0o644) }},
		{"short", func(path string) error { return os.WriteFile(path, []byte("GPUFRUN1"), 0o644) }},
		{"garbage", func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("x", 20000)), 0o644) }},
		{"garbage of the right size", func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("\xff", cudafault.ProcessesSize)), 0o644)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			p.run = filepath.Join(folder(t), "run", "processes")
			p.env["GPU_FAULT_RUN"] = p.run
			if err := os.Mkdir(filepath.Dir(p.run), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := test.make(p.run); err != nil {
				t.Fatal(err)
			}
			p.arm(all(cudafault.State{Error: 719, Flags: cudafault.FlagQuiet, Classes: launches, AfterCalls: 2}))
			a := p.actor()
			a.want("start", "0")
			a.want("launch 4", "0*2 719*2")
		})
	}
}

// TestDisable protects the way out: GPU_FAULT_DISABLE=1 makes the shim idle whatever the state says.
func TestDisable(t *testing.T) {
	p := newPod(t)
	p.env["GPU_FAULT_DISABLE"] = "1"
	p.arm(sticky999())
	a := p.actor()
	a.want("start", "0")
	a.want("launch 100", "0*100")
	if got := a.end(); got != "" {
		t.Errorf("it wrote %q", got)
	}
}

// TestDisableIsPassedOn holds that a program that starts another one without GPU_FAULT_DISABLE=1 does not switch the
// shim on in it.
func TestDisableIsPassedOn(t *testing.T) {
	p := newPod(t)
	p.arm(sticky999())
	p.env["LD_PRELOAD"] = p.on.library(t)
	for _, way := range []string{"clean-exec", "clean-fork", "clean-spawn", "env-i"} {
		for disabled, want := range map[string]string{"": "CALL cuLaunchKernel 999\n", "1": "CALL cuLaunchKernel 0\n"} {
			p.env["GPU_FAULT_DISABLE"] = disabled
			if got := p.runProgram(p.program("loaded"), way); got.code != 0 || !strings.Contains(got.stdout, want) {
				t.Errorf("%s with GPU_FAULT_DISABLE=%s: %+v, want %q", way, disabled, got, want)
			}
		}
	}
}

// TestScriptsGetAllArguments protects scripts without a #! line, which execvp runs with sh: all their arguments arrive.
func TestScriptsGetAllArguments(t *testing.T) {
	p := newPod(t)
	p.env["LD_PRELOAD"] = p.on.library(t)
	script := filepath.Join(folder(t), "script")
	if err := os.WriteFile(script, []byte("echo $# $1 ${1000}\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	args := append([]string{script}, slices.Repeat([]string{"first"}, 999)...)
	if got := p.runProgram("/usr/bin/env", append(args, "last")...); got.stdout != "1000 first last\n" {
		t.Errorf("%+v", got)
	}
}
