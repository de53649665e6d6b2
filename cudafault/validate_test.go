package cudafault

import (
	"math"
	"strings"
	"testing"
	"time"
)

// What cannot work is refused with what to do instead, before anything is changed in a cluster.
func TestValidateRefuses(t *testing.T) {
	t.Parallel()
	trigger := func(t Trigger) Fault { return Fault{Error: 2, Trigger: t} }
	for name, test := range map[string]struct {
		fault Fault
		want  string
	}{
		"nothing":        {Fault{}, "nothing to inject: give --xid 79"},
		"only a scope":   {Fault{Scope: Scope{Devices: []int{0}}}, "nothing to inject"},
		"only a trigger": {Fault{Trigger: Trigger{AfterCalls: 5}}, "nothing to inject"},
		"xid and error":  {Fault{XID: 79, Error: 719}, "--xid and --error each say"},
		"three": {
			Fault{XID: 79, DriverMismatch: true, FabricNotReady: true},
			"--xid, --driver-mismatch and --fabric-not-ready",
		},
		"unknown xid":          {Fault{XID: 62}, "known are 13, 31, 43, 48, 74, 79, 94"},
		"63":                   {Fault{XID: 63}, "kubectl gpu-fault xid 63 NODE"},
		"154":                  {Fault{XID: 154}, "announces"},
		"45":                   {Fault{XID: 45}, "follows another XID"},
		"error":                {Fault{Error: 12345}, "no such CUDA error"},
		"phase-new alone":      {Fault{PhaseNew: pointer(46)}, "--error 46 --function cuInit"},
		"phase-new none alone": {Fault{PhaseNew: pointer(0)}, "--error 100 --function cuInit"},
		"phase-new unknown":    {Fault{XID: 79, PhaseNew: pointer(5000)}, "--phase-new 5000"},
		"phase-new twice":      {Fault{FabricNotReady: true, PhaseNew: pointer(100)}, "--fabric-not-ready each say"},
		"nvml unknown":         {Fault{XID: 79, NVML: pointer(5000)}, "--nvml 5000"},
		"nvml twice":           {Fault{DriverMismatch: true, NVML: pointer(15)}, "each say what NVML returns"},
		"nvml never": {
			Fault{NVML: pointer(15), Trigger: Trigger{AfterCalls: 5, Max: 1}},
			"--after-calls and --max: nothing would trip",
		},
		"hang and error":      {Fault{Hang: true, Error: 719}, "returns nothing"},
		"hang and latency":    {Fault{Hang: true, Latency: time.Second}, "--hang with --latency"},
		"hang and corruption": {Fault{Hang: true, CorruptD2H: 1}, "--hang with --corrupt-d2h"},
		"sticky hang":         {Fault{Hang: true, Sticky: pointer(true)}, "--hang with --sticky"},
		"latency negative":    {Fault{Latency: -1}, "--latency"},
		"latency in hours":    {Fault{Latency: 2 * time.Hour}, "give --hang"},
		"latency in ns":       {Fault{Latency: 100}, "finer than"},
		"jitter alone":        {Fault{Error: 2, Jitter: time.Second}, "--latency 1us --jitter 1s"},
		"jitter negative":     {Fault{Latency: 1e6, Jitter: -1}, "--jitter"},
		"corruption":          {Fault{CorruptD2H: 1.5}, "--corrupt-d2h 1.5"},
		"corruption NaN":      {Fault{CorruptD2H: math.NaN()}, "--corrupt-d2h NaN"},
		"memory":              {Fault{MemLimit: 80}, "give 1Mi or more"},
		"device":              {Fault{XID: 79, Scope: Scope{Devices: []int{64}}}, "--device 64"},
		"hidden":              {Fault{HideDevices: []int{-1}}, "--hide-devices -1"},
		"hidden and meant": {
			Fault{XID: 79, HideDevices: []int{0, 1}, Scope: Scope{Devices: []int{1}}},
			"device 1 is in --device and in --hide-devices",
		},
		"all hidden":       {Fault{XID: 79, HideDevices: AllDevices()}, "give it alone"},
		"rank":             {Fault{XID: 79, Scope: Scope{Rank: pointer(-1)}}, "--rank -1"},
		"nodes":            {Fault{XID: 79, Scope: Scope{Nodes: make([]string, 65)}}, "65 nodes"},
		"layer":            {Fault{XID: 79, Layer: "kernel"}, "choose driver or runtime"},
		"runtime and nvml": {Fault{XID: 79, NVML: pointer(15), Layer: LayerRuntime}, "needs --layer driver"},
		"runtime, no hook": {Fault{Error: 200, Layer: LayerRuntime}, "not hooked there"},
		"after":            {trigger(Trigger{After: -1}), "--after"},
		"after in us":      {trigger(Trigger{After: time.Microsecond}), "whole milliseconds"},
		"window reversed": {
			trigger(Trigger{WindowFrom: 2 * time.Minute, WindowTo: 10 * time.Second}),
			"--window 2m-10s ends before it begins: 10s-2m?",
		},
		"window empty":      {trigger(Trigger{WindowFrom: time.Second, WindowTo: time.Second}), "no length"},
		"window negative":   {trigger(Trigger{WindowFrom: -time.Second}), "0 or more"},
		"after the window":  {trigger(Trigger{After: time.Hour, WindowTo: time.Minute}), "nothing would trip"},
		"probability":       {trigger(Trigger{Probability: 1.5}), "--probability 1.5"},
		"probability below": {trigger(Trigger{Probability: -0.5}), "--probability -0.5"},
		"probability NaN":   {trigger(Trigger{Probability: math.NaN()}), "--probability NaN"},
		"seed for nothing":  {trigger(Trigger{Seed: 5}), "nothing is left to chance"},
		"trigger of a limit": {
			Fault{MemLimit: 1 << 30, Trigger: Trigger{Every: 10}},
			"--every: --mem-limit and --hide-devices hold all the time",
		},
		"trigger of init": {
			Fault{FabricNotReady: true, Trigger: Trigger{AfterCalls: 10}}, "--fabric-not-ready holds from the start",
		},
		"every of sticky": {Fault{XID: 79, Trigger: Trigger{Every: 10}}, "--sticky=false"},
		"max of sticky": {
			Fault{Error: 719, Trigger: Trigger{Max: 3}}, "CUDA_ERROR_LAUNCH_FAILED leaves the context unusable",
		},
		"sticky nothing": {Fault{MemLimit: 1 << 30, Sticky: pointer(true)}, "give --error or --xid"},
		"process glob":   {Fault{XID: 79, Scope: Scope{Process: "py[thon"}}, "a bracket is not closed"},
		"process path":   {Fault{XID: 79, Scope: Scope{Process: "/usr/bin/python3"}}, "without path"},
		"process long": {
			Fault{XID: 79, Scope: Scope{Process: strings.Repeat("p", 64)}}, "64 bytes are more than the 63",
		},
		"function":           {trigger(Trigger{Function: "cuMemAloc"}), "did you mean cuMemAlloc"},
		"function of others": {trigger(Trigger{Function: "cublasSgemm"}), "no function that can be made to fail"},
		"function not counted": {
			trigger(Trigger{Function: "cuGetProcAddress"}), "no function that can be made to fail",
		},
		"runtime's function": {trigger(Trigger{Function: "cudaLaunchKernel"}), "the driver's (cuLaunchKernel"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := test.fault.Validate()
			if err == nil && test.want == "finer than" { // what only the file's units forbid shows in State
				_, err = test.fault.State("run", 1, time.Time{}, time.Time{})
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestValidateTakes(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]Fault{
		"hang as phase 1":     {XID: 79, Hang: true},
		"new after a hang":    {Hang: true, PhaseNew: pointer(100)},
		"running and upgrade": {Error: 719, DriverMismatch: true},
		"all effects": {
			XID: 31, MemLimit: 1 << 30, HideDevices: []int{1}, CorruptD2H: 1, Latency: time.Millisecond,
			Jitter: time.Millisecond, Trigger: Trigger{Seed: 1},
		},
		"once":                 {XID: 79, Trigger: Trigger{Max: 1}},
		"flapping":             {Error: 719, Sticky: pointer(false), Trigger: Trigger{Every: 10, Max: 5}},
		"after within window":  {Error: 2, Trigger: Trigger{After: time.Second, WindowTo: time.Minute}},
		"cuInit alone":         {Error: 46, Trigger: Trigger{Function: "cuInit"}},
		"suffix":               {Error: 2, Trigger: Trigger{Function: "cuMemAlloc_v2"}},
		"negated set":          {Error: 2, Scope: Scope{Process: "[!b]*"}},
		"runtime's function":   {Error: 719, Layer: LayerRuntime, Trigger: Trigger{Function: "cudaLaunchKernel*"}},
		"runtime, no device":   {Error: 100, Layer: LayerRuntime},
		"runtime, init only":   {FabricNotReady: true, Layer: LayerRuntime},
		"runtime, limit":       {MemLimit: 1 << 30, Layer: LayerRuntime},
		"NVML alone":           {NVML: pointer(15)},
		"NVML with a trigger":  {Error: 2, NVML: pointer(15), Trigger: Trigger{AfterCalls: 5}},
		"all hidden, and NVML": {HideDevices: AllDevices(), NVML: pointer(15)},
	} {
		if err := f.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		"1073741824": 1 << 30, "4Gi": 4 << 30, "512Mi": 512 << 20, "8G": 8e9, "1.5Gi": 3 << 29, "64Ki": 64 << 10,
		"1k": 1000, "2Ti": 2 << 40, "0.5Gi": 1 << 29,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "no size", "Gi": "no size", "-1Gi": "no size", "4 Gi": "no size", "4Gi ": "no size", "1e9": "no size",
		"4gi":  "did you mean 4Gi?",
		"4GiB": "did you mean 4Gi?", "4GB": "did you mean 4G?", "4K": "did you mean 4k?", "0": "above 0",
		"0Gi": "above 0", "1.5": "whole number of bytes",
		"99999999Ti": "larger than any memory", "٤Gi": "no size", "4X": `unknown unit "X"`,
	} {
		if got, err := ParseSize(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSize(%q) = %d, %v, want an error with %q", text, got, err, want)
		}
	}
	for bytes, want := range map[uint64]string{8 << 30: "8Gi", 8e9: "8G", 1536 << 20: "1536Mi", 7: "7", 0: "0"} {
		if got := FormatSize(bytes); got != want {
			t.Errorf("FormatSize(%d) = %s, want %s", bytes, got, want)
		}
		if back, err := ParseSize(FormatSize(bytes)); bytes > 0 && (err != nil || back != bytes) {
			t.Errorf("%s is read as %d, %v", FormatSize(bytes), back, err)
		}
	}
}
