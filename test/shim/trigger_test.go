//go:build shim

package shim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// predicted returns what n calls of one thread answer under a state, as cudafault computes it: runs of equal codes, as
// the actor prints them.
func predicted(s cudafault.State, n int) string {
	var runs []string
	last, run := 0, 0
	trips := uint64(0)
	for i := range n + 1 {
		code := 0
		if i < n && s.Trips(uint64(i)) && (s.Max == 0 || trips < s.Max) {
			code = s.Error
			trips++
		}
		if run > 0 && (i == n || code != last) {
			runs = append(runs, fmt.Sprintf("%d*%d", last, run))
			run = 0
		}
		last = code
		run++
	}
	return strings.Join(runs, " ")
}

// TestCallTriggers holds that a process trips at exactly the calls that Go predicts from the same numbers.
func TestCallTriggers(t *testing.T) {
	for _, on := range []platform{x86, arm} {
		for _, test := range []struct {
			name  string
			state cudafault.State
			trips int // of 400 calls; -1 = what is predicted, but some and not all
		}{
			{"each", cudafault.State{}, 400},
			{"after-calls", cudafault.State{AfterCalls: 37}, 363},
			{"after-calls beyond a lease", cudafault.State{AfterCalls: 399}, 1},
			{"every", cudafault.State{Every: 7}, 58},
			{"after-calls and every", cudafault.State{AfterCalls: 10, Every: 100}, 4},
			{"max", cudafault.State{Max: 3}, 3},
			{"max, after-calls, every", cudafault.State{AfterCalls: 5, Every: 2, Max: 5}, 5},
			{"probability 1%", cudafault.State{Probability: 0.01, Seed: 42}, -1},
			{"probability 50%", cudafault.State{Probability: 0.5, Seed: 7}, -1},
			{"probability 50%, other seed", cudafault.State{Probability: 0.5, Seed: 8}, -1},
			{
				"probability, every, after, max",
				cudafault.State{Probability: 0.4, Seed: 9, Every: 3, AfterCalls: 20, Max: 10}, 10,
			},
		} {
			t.Run(on.name+"/"+test.name, func(t *testing.T) {
				p := newPodOn(t, on)
				s := all(test.state)
				s.Error, s.Classes, s.Flags = 719, launches, cudafault.FlagQuiet
				s = p.arm(s)
				want := predicted(s, 400)
				trips := 0
				for run := range strings.FieldsSeq(want) {
					n := 0
					if _, err := fmt.Sscanf(run, "719*%d", &n); err == nil {
						trips += n
					}
				}
				if (test.trips >= 0 && trips != test.trips) || (test.trips < 0 && (trips == 0 || trips == 400)) {
					t.Fatalf("%d trips predicted, want %d", trips, test.trips)
				}
				a := p.actor()
				a.want("start", "0")
				a.want("launch 400", want)
				if got := p.process(a.pid); got.Trips != uint64(trips) || got.Function != "cuLaunchKernel" ||
					got.LastError != 719 {
					t.Errorf("reported: %+v, want %d trips of cuLaunchKernel with 719", got, trips)
				}
			})
		}
	}
}

// TestCountedCalls holds which calls count: by class, and by a glob on the function's name with and without its suffix.
func TestCountedCalls(t *testing.T) {
	calls := []string{"launch", "sync", "streamsync", "eventsync", "query", "eventquery", "record", "h2d", "d2h", "set"}
	for _, test := range []struct {
		name  string
		state cudafault.State
		fail  []string
	}{
		{"launch", cudafault.State{Classes: cudafault.ClassLaunch}, []string{"launch"}},
		{"sync", cudafault.State{Classes: cudafault.ClassSync}, []string{"sync", "streamsync", "eventsync"}},
		{"query", cudafault.State{Classes: cudafault.ClassQuery}, []string{"query", "eventquery"}},
		{"event", cudafault.State{Classes: cudafault.ClassEvent}, []string{"record"}},
		{
			"copy and set", cudafault.State{Classes: cudafault.ClassCopy | cudafault.ClassSet},
			[]string{"h2d", "d2h", "set"},
		},
		{"glob", cudafault.State{Function: "cu*Synchronize"}, []string{"sync", "streamsync", "eventsync"}},
		{"bare name", cudafault.State{Function: "cuMemcpyDtoH"}, []string{"d2h"}},
		{"exported name", cudafault.State{Function: "cuMemcpyHtoD_v2"}, []string{"h2d"}},
		{"question mark and brackets", cudafault.State{Function: "cuMemcpy[HX]to?"}, []string{"h2d"}},
		{
			"function beats classes", cudafault.State{Function: "cuStreamQuery", Classes: cudafault.ClassLaunch},
			[]string{"query"},
		},
		{"a name that nothing has", cudafault.State{Function: "cuNothing*", Classes: cudafault.ClassLaunch}, nil},
		{"none", cudafault.State{}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			s := all(test.state)
			s.Error, s.Flags = 700, cudafault.FlagQuiet
			// The state holds from the first call on, and none of start's may trip.
			a := p.actor()
			a.want("start", "0")
			p.arm(s)
			waitGeneration(t, p, a, "infonull")
			for _, call := range calls {
				want := "0*1"
				if slices.Contains(test.fail, call) {
					want = "700*1"
				} else if strings.HasSuffix(call, "query") {
					a.ask("sync")
				}
				got := a.ask("%s", call)
				if want == "0*1" && got == "600*1" { // not ready: the driver's own answer
					continue
				}
				if got != want {
					t.Errorf("%s: %s, want %s", call, got, want)
				}
			}
		})
	}
}

// waitGeneration lets the actor make harmless calls until it has read the state that lies there.
func waitGeneration(t *testing.T, p *pod, a *actor, call string) {
	t.Helper()
	want := generations.Load()
	eventually(t, "the state is read", 5*time.Second, func() bool {
		a.ask("%s", call)
		return p.process(a.pid).Generation == want
	})
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, atMost time.Duration, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(atMost); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain: %s", atMost, what)
		}
	}
}

// TestTimeTriggers holds that after_ms counts from the later of arming and the process's first call, and the window
// from arming.
func TestTimeTriggers(t *testing.T) {
	t.Run("after", func(t *testing.T) {
		p := newPod(t)
		p.arm(all(cudafault.State{Error: 719, Classes: launches, Flags: cudafault.FlagQuiet,
			After:   600 * time.Millisecond,
			ArmedAt: time.Now().Add(-time.Hour)}))
		a := p.actor()
		a.want("start", "0")
		a.want("launch 3", "0*3") // armed an hour ago, but the process is new
		if took := a.until("launch", 719); took < 300*time.Millisecond || took > 900*time.Millisecond {
			t.Errorf("it tripped %v after the first calls, want about 600 ms", took)
		}
	})
	t.Run("window", func(t *testing.T) {
		p := newPod(t)
		p.arm(all(cudafault.State{Error: 719, Classes: launches, Flags: cudafault.FlagQuiet, ArmedAt: time.Now(),
			WindowFrom: 500 * time.Millisecond,
			WindowTo:   900 * time.Millisecond}))
		a := p.actor()
		a.want("start", "0")
		a.want("launch 3", "0*3")
		a.until("launch", 719)
		a.until("launch", 0)
		if got := a.ask("until launch 719 300"); !strings.HasPrefix(got, "0 ") {
			t.Errorf("after the window: %s", got)
		}
	})
	t.Run("window that is over", func(t *testing.T) {
		p := newPod(t)
		p.arm(all(
			cudafault.State{
				Error: 719, Classes: launches, ArmedAt: time.Now().Add(-time.Minute), WindowTo: time.Second,
			},
		))
		a := p.actor()
		a.want("start", "0")
		a.want("launch 100", "0*100")
	})
}

// TestTargets holds who is meant: nodes, ranks, process names, devices. Who is not sees nothing.
func TestTargets(t *testing.T) {
	for _, test := range []struct {
		name   string
		state  cudafault.State
		env    map[string]string
		hit    bool
		status cudafault.Status
	}{
		{"this node", cudafault.State{Nodes: []string{"node-b", "node-a"}, Rank: -1}, nil, true, 0},
		{
			"another node", cudafault.State{Nodes: []string{"node-b", "node-c"}, Rank: -1}, nil, false,
			cudafault.StatusOtherNode,
		},
		{"no node is known", cudafault.State{Nodes: []string{"node-a"}, Rank: -1},
			map[string]string{"GPU_FAULT_NODE": ""}, false,
			cudafault.StatusOtherNode},
		{"rank by RANK", cudafault.State{Rank: 3}, map[string]string{"RANK": "3"}, true, 0},
		{
			"RANK goes before LOCAL_RANK", cudafault.State{Rank: 3}, map[string]string{"LOCAL_RANK": "3", "RANK": "11"},
			false, cudafault.StatusOtherProcess,
		},
		{"rank by Open MPI", cudafault.State{Rank: 0}, map[string]string{"OMPI_COMM_WORLD_RANK": "0"}, true, 0},
		{
			"rank by the index of the Job", cudafault.State{Rank: 2}, map[string]string{"JOB_COMPLETION_INDEX": "2"},
			true, 0,
		},
		{"rank by LOCAL_RANK", cudafault.State{Rank: 1}, map[string]string{"LOCAL_RANK": "1"}, true, 0},
		{"another rank", cudafault.State{Rank: 1}, map[string]string{"RANK": "0"}, false, cudafault.StatusOtherProcess},
		{"a rank where there is none", cudafault.State{Rank: 0}, nil, false, cudafault.StatusOtherProcess},
		{"process", cudafault.State{Process: "actor", Rank: -1}, nil, true, 0},
		{"process by glob", cudafault.State{Process: "a*[r-t]", Rank: -1}, nil, true, 0},
		{"another process", cudafault.State{Process: "python*", Rank: -1}, nil, false, cudafault.StatusOtherProcess},
		{"a device that it uses", cudafault.State{Devices: []int{0}, Rank: -1}, nil, true, 0},
		{"a device that it does not", cudafault.State{Devices: []int{1, 5}, Rank: -1}, nil, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPod(t)
			p.fake("FAKECUDA_DEVICES", "2")
			for name, value := range test.env {
				p.env[name] = value
			}
			s := test.state
			s.Error, s.Classes, s.Flags = 719, launches, cudafault.FlagQuiet
			p.arm(s)
			a := p.actor()
			a.want("start", "0")
			want := "0*50"
			if test.hit {
				want = "719*50"
			}
			a.want("launch 50", want)
			if got := p.process(a.pid).Status; test.status != 0 && got != test.status {
				t.Errorf("status %v, want %v", got, test.status)
			}
		})
	}
}

// TestDevice follows the context that is current: the fault is on device 1 only.
func TestDevice(t *testing.T) {
	p := newPod(t)
	p.fake("FAKECUDA_DEVICES", "2")
	p.arm(all(cudafault.State{Error: 719, Classes: cudafault.ClassSync, Flags: cudafault.FlagQuiet, Devices: []int{1}}))
	a := p.actor()
	a.want("start 0", "0")
	a.want("sync", "0*1")
	a.want("device 1", "0")
	a.want("sync", "719*1")
	a.want("device 0", "0")
	a.want("sync", "0*1")
}

// TestDevicesAndHiding: the numbers of both are those that the process counts without the fault.
func TestDevicesAndHiding(t *testing.T) {
	p := newPod(t)
	p.fake("FAKECUDA_DEVICES", "3")
	p.arm(all(cudafault.State{
		Error: 719, Classes: cudafault.ClassSync, Flags: cudafault.FlagQuiet, Devices: []int{1}, Hide: []int{0},
	}))
	a := p.actor()
	a.want("start 0", "0") // device 1 of the three
	a.want("sync", "719*1")
	a.want("device 1", "0")
	a.want("sync", "0*1")
}

// TestThreads: many threads at once trip as often as the numbers say, no more and no less.
func TestThreads(t *testing.T) {
	const threads, calls = 32, 2000 // a call in eight is not counted
	const counted = threads * calls / 8 * 7
	for _, on := range []platform{x86, arm} {
		for _, test := range []struct {
			name        string
			state       cudafault.State
			least, most int
		}{
			{"max", cudafault.State{Max: 5}, 5, 5},
			{"max and after-calls", cudafault.State{Max: 3, AfterCalls: 500}, 3, 3},
			{"each", cudafault.State{}, counted, counted},
			// Numbers are given to threads in blocks, and what a thread leaves of its last one is lost.
			{"every", cudafault.State{Every: 100}, counted / 100 * 8 / 10, counted / 100 * 12 / 10},
			{"probability", cudafault.State{Probability: 0.05, Seed: 4}, counted / 20 * 8 / 10, counted / 20 * 12 / 10},
		} {
			t.Run(on.name+"/"+test.name, func(t *testing.T) {
				p := newPodOn(t, on)
				s := all(test.state)
				s.Error, s.Classes, s.Flags = 719, launches, cudafault.FlagQuiet
				p.arm(s)
				a := p.actor()
				a.want("start", "0")
				answer := a.ask("storm %d %d", threads, calls)
				var passed, tripped int
				if _, err := fmt.Sscanf(answer, "0*%d 719*%d", &passed, &tripped); err != nil ||
					passed+tripped != threads*calls ||
					tripped < test.least || tripped > test.most {
					t.Errorf("%s, want between %d and %d times 719", answer, test.least, test.most)
				}
				if got := p.process(a.pid).Trips; got != uint64(tripped) {
					t.Errorf("%d trips reported, want %d", got, tripped)
				}
			})
		}
	}
}
