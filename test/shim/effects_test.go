//go:build shim

package shim

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// TestTwoPhases is XID 79 as it really is: the running process gets 999 for good, a new one 100 from cuInit and 15 from
// NVML; and health after disarming, in all of them.
func TestTwoPhases(t *testing.T) {
	p := newPod(t)
	p.fake("FAKECUDA_DEVICES", "2")
	running := p.actor()
	running.want("start", "0")
	running.want("launch 20", "0*20")
	early := p.actor() // does not use CUDA before the fault
	p.arm(all(cudafault.State{Error: 999, ErrorInit: 100, NVMLError: 15,
		Flags: cudafault.FlagSticky | cudafault.FlagQuiet, AfterCalls: 30,
		Classes: launches}))
	healthy := p.actor() // new, but nothing has tripped yet
	healthy.want("start", "0")
	if got := healthy.ask("nvml"); !strings.HasPrefix(got, "init 0 count 0:2 handle 0 memory 0:") {
		t.Errorf("NVML before the trip: %s", got)
	}
	running.until("launch", 999)
	for _, call := range []string{
		"launch", "sync", "streamsync", "eventsync", "query", "eventquery", "record", "h2d", "d2h", "set",
	} {
		running.want(call, "999*1")
	}
	running.want("alloc plain 4096", "999")
	running.want("thread launch 3", "999*3")
	for _, a := range []*actor{early, p.actor()} {
		a.want("start", "100")
		if got := a.ask("nvml"); !strings.Contains(got, "handle 15") {
			t.Errorf("NVML of a new process: %s", got)
		}
	}
	if got := running.ask("nvml"); !strings.Contains(got, "handle 15") && !strings.Contains(got, "memory 15") {
		t.Errorf("NVML of the process that tripped: %s", got)
	}
	p.disarm()
	running.until("sync", 0)
	running.want("launch 5", "0*5")
	early.until("init", 0)
	early.want("start", "0")
	if got := running.ask("nvml"); !strings.HasPrefix(got, "init 0 count 0:2 handle 0 memory 0:") {
		t.Errorf("NVML after disarming: %s", got)
	}
	last := p.actor()
	last.want("start", "0")
	last.want("launch 50", "0*50")
}

// TestImmediate: where the first call trips anyway, a new process fails at cuInit without waiting for a trip.
func TestImmediate(t *testing.T) {
	p := newPod(t)
	p.arm(all(cudafault.State{ErrorInit: 802, NVMLInitError: 9}))
	a := p.actor()
	a.want("start", "802")
	if got := a.ask("nvml"); !strings.HasPrefix(got, "init 9 ") {
		t.Errorf("NVML: %s, want init 9", got)
	}
	line := regexp.MustCompile(
		`^gpu-fault: run test-run: injected CUDA error 802 into cuInit, call \d+, pid \d+ \(actor\)\n$`,
	)
	if got := a.end(); !line.MatchString(got) {
		t.Errorf("stderr: %q", got)
	}
}

// TestSurface: an error of a kernel shows at the next call that waits, not at the launch.
func TestSurface(t *testing.T) {
	for _, call := range []string{"sync", "streamsync", "eventsync", "query", "eventquery", "h2d", "d2h"} {
		t.Run(call, func(t *testing.T) {
			p := newPod(t)
			p.arm(all(cudafault.State{
				Error: 700, Classes: launches, AfterCalls: 2, Max: 1, Surface: cudafault.SurfaceSync,
				Flags: cudafault.FlagQuiet,
			}))
			a := p.actor()
			a.want("start", "0")
			a.want("record", "0*1")
			a.want("launch 2", "0*2")
			a.want("sync", "0*1")
			a.want("launch 3", "0*3") // the first of them tripped
			a.want("set", "0*1")
			a.want(call, "700*1")
			a.want("sync", "0*1") // not sticky: once
		})
	}
	t.Run("sticky", func(t *testing.T) {
		p := newPod(t)
		p.arm(all(cudafault.State{Error: 700, Classes: launches, AfterCalls: 2, Surface: cudafault.SurfaceSync,
			Flags: cudafault.FlagQuiet | cudafault.FlagSticky}))
		a := p.actor()
		a.want("start", "0")
		a.want("launch 5", "0*5")
		a.want("sync", "700*1")
		a.want("launch 5", "700*5")
		a.want("alloc plain 4096", "700")
		if got := p.process(a.pid); got.Trips != 1 || got.Status != cudafault.StatusPoisoned {
			t.Errorf("a poisoned context is one trip: %+v", got)
		}
	})
}

// TestNotSticky: without the flag only the calls that trip fail.
func TestNotSticky(t *testing.T) {
	p := newPod(t)
	p.arm(all(cudafault.State{Error: 719, Classes: launches, AfterCalls: 1, Max: 1, Flags: cudafault.FlagQuiet}))
	a := p.actor()
	a.want("start", "0")
	a.want("launch 4", "0*1 719*1 0*2")
	a.want("sync", "0*1")
}

// TestCapture: what would trip while a stream is captured waits for the end of the capture, which succeeds; then the
// next counted call trips.
func TestCapture(t *testing.T) {
	for _, surface := range []cudafault.Surface{cudafault.SurfaceCall, cudafault.SurfaceSync} {
		t.Run(surface.String(), func(t *testing.T) {
			p := newPod(t)
			p.arm(all(cudafault.State{Error: 719, Classes: launches, AfterCalls: 4, Max: 1, Surface: surface,
				Flags: cudafault.FlagQuiet | cudafault.FlagSticky}))
			a := p.actor()
			a.want("start", "0")
			a.want("launch 2", "0*2")
			a.want("capture begin", "0")
			a.want("launch 10", "0*10")
			a.want("capture end", "0")
			if surface == cudafault.SurfaceCall {
				a.want("graph", "719*1")
			} else {
				a.want("graph", "0*1")
			}
			a.want("sync", "719*1")
			a.want("graph", "719*1")
		})
	}
	t.Run("other threads trip meanwhile at the latest afterwards", func(t *testing.T) {
		p := newPod(t)
		p.arm(
			all(cudafault.State{
				Error: 719, Classes: launches, Max: 1, Flags: cudafault.FlagQuiet | cudafault.FlagSticky,
			}),
		)
		a := p.actor()
		a.want("start", "0")
		a.want("capture begin", "0")
		a.want("launch 3", "0*3")
		a.want("capture end", "0")
		a.want("launch", "719*1")
	})
}

// TestGraphs: a program that only launches graphs is counted and hit.
func TestGraphs(t *testing.T) {
	p := newPod(t)
	a := p.actor()
	a.want("start", "0")
	a.want("capture begin", "0")
	a.want("launch 10", "0*10")
	a.want("capture end", "0")
	a.want("graph 5", "0*5")
	p.arm(all(cudafault.State{Error: 220, Classes: launches, AfterCalls: 7, Flags: cudafault.FlagQuiet}))
	waitGeneration(t, p, a, "infonull")
	a.want("graph 10", "0*7 220*3")
}

// TestFallback: 226 is given only where the driver knows it, 214 elsewhere, and the driver has a text for both.
func TestFallback(t *testing.T) {
	for version, want := range map[int]string{12040: "214 uncorrectable ECC error encountered",
		12070: "214 uncorrectable ECC error encountered",
		12080: "226 Invalid access", 13000: "226 Invalid access"} {
		t.Run(strconv.Itoa(version), func(t *testing.T) {
			p := newPod(t)
			p.fake("FAKECUDA_DRIVER_VERSION", strconv.Itoa(version))
			p.arm(all(cudafault.State{
				Error: 226, ErrorFallback: 214, ErrorMinDriver: 12080, Classes: launches, Flags: cudafault.FlagQuiet,
			}))
			a := p.actor()
			a.want("start", "0")
			code, text, _ := strings.Cut(want, " ")
			a.want("launch", code+"*1")
			if got := a.ask("text %s", code); !strings.HasPrefix(got, "0 "+text) {
				t.Errorf("text: %s, want %s", got, text)
			}
		})
	}
}

// TestLatency: calls of the classes take longer by what was asked for, others do not, and nothing fails.
func TestLatency(t *testing.T) {
	p := newPod(t)
	p.arm(all(cudafault.State{Latency: 40 * time.Millisecond, Jitter: 20 * time.Millisecond,
		LatencyClasses: cudafault.ClassSync,
		Classes:        cudafault.ClassSync, Flags: cudafault.FlagQuiet, Seed: 3}))
	a := p.actor()
	a.want("start", "0")
	// Any of them may be late on a busy machine, but not all.
	shortestSync, shortestLaunch := math.MaxInt, math.MaxInt
	for range 10 {
		var code, wall, cpu int
		got := a.ask("time sync")
		if !scan(got, "%d %d %d", &code, &wall, &cpu) || code != 0 || wall < 39 || cpu > 10 {
			t.Errorf("sync: %s, want 0, 40 to 60 ms, no CPU time", got)
		}
		shortestSync = min(shortestSync, wall)
		if got := a.ask("time launch"); !scan(got, "%d %d %d", &code, &wall, &cpu) || code != 0 {
			t.Errorf("launch: %s, want 0", got)
		}
		shortestLaunch = min(shortestLaunch, wall)
	}
	if shortestSync > 150 || shortestLaunch > 20 {
		t.Errorf("each sync took %d ms and more, want 40 to 60; each launch %d and more, want 0", shortestSync,
			shortestLaunch)
	}
}

// TestLatencyOfInit: where initialisation is slow and fails (GSP timeouts, XID 119), it is slow first.
func TestLatencyOfInit(t *testing.T) {
	p := newPod(t)
	p.arm(all(cudafault.State{ErrorInit: 999, Latency: 300 * time.Millisecond, LatencyClasses: cudafault.ClassInit,
		Classes: cudafault.ClassInit,
		Flags:   cudafault.FlagQuiet}))
	a := p.actor()
	var code, wall, cpu int
	if got := a.ask("time init"); !scan(got, "%d %d %d", &code, &wall, &cpu) || code != 999 || wall < 299 || cpu > 50 {
		t.Errorf("init: %s, want 999 after 300 ms, no CPU time", got)
	}
}

// scan reports whether the text has that form.
func scan(text, form string, into ...any) bool {
	n, err := fmt.Sscanf(text, form, into...)
	return err == nil && n == len(into)
}

// TestHang: a call does not come back, costs no CPU time, and does come back, successfully, when the fault is disarmed
// or expires.
func TestHang(t *testing.T) {
	for _, way := range []string{"disarm", "expiry"} {
		t.Run(way, func(t *testing.T) {
			p := newPod(t)
			s := all(cudafault.State{
				HangClasses: cudafault.ClassSync, Classes: launches | cudafault.ClassSync, AfterCalls: 3,
			})
			if way == "expiry" {
				s.Expires = time.Now().Add(2500 * time.Millisecond)
			}
			p.arm(s)
			a := p.actor()
			a.want("start", "0")
			a.want("launch 3", "0*3")
			a.tell("time sync")
			eventually(t, "the hang is reported", 5*time.Second, func() bool { return p.process(a.pid).Trips == 1 })
			select {
			case got := <-a.answers:
				t.Fatalf("it came back: %s", got)
			case <-time.After(700 * time.Millisecond): // it must not come back: there is nothing to wait for
			}
			if way == "disarm" {
				p.disarm()
			}
			var code, wall, cpu int
			got := a.answer("time sync")
			if _, err := fmt.Sscanf(got, "%d %d %d", &code, &wall, &cpu); err != nil || code != 0 || wall < 650 ||
				cpu > 100 {
				t.Errorf("sync: %s, want 0, more than 650 ms, hardly any CPU time", got)
			}
			a.want("sync", "0*1")
			if line := a.end(); !strings.HasPrefix(
				line, "gpu-fault: run test-run: injected a hang into cuCtxSynchronize, call 3, pid ",
			) {
				t.Errorf("stderr: %q", line)
			}
		})
	}
}

// TestCombined: several effects at once do not get into each other's way.
func TestCombined(t *testing.T) {
	p := newPod(t)
	p.arm(all(cudafault.State{Error: 719, Classes: launches, AfterCalls: 5, Max: 1, MemLimit: 12 << 30,
		Latency:        10 * time.Millisecond,
		LatencyClasses: launches, Flags: cudafault.FlagQuiet}))
	a := p.actor()
	a.want("start", "0")
	a.want(fmt.Sprintf("alloc plain %d", 13<<30), "2")
	a.want("launch 7", "0*5 719*1 0*1")
	a.want("total 0", fmt.Sprintf("0 %d", 12<<30))
}

// TestTrainer is the sample workload as it would be in a pod: it runs to its end; under a fault it says what PyTorch
// would and exits 1.
func TestTrainer(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		for _, test := range []struct {
			name   string
			state  *cudafault.State
			args   []string
			code   int
			stderr string
		}{
			{"healthy", nil, nil, 0, ""},
			{"disarmed", &cudafault.State{Rank: -1}, nil, 0, ""},
			{"ECC", &cudafault.State{Rank: -1, Error: 214, Classes: launches, AfterCalls: 20}, nil, 1,
				"RuntimeError: CUDA error: uncorrectable ECC error encountered (214)"},
			{"at the next wait", &cudafault.State{
				Rank: -1, Error: 700, Classes: launches, AfterCalls: 20, Surface: cudafault.SurfaceSync,
			}, nil, 1,
				"RuntimeError: CUDA error: an illegal memory access was encountered (700)\n  in cuEventSynchronize"},
			{
				"no device", &cudafault.State{Rank: -1, Hide: []int{0}}, nil, 1,
				"injected CUDA error 100 into cuInit, call 0, pid",
			},
			{
				"memory", &cudafault.State{Rank: -1, MemLimit: 1 << 30}, []string{"-bytes", "2147483648"}, 1,
				"RuntimeError: CUDA error: out of memory (2)",
			},
			{
				"wrong data", &cudafault.State{Rank: -1, Corrupt: 0.5, Seed: 1, Classes: cudafault.ClassCopy}, nil, 1,
				"AssertionError: step ",
			},
		} {
			t.Run(on.name+"/"+test.name, func(t *testing.T) {
				p := newPodOn(t, on)
				if test.state != nil {
					p.arm(*test.state)
				}
				p.env["LD_PRELOAD"] = on.library(t)
				got := p.runProgram(p.program("trainer"),
					append([]string{"-steps", "50", "-interval", "0"}, test.args...)...)
				if got.code != test.code || !strings.Contains(got.stderr, test.stderr) ||
					(test.code == 0 && !strings.HasSuffix(got.stdout, "done\n")) {
					t.Errorf("%+v", got)
				}
			})
		}
	}
}
