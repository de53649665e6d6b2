package cuda

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
	"github.com/gpu-fault/kubectl-gpu-fault/test/golden"
)

// withFaultFlags returns a command that has the flags of a fault, and another one.
func withFaultFlags() (*cobra.Command, *faultFlags) {
	cmd := &cobra.Command{Use: "inject", RunE: func(*cobra.Command, []string) error { return nil }}
	f := newFaultFlags()
	f.addFlags(cmd)
	cmd.Flags().String("ttl", "", "")
	return cmd, f
}

// typedFault returns the fault of a command line.
func typedFault(t *testing.T, args ...string) (cudafault.Fault, error) {
	t.Helper()
	cmd, f := withFaultFlags()
	if err := cmd.ParseFlags(args); err != nil {
		return cudafault.Fault{}, err
	}
	return f.fault(cmd)
}

func TestFaultFlags(t *testing.T) {
	t.Parallel()
	driver := cudafault.LayerDriver
	code := func(n int) *int { return &n }
	no := false
	for line, want := range map[string]cudafault.Fault{
		"--xid 79":              {XID: 79},
		"--error launch-failed": {Error: 719},
		"--error cudaErrorLaunchFailure --sticky=false":  {Error: 719, Sticky: &no},
		"--xid 79 --phase-new none --nvml none":          {XID: 79, PhaseNew: code(0), NVML: code(0)},
		"--xid 48 --phase-new 214 --nvml reset-required": {XID: 48, PhaseNew: code(214), NVML: code(16)},
		"--driver-mismatch":                              {DriverMismatch: true},
		"--fabric-not-ready --mem-limit 1.5Gi":           {FabricNotReady: true, MemLimit: 3 << 29},
		"--hang --window 10s-2m": {
			Hang: true, Trigger: cudafault.Trigger{WindowFrom: 10 * time.Second, WindowTo: 2 * time.Minute},
		},
		"--latency 5ms --jitter 1ms --seed 7 --window 1h-": {
			Latency: 5 * time.Millisecond, Jitter: time.Millisecond,
			Trigger: cudafault.Trigger{Seed: 7, WindowFrom: time.Hour},
		},
		"--hide-devices all":          {HideDevices: cudafault.AllDevices()},
		"--hide-devices 0,2-3":        {HideDevices: []int{0, 2, 3}},
		"--corrupt-d2h 0.001 --quiet": {CorruptD2H: 0.001, Quiet: true},
		"--error 2 --function cuMemAlloc* --after-calls 10 --after 1s --every 3 --probability 0.5 --max 4 --device 1 --rank 0 --process *.py": {
			Error: 2,
			Trigger: cudafault.Trigger{
				Function: "cuMemAlloc*", AfterCalls: 10, After: time.Second, Every: 3, Probability: 0.5, Max: 4,
			},
			Scope: cudafault.Scope{Devices: []int{1}, Rank: code(0), Process: "*.py"},
		},
		"--xid 79 --layer runtime": {XID: 79, Layer: cudafault.LayerRuntime},
	} {
		if want.Layer == "" {
			want.Layer = driver
		}
		got, err := typedFault(t, strings.Fields(line)...)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
}

// A value that cannot be meant is refused by the name of its flag. What the parts of a fault must not be together,
// cudafault tests.
func TestBadFaultFlags(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"":                               "no effect is specified",
		"--ttl 5m":                       "no effect is specified",
		"--xid 0":                        `"0" for --xid: must be an XID number`,
		"--xid -79":                      `"-79" for --xid`,
		"--xid nvlink":                   "nvlink",
		"--xid 62":                       "supported values: 13, 31",
		"--xid 154":                      "kubectl gpu-fault xid 154 NODE",
		"--xid 79 --error 719":           "cannot be used together",
		"--error lunch-failed":           "CUDA_ERROR_LAUNCH_FAILED (719)",
		"--error=":                       "--error: the CUDA error is empty",
		"--error 719 --phase-new x":      "--phase-new: ",
		"--error 719 --nvml gpu-lost":    "NVML_ERROR_GPU_IS_LOST (15)",
		"--error 719 --nvml=":            "--nvml: the NVML error is empty",
		"--error 2 --every 0":            `"0" for --every: must be 1 (each call)`,
		"--error 2 --max 0":              "for --max",
		"--error 2 --probability 0":      "for --probability",
		"--error 2 --probability 2":      "2 for --probability",
		"--error 2 --rank -1":            `"-1" for --rank: must be 0 or more`,
		"--error 2 --function=":          `"" for --function: must be the name`,
		"--error 2 --process=":           `"" for --process: must be a name`,
		"--error 2 --function cuFoo":     "matches no supported function",
		"--error 2 --after 5":            "missing unit",
		"--error 2 --window 10s":         "such as 10s-2m",
		"--error 2 --window 2m-10s":      "10s-2m?",
		"--error 2 --window -10s":        "such as 10s-2m",
		"--error 2 --window 1-2":         `invalid time "1"`,
		"--error 2 --window 0s-":         "the window has neither",
		"--error 2 --window 0s-0s":       "must be greater than 0",
		"--error 2 --device GPU-11":      "must be CUDA device numbers in the process",
		"--error 2 --device 3-1":         "end is before the start",
		"--error 2 --device 1,0-2":       "duplicate device 1",
		"--error 2 --device 64":          "must be 0 to 63",
		"--error 2 --device=":            "must be CUDA device numbers in the process",
		"--hide-devices some":            "or specify all",
		"--mem-limit 8GB":                "did you mean 8G?",
		"--mem-limit 80":                 "1Mi or more",
		"--latency 0s":                   "for --latency",
		"--corrupt-d2h 0":                "for --corrupt-d2h",
		"--corrupt-d2h x":                "x",
		"--xid 79 --layer cudart":        "supported values: driver, runtime",
		"--xid 79 --device 0 --every 10": "--sticky=false",
	} {
		if fault, err := typedFault(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, error %v, want one with %q", line, fault, err, want)
		}
	}
}

// `arm` without flags is the same fault again; with any it is another one.
func TestFaultFlagsGiven(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"": false, "--ttl 5m": false, "--xid 79": true, "--quiet": true, "--layer driver": true,
	} {
		cmd, f := withFaultFlags()
		if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		if f.given(cmd) != want {
			t.Errorf("%q: given is not %v", line, want)
		}
	}
}

func TestFaultFlagsComplete(t *testing.T) {
	t.Parallel()
	cmd, f := withFaultFlags()
	words := func(flag string) []string {
		complete, ok := cmd.GetFlagCompletionFunc(flag)
		if !ok {
			t.Fatalf("--%s has no completion", flag)
		}
		all, _ := complete(cmd, nil, "")
		return all
	}
	for flag, want := range map[string]string{
		"xid": "79\tGPU has fallen off the bus", "error": "launch-failed\t719", "nvml": "gpu-is-lost\t15",
		"phase-new": "none", "layer": "driver\tevery CUDA program",
		"function": "cuLaunchKernel", "hide-devices": "all",
	} {
		if !slices.Contains(words(flag), want) {
			t.Errorf("--%s does not complete to %q", flag, want)
		}
	}
	if slices.ContainsFunc(words("xid"), func(w string) bool { return strings.HasPrefix(w, "154\t") }) {
		t.Error("--xid completes to 154, which is refused")
	}
	f.layer = string(cudafault.LayerRuntime)
	if all := words("function"); !slices.Contains(all, "cudaLaunchKernel") || slices.Contains(all, "cuLaunchKernel") {
		t.Error("--function does not complete to the layer's functions")
	}
}

// The texts are what users read in --help.
func TestFaultFlagsHelp(t *testing.T) {
	t.Parallel()
	cmd, f := withFaultFlags()
	golden.Compare(t, "flags-help.golden", cmd.Long+"\n\n"+f.own.FlagUsagesWrapped(100))
}
