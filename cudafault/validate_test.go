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
		"nothing": {
			Fault{}, "no effect is specified: use --xid 79, --error launch-failed, --mem-limit 8Gi, --latency 5m",
		},
		"only a scope":   {Fault{Scope: Scope{Devices: []int{0}}}, "no effect is specified"},
		"only a trigger": {Fault{Trigger: Trigger{AfterCalls: 5}}, "no effect is specified"},
		"xid and error":  {Fault{XID: 79, Error: 719}, "--xid and --error cannot be used together"},
		"three": {
			Fault{XID: 79, DriverMismatch: true, FabricNotReady: true},
			"--xid, --driver-mismatch and --fabric-not-ready",
		},
		"unknown xid":          {Fault{XID: 62}, "--xid 62: the CUDA errors that this XID causes are unknown"},
		"154":                  {Fault{XID: 154}, "announces"},
		"45":                   {Fault{XID: 45}, "follows another XID"},
		"error":                {Fault{Error: 12345}, "invalid value 12345 for --error"},
		"phase-new alone":      {Fault{PhaseNew: pointer(46)}, "--error 46 --function cuInit"},
		"phase-new none alone": {Fault{PhaseNew: pointer(0)}, "--error 100 --function cuInit"},
		"phase-new unknown":    {Fault{XID: 79, PhaseNew: pointer(5000)}, "invalid value 5000 for --phase-new"},
		"phase-new twice": {
			Fault{FabricNotReady: true, PhaseNew: pointer(100)}, "--phase-new and --fabric-not-ready cannot be used together",
		},
		"nvml unknown": {Fault{XID: 79, NVML: pointer(5000)}, "invalid value 5000 for --nvml"},
		"nvml twice": {
			Fault{DriverMismatch: true, NVML: pointer(15)}, "--nvml and --driver-mismatch cannot be used together",
		},
		"nvml never": {
			Fault{NVML: pointer(15), Trigger: Trigger{AfterCalls: 5, Max: 1}},
			"--after-calls and --max requires an effect on CUDA calls, such as --error",
		},
		"hang and error": {Fault{Hang: true, Error: 719}, "--hang and --error cannot be used together"},
		"hang and latency": {
			Fault{Hang: true, Latency: time.Second}, "--hang and --latency cannot be used together",
		},
		"hang and corruption": {Fault{Hang: true, CorruptD2H: 1}, "--hang and --corrupt-d2h cannot be used together"},
		"sticky hang": {
			Fault{Hang: true, Sticky: pointer(true)}, "--hang and --sticky cannot be used together",
		},
		"latency negative": {Fault{Latency: -1}, "--latency"},
		"latency in hours": {Fault{Latency: 2 * time.Hour}, "invalid value 2h0m0s for --latency"},
		"latency in ns":    {Fault{Latency: 100}, "too precise"},
		"jitter alone":     {Fault{Error: 2, Jitter: time.Second}, "--latency 1us --jitter 1s"},
		"jitter negative":  {Fault{Latency: 1e6, Jitter: -1}, "--jitter"},
		"corruption":       {Fault{CorruptD2H: 1.5}, "invalid value 1.5 for --corrupt-d2h"},
		"corruption NaN":   {Fault{CorruptD2H: math.NaN()}, "invalid value NaN for --corrupt-d2h"},
		"memory":           {Fault{MemLimit: 80}, "invalid value 80 for --mem-limit"},
		"device":           {Fault{XID: 79, Scope: Scope{Devices: []int{64}}}, "invalid value 64 for --device"},
		"hidden":           {Fault{HideDevices: []int{-1}}, "invalid value -1 for --hide-devices"},
		"hidden and meant": {
			Fault{XID: 79, HideDevices: []int{0, 1}, Scope: Scope{Devices: []int{1}}},
			"device 1 is in both --device and --hide-devices",
		},
		"all hidden": {
			Fault{XID: 79, HideDevices: AllDevices()}, "--hide-devices all cannot be used with other effects",
		},
		"rank": {Fault{XID: 79, Scope: Scope{Rank: pointer(-1)}}, "invalid value -1 for --rank"},
		"nodes": {
			Fault{XID: 79, Scope: Scope{Nodes: make([]string, 65)}}, "too many nodes: 65, but the maximum is 64",
		},
		"layer":            {Fault{XID: 79, Layer: "kernel"}, "invalid value \"kernel\" for --layer"},
		"runtime and nvml": {Fault{XID: 79, NVML: pointer(15), Layer: LayerRuntime}, "--nvml requires --layer driver"},
		"runtime, no hook": {
			Fault{Error: 200, Layer: LayerRuntime}, "CUDA_ERROR_INVALID_IMAGE requires --layer driver",
		},
		"after":       {trigger(Trigger{After: -1}), "--after"},
		"after in us": {trigger(Trigger{After: time.Microsecond}), "whole milliseconds"},
		"window reversed": {
			trigger(Trigger{WindowFrom: 2 * time.Minute, WindowTo: 10 * time.Second}),
			"invalid value 2m-10s for --window",
		},
		"window empty": {
			trigger(Trigger{WindowFrom: time.Second, WindowTo: time.Second}), "invalid value 1s-1s for --window",
		},
		"window negative": {trigger(Trigger{WindowFrom: -time.Second}), "0 or more"},
		"after the window": {
			trigger(Trigger{After: time.Hour, WindowTo: time.Minute}), "--after 1h0m0s is not before the end of --window 0s-1m",
		},
		"probability":       {trigger(Trigger{Probability: 1.5}), "invalid value 1.5 for --probability"},
		"probability below": {trigger(Trigger{Probability: -0.5}), "invalid value -0.5 for --probability"},
		"probability NaN":   {trigger(Trigger{Probability: math.NaN()}), "invalid value NaN for --probability"},
		"seed for nothing":  {trigger(Trigger{Seed: 5}), "--seed requires --probability, --jitter or --corrupt-d2h"},
		"trigger of a limit": {
			Fault{MemLimit: 1 << 30, Trigger: Trigger{Every: 10}},
			"--every requires an effect that can trip, such as --error, --latency or --corrupt-d2h",
		},
		"trigger of init": {
			Fault{FabricNotReady: true, Trigger: Trigger{AfterCalls: 10}}, "--after-calls cannot be used with --fabric-not-ready, which applies from the start of a pr",
		},
		"every of sticky": {Fault{XID: 79, Trigger: Trigger{Every: 10}}, "--sticky=false"},
		"max of sticky": {
			Fault{Error: 719, Trigger: Trigger{Max: 3}}, "--max 3 cannot be used with CUDA_ERROR_LAUNCH_FAILED",
		},
		"sticky nothing": {Fault{MemLimit: 1 << 30, Sticky: pointer(true)}, "--sticky requires --error or --xid"},
		"process glob":   {Fault{XID: 79, Scope: Scope{Process: "py[thon"}}, "a bracket is not closed"},
		"process path": {
			Fault{XID: 79, Scope: Scope{Process: "/usr/bin/python3"}},
			"invalid value \"/usr/bin/python3\" for --process",
		},
		"process long": {
			Fault{XID: 79, Scope: Scope{Process: strings.Repeat("p", 64)}},
			"--process is too long: 64 bytes, must be at most 63",
		},
		"function":           {trigger(Trigger{Function: "cuMemAloc"}), "did you mean cuMemAlloc"},
		"function of others": {trigger(Trigger{Function: "cublasSgemm"}), "matches no supported function"},
		"function not counted": {
			trigger(Trigger{Function: "cuGetProcAddress"}), "matches no supported function",
		},
		"runtime's function": {
			trigger(Trigger{Function: "cudaLaunchKernel"}), "--function cudaLaunchKernel is a CUDA runtime function, and not all programs use the runtime",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := test.fault.Validate()
			if err == nil && test.want == "too precise" { // what only the file's units forbid shows in State
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
		"": "must be a number of bytes", "Gi": "must be a number of bytes", "-1Gi": "must be a number of bytes",
		"4 Gi": "must be a number of bytes", "4Gi ": "must be a number of bytes",
		"1e9":  "must be a number of bytes",
		"4gi":  "did you mean 4Gi?",
		"4GiB": "did you mean 4Gi?", "4GB": "did you mean 4G?", "4K": "did you mean 4k?", "0": "must be greater than 0",
		"0Gi": "must be greater than 0", "1.5": "whole number of bytes",
		"99999999Ti": "invalid size \"99999999Ti\"", "٤Gi": "must be a number of bytes", "4X": `unknown unit "X"`,
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
