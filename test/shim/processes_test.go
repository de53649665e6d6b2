//go:build shim

package shim

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// TestProcesses holds what status is made of: a place for each process, with what it did, and the mark.
func TestProcesses(t *testing.T) {
	p := newPod(t)
	p.fake("FAKECUDA_DRIVER_VERSION", "12080")
	a := p.actor()
	a.want("start", "0")
	got := p.process(a.pid)
	if got.Status != cudafault.StatusNoState || got.Name != "actor" || got.Driver != 12080 || got.Hooks < 100 ||
		got.Paths != cudafault.PathDlsym|cudafault.PathProcAddress || time.Since(got.Started) > time.Minute ||
		got.Trips != 0 {
		t.Errorf("without a state: %+v", got)
	}
	s := p.arm(all(cudafault.State{Error: 214, Classes: launches, AfterCalls: 5, Flags: cudafault.FlagSticky}))
	waitGeneration(t, p, a, "infonull")
	if got := p.process(a.pid); got.Status != cudafault.StatusArmed || got.Generation != s.Generation {
		t.Errorf("armed: %+v", got)
	}
	if mark := p.processes().TrippedGeneration; mark != 0 {
		t.Errorf("marked with %d before a trip", mark)
	}
	a.want("launch 8", "0*5 214*3")
	got = p.process(a.pid)
	if got.Status != cudafault.StatusPoisoned || got.Trips != 1 || got.LastError != 214 ||
		got.Function != "cuLaunchKernel" ||
		time.Since(got.TrippedAt) > time.Minute {
		t.Errorf("tripped: %+v", got)
	}
	if all := p.processes(); all.TrippedGeneration != s.Generation || all.Trips != 1 ||
		time.Since(all.TrippedAt) > time.Minute {
		t.Errorf("the mark: %+v", all)
	}
	want := regexp.MustCompile(
		`^gpu-fault: run test-run: injected CUDA error 214 into cuLaunchKernel, call 5, pid \d+ \(actor\)\n$`,
	)
	if line := a.end(); !want.MatchString(line) {
		t.Errorf("stderr: %q", line)
	}
}

// TestASlowCallerNoticesTheArming holds that a program that looks up hundreds of functions when it starts and calls
// rarely afterwards notices an arming at once: what it did at its start says nothing about its pace.
func TestASlowCallerNoticesTheArming(t *testing.T) {
	p := newPod(t)
	p.fake("FAKECUDA_DRIVER_VERSION", "12080")
	a := p.actor()
	a.want("start", "0")
	s := p.arm(all(cudafault.State{Error: 214, Classes: launches, AfterCalls: 1 << 20}))
	const most = 60
	calls := 0
	for ; calls < most && p.process(a.pid).Generation != s.Generation; calls++ {
		a.ask("infonull")
		time.Sleep(20 * time.Millisecond) // the pace of the calls
	}
	if calls == most {
		t.Errorf("the arming is not noticed after %d calls in more than a second", calls)
	}
	t.Logf("noticed after %d calls", calls)
}

// TestSlots holds that places of processes that ended are used again: far more processes than places run one after
// another.
func TestSlots(t *testing.T) {
	p := newPod(t)
	p.disarm()
	p.env["LD_PRELOAD"] = p.on.library(t)
	for range 80 {
		if got := p.runProgram(p.program("linked")); got.code != 0 {
			t.Fatalf("%+v", got)
		}
	}
	a := p.actor()
	a.want("start", "0")
	p.process(a.pid)
}

// TestReport runs the library as a program: it prints both files, which is how the client reads them where there is no
// shell.
func TestReport(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		t.Run(on.name, func(t *testing.T) {
			p := newPodOn(t, on)
			for _, exists := range []bool{false, true} {
				want := all(cudafault.State{Error: 700, Classes: launches, Run: "report"})
				if exists {
					p.arm(want)
					a := p.actor()
					a.want("start", "0")
					a.want("launch", "700*1")
				}
				delete(p.env, "LD_PRELOAD")
				got := p.runProgram(on.library(t), "whatever", "--help")
				if got.code != 0 || got.stderr != "" {
					t.Fatalf("%+v", got)
				}
				state, processes, err := cudafault.DecodeReport([]byte(got.stdout))
				if err != nil {
					t.Fatal(err)
				}
				if !exists {
					if state != nil || processes != nil {
						t.Errorf("no files: %+v %+v", state, processes)
					}
					continue
				}
				if state == nil || state.Run != "report" || state.Error != 700 || processes == nil ||
					processes.Trips != 1 || len(processes.List) != 1 {
					t.Errorf("%+v %+v", state, processes)
				}
			}
		})
	}
}

// TestSystemCalls holds that a call costs no system call: 200,000 calls more make hardly any more of them.
func TestSystemCalls(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("no strace: apt-get install strace")
	}
	for _, test := range []struct {
		name  string
		state *cudafault.State
	}{
		{"no state", nil},
		{"disarmed", &cudafault.State{Rank: -1}},
		{
			"armed, far away",
			&cudafault.State{Rank: -1, Error: 719, Classes: launches | cudafault.ClassSync, AfterCalls: 1 << 50},
		},
		{"armed, other calls", &cudafault.State{Rank: -1, Error: 719, Classes: cudafault.ClassIPC}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			if test.state != nil {
				p.arm(*test.state)
			}
			count := func(calls string) int {
				t.Helper()
				log := filepath.Join(folder(t), "log")
				p.env["BUSY"] = calls
				got := p.runProgram(strace, "-f", "-qq", "-o", log, "-E", "LD_PRELOAD="+p.on.library(t),
					p.program("busy"), calls)
				if got.code != 0 {
					t.Fatalf("%+v", got)
				}
				data, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				return strings.Count(string(data), "\n")
			}
			few, many := count("1000"), count("201000")
			if many-few > 60 {
				t.Errorf("200000 calls made %d system calls (%d, %d)", many-few, few, many)
			}
		})
	}
}
