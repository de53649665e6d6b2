package xid

import "time"

const ms = time.Millisecond

// groups returns the errors that occur together in real logs. R535 has no XID 154, because XID 154 and its recovery
// actions were introduced in R565.
func groups() []Group {
	var (
		current = []Generation{R580, R595}
		all     = []Generation{R535, R580, R595}

		worker = &Process{PID: 2187734, Name: "python"}
		other  = &Process{PID: 2190021, Name: "nv-hostengine"}
	)
	const (
		forum = "forums.developer.nvidia.com 364958"
		logs  = "public logs of data center GPUs"
	)
	// teardown returns the XID 45 lines written when the processes on a broken GPU are terminated, one for each
	// channel.
	teardown := func(after time.Duration, channels, cause int) stepPlan {
		return stepPlan{
			after: after, code: 45, process: worker, times: channels, every: ms, vary: "chan", from: 2, cause: cause,
		}
	}
	return []Group{{
		Name:        "dram-dbe",
		Description: "uncorrectable DRAM error, contained: the row is marked for remapping, and the process terminates",
		Source:      logs + " (R580)",
		Codes:       []int{48, 63, 94, 171}, Drivers: current,
		steps: []stepPlan{
			{code: 48},
			{after: 1 * ms, code: 171},
			{after: 3 * ms, code: 48, variant: "channel", process: worker, times: 8, every: ms, vary: "chan", from: 2},
			{after: 40 * ms, code: 63, process: worker},
			{after: 42 * ms, code: 154, variant: "drain-reset"},
			{after: 60 * ms, code: 94, process: worker},
			teardown(400*ms, 8, 94),
		},
	}, {
		Name:        "dram-dbe-r535",
		Description: "uncorrectable DRAM error, contained: the row is marked for remapping (drivers without XID 154)",
		Source:      "public logs of A100 GPUs (R535)",
		Codes:       []int{48, 63, 94}, Drivers: []Generation{R535},
		steps: []stepPlan{{code: 48}, {after: 40 * ms, code: 63}, {after: 60 * ms, code: 94}},
	}, {
		Name:        "remap-failure",
		Description: "uncorrectable DRAM error with no spare row left: the GPU must be reset and replaced",
		Source:      logs + " (R580)",
		Codes:       []int{64}, Drivers: current,
		steps: []stepPlan{
			{code: 62},
			{after: 20 * ms, code: 48},
			{after: 21 * ms, code: 171},
			{after: 60 * ms, code: 64},
			{after: 62 * ms, code: 154, variant: "reset"},
		},
	}, {
		Name:        "bus-loss",
		Description: "the GPU no longer responds over PCIe; only a reboot restores it",
		Source:      "open-gpu-kernel-modules issue 461; driver, osinit.c; " + logs,
		Codes:       []int{79}, Drivers: current,
		steps: []stepPlan{
			{code: 79},
			{after: 0, note: "GPU has fallen off the bus."},
			{after: 5 * ms, code: 154, variant: "reboot"},
			teardown(600*ms, 3, 79),
		},
	}, {
		Name:        "bus-loss-r535",
		Description: "the GPU no longer responds over PCIe; only a reboot restores it (drivers without XID 154)",
		Source:      "open-gpu-kernel-modules issue 461; driver, osinit.c",
		Codes:       []int{79}, Drivers: []Generation{R535},
		steps: []stepPlan{{code: 79}, {note: "GPU has fallen off the bus."}, teardown(600*ms, 3, 0)},
	}, {
		Name: "gsp-timeout",
		Description: "the GSP firmware stops responding: each process that calls it waits 45 s, then reports a " +
			"timeout (the second process 45 s later)",
		Source: "gpud issue 500; " + logs,
		Codes:  []int{119}, Drivers: current,
		steps: []stepPlan{
			{code: 119, variant: "slow", process: worker},
			{after: 10 * ms, code: 154, variant: "reset"},
			{after: 45 * time.Second, code: 119, variant: "slow", process: other, other: true},
		},
	}, {
		Name:        "gsp-crash",
		Description: "the GSP firmware raises an exception: the GPU needs a reset",
		Source:      forum,
		Codes:       []int{120}, Drivers: current,
		steps: []stepPlan{{code: 120}, {after: 10 * ms, code: 154, variant: "reset"}, teardown(300*ms, 3, 120)},
	}, {
		Name:        "pmu-halt",
		Description: "the power micro-controller halts: the GPU needs a reset",
		Source:      forum,
		Codes:       []int{62}, Drivers: current,
		steps: []stepPlan{
			{note: "GPU{gpu%d:0-7=0} _kgspRpcGspEventPmuHalted: Received signal from GSP that PMU has halted."},
			{after: 1 * ms, code: 62},
			{after: 3 * ms, code: 154, variant: "reset"},
			teardown(300*ms, 4, 62),
		},
	}, {
		Name:        "nvlink4",
		Description: "fatal error on an NVLink before generation 5, reported by both ends: jobs that use the link terminate",
		Source:      "NVSentinel design 024; " + logs,
		Codes:       []int{74}, Drivers: all,
		steps: []stepPlan{{code: 74, peers: true}, teardown(500*ms, 4, 74)},
	}, {
		Name: "nvlink-remote",
		Description: "memory error on one GPU that affects its NVLink peers (H200): 137 on all GPUs, then 94 on all " +
			"GPUs",
		Source: "forums.developer.nvidia.com 369786",
		Codes:  []int{137}, Drivers: all,
		steps: []stepPlan{{code: 137, peers: true}, {after: 150 * ms, code: 94, process: worker, peers: true}},
	}, {
		Name:        "nvlink5",
		Description: "an NVLink 5 link goes down: 149 on this GPU, 145 on the peers (up to 3 s later)",
		Source:      "open-gpu-kernel-modules issues 1150 and 1355; " + logs,
		Codes:       []int{145, 149}, Drivers: current,
		steps: []stepPlan{
			{code: 149},
			{after: 4 * ms, code: 154, variant: "drain-reset"},
			{after: 600 * ms, leads: 145, code: 145, variant: "src-track"},
			{after: 2500 * ms, code: 145, variant: "src-track", peers: true, only: true},
			teardown(2800*ms, 4, 149),
		},
	}, {
		Name:        "sm-exception",
		Description: "one of the application's kernels faults: 13 for several SMs, then 43 for the channel",
		Source:      "gpud README; " + logs,
		Codes:       []int{13, 43}, Drivers: all,
		steps: []stepPlan{
			{code: 13, times: 3, every: ms, vary: "tpc", from: 0},
			{after: 3 * ms, code: 13, variant: "global"},
			{after: 4 * ms, code: 13, variant: "esr"},
			{after: 120 * ms, code: 43, process: worker},
		},
	}, {
		Name:        "mmu-fault",
		Description: "the application accesses an unmapped address: 31, then 43 and 45 as its channels are torn down",
		Source:      "open-gpu-kernel-modules issue 1030; " + logs,
		Codes:       []int{31}, Drivers: all,
		steps: []stepPlan{
			{code: 31, process: worker},
			{after: 100 * ms, code: 43, process: worker},
			teardown(300*ms, 2, 31),
		},
	}, {
		Name:        "context-switch",
		Description: "a context switch does not finish: the GPU needs a reset",
		Source:      "gpud README; " + logs + " (R570 and later)",
		Codes:       []int{109}, Drivers: current,
		steps: []stepPlan{{code: 109, process: worker}, {after: 5 * ms, code: 154, variant: "reset"}},
	}}
}
