package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-fault/kubectl-gpu-fault/cudafault"
)

// faultHelp describes the flags in faultFlags by group, because --help sorts them by name.
const faultHelp = `What fails: --xid selects the errors that an XID causes in running processes and in new ones ("cuda profiles"
lists them); --error selects a single error. --phase-new overrides the errors of new processes, and --nvml those of NVML; --sticky sets whether the context is
lost. --hang, --latency, --mem-limit, --hide-devices, --corrupt-d2h, --driver-mismatch and --fabric-not-ready work alone or in addition to an
error.

When: each matching call triggers the fault, unless --after-calls, --after, --window, --every, --probability or --max excludes it; if you
specify several, a call must satisfy all of them. The error determines which calls match (launches, copies, allocations, ...), unless you specify --function.
With the same --seed, the same calls trigger the fault.

Where: in all processes, unless you specify --process, --rank or --device.`

// faultFlags are the flags that describe a fault.
type faultFlags struct {
	what                 cudafault.Fault // set directly by the flags
	error                string
	phaseNew, nvml       string
	sticky               bool
	window, memLimit     string
	devices, hideDevices string
	rank                 int
	layer                string

	own *pflag.FlagSet // all these flags, and no others of the command
}

func newFaultFlags() *faultFlags {
	return &faultFlags{rank: cudafault.AllRanks, layer: string(cudafault.LayerDriver)}
}

// addFlags adds the flags, and appends faultHelp to the command's description.
func (f *faultFlags) addFlags(cmd *cobra.Command) {
	cmd.Long = strings.TrimSpace(cmd.Long + "\n\n" + faultHelp)
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	// What fails.
	own.IntVar(&f.what.XID, "xid", 0, "XID whose effects on programs are simulated")
	own.StringVar(&f.error, "error", "",
		"CUDA error that calls return, as a name or number: launch-failed, CUDA_ERROR_ECC_UNCORRECTABLE, 719")
	own.StringVar(&f.phaseNew, "phase-new", "",
		"CUDA error that replaces the profile's error in processes that start after the fault has hit a process; "+
			"none for no error")
	own.StringVar(&f.nvml, "nvml", "",
		"NVML error that replaces the profile's error after the fault has hit a process, such as gpu-is-lost or 15; "+
			"none for no effect on NVML")
	own.BoolVar(&f.sticky, "sticky", false,
		"Fail all calls of a process after its first error, until it exits (default: depends on the error, as on hardware)")
	own.BoolVar(&f.what.DriverMismatch, "driver-mismatch", false,
		"Simulate a driver version mismatch in new processes: CUDA error 803, NVML error 18")
	own.BoolVar(&f.what.FabricNotReady, "fabric-not-ready", false,
		"Simulate a stopped fabric manager in new processes: CUDA error 802")
	own.BoolVar(&f.what.Hang, "hang", false,
		"Make copies, and calls that wait for the GPU, hang until the fault ends")
	own.DurationVar(&f.what.Latency, "latency", 0,
		"Delay of each copy, launch and waiting call, or of each call selected by --xid, --error or --function")
	own.DurationVar(&f.what.Jitter, "jitter", 0, "Maximum random delay added to --latency, uniformly distributed")
	own.StringVar(&f.memLimit, "mem-limit", "",
		"Apparent memory of each device, such as 8Gi; allocations beyond it fail with an out-of-memory error")
	own.StringVar(&f.hideDevices, "hide-devices", "", "Devices hidden from processes, such as 0,2-3, or all")
	own.Float64Var(&f.what.CorruptD2H, "corrupt-d2h", 0,
		"Fraction of device-to-host copies in which a bit is flipped, above 0, up to 1; each flip is logged to stderr")
	// When.
	own.StringVar(&f.what.Function, "function", "",
		"Driver functions whose calls are selected, as a name or glob such as 'cuMemAlloc*'; with --error, these "+
			"calls fail")
	own.Uint64Var(&f.what.AfterCalls, "after-calls", 0, "Number of calls in each process before the fault starts")
	own.DurationVar(&f.what.After, "after", 0,
		"Time before the fault starts, counted from arming or, in processes that start later, from their first call")
	own.Uint64Var(&f.what.Every, "every", 0, "Trigger the fault only on every Nth call")
	own.Float64Var(&f.what.Probability, "probability", 0, "Probability that a call triggers the fault, above 0, up to 1")
	own.Uint64Var(&f.what.Seed, "seed", 0, "Random seed; with the same seed, the same calls trigger the fault")
	own.StringVar(&f.window, "window", "",
		"Time range after arming in which calls trigger the fault, such as 10s-2m, or 10s- for no end")
	own.Uint64Var(&f.what.Max, "max", 0, "Maximum number of times that each process triggers the fault")
	// Where.
	own.StringVar(&f.devices, "device", "",
		"Devices that have the fault, by their CUDA device number in the process, such as 0,2-3")
	own.IntVar(&f.rank, "rank", f.rank,
		"Rank that has the fault, from the first of these variables that is set: RANK, OMPI_COMM_WORLD_RANK, JOB_COMPLETION_INDEX, LOCAL_RANK")
	own.Lookup("rank").DefValue = "0" // hidden by pflag; -1 means "not set"
	own.StringVar(&f.what.Process, "process", "",
		"Processes that have the fault: a glob for the name of the program, process or script, such as 'train*.py'")
	own.StringVar(&f.layer, "layer", f.layer,
		"driver (every CUDA program) or runtime (only calls to a dynamically linked CUDA runtime, for comparison)")
	own.BoolVar(&f.what.Quiet, "quiet", false, "Do not log to stderr when a process first triggers the fault")
	f.own = own
	cmd.Flags().AddFlagSet(own)
	f.complete(cmd)
}

func (f *faultFlags) complete(cmd *cobra.Command) {
	const noFiles = cobra.ShellCompDirectiveNoFileComp
	var xids []cobra.Completion
	for _, p := range cudafault.Profiles() {
		if p.XID != 0 && !p.None() {
			xids = append(xids, cobra.CompletionWithDesc(p.Name, p.Description))
		}
	}
	var codes []cobra.Completion
	for _, code := range cudafault.Errors() {
		codes = append(codes,
			cobra.CompletionWithDesc(typed(cudafault.ErrorName(code), "CUDA_ERROR_"), strconv.Itoa(code)))
	}
	var nvml []cobra.Completion
	for _, code := range cudafault.NVMLErrors() {
		nvml = append(nvml,
			cobra.CompletionWithDesc(typed(cudafault.NVMLErrorName(code), "NVML_ERROR_"), strconv.Itoa(code)))
	}
	for name, words := range map[string][]cobra.Completion{
		"xid": xids, "error": codes, "phase-new": slices.Concat(codes, []cobra.Completion{none}),
		"nvml": slices.Concat(nvml, []cobra.Completion{none}),
		"layer": {
			cobra.CompletionWithDesc(string(cudafault.LayerDriver), "every CUDA program"),
			cobra.CompletionWithDesc(string(cudafault.LayerRuntime), "for comparison"),
		},
		"hide-devices": {"all", "0"}, "device": {"0"},
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, noFiles))
	}
	_ = cmd.RegisterFlagCompletionFunc("function",
		func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return cudafault.Functions(cudafault.Layer(f.layer)), noFiles
		})
}

// none is the flag value that overrides a profile's error with no error.
const none = "none"

// typed returns the form in which users type a name, such as launch-failed.
func typed(name, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, prefix), "_", "-"))
}

// given reports whether any fault flag was specified.
func (f *faultFlags) given(*cobra.Command) bool {
	given := false
	f.own.VisitAll(func(flag *pflag.Flag) { given = given || flag.Changed })
	return given
}

// fault returns the fault that the flags describe. It fails if the fault is invalid or empty.
func (f *faultFlags) fault(cmd *cobra.Command) (cudafault.Fault, error) {
	if err := f.checkZero(cmd.Flags()); err != nil {
		return cudafault.Fault{}, err
	}
	fault := f.what
	fault.Layer = cudafault.Layer(f.layer)
	var err error
	if cmd.Flags().Changed("error") {
		if fault.Error, err = cudafault.ParseError(f.error); err != nil {
			return cudafault.Fault{}, fmt.Errorf("--error: %w", err)
		}
	}
	if fault.PhaseNew, err = override(cmd, "phase-new", f.phaseNew, cudafault.ParseError); err != nil {
		return cudafault.Fault{}, err
	}
	if fault.NVML, err = override(cmd, "nvml", f.nvml, cudafault.ParseNVMLError); err != nil {
		return cudafault.Fault{}, err
	}
	if cmd.Flags().Changed("sticky") {
		fault.Sticky = &f.sticky
	}
	if cmd.Flags().Changed("rank") {
		fault.Rank = &f.rank
	}
	if cmd.Flags().Changed("window") {
		if fault.WindowFrom, fault.WindowTo, err = parseWindow(f.window); err != nil {
			return cudafault.Fault{}, fmt.Errorf("--window %q: %w", f.window, err)
		}
	}
	if cmd.Flags().Changed("mem-limit") {
		if fault.MemLimit, err = cudafault.ParseSize(f.memLimit); err != nil {
			return cudafault.Fault{}, fmt.Errorf("--mem-limit: %w", err)
		}
	}
	if cmd.Flags().Changed("device") {
		if fault.Devices, err = parseDevices(f.devices); err != nil {
			return cudafault.Fault{}, fmt.Errorf("--device %q: %w", f.devices, err)
		}
	}
	if cmd.Flags().Changed("hide-devices") {
		fault.HideDevices = cudafault.AllDevices()
		if f.hideDevices != "all" {
			if fault.HideDevices, err = parseDevices(f.hideDevices); err != nil {
				return cudafault.Fault{}, fmt.Errorf("--hide-devices %q: %w; or specify all", f.hideDevices, err)
			}
		}
	}
	return fault, fault.Validate()
}

// checkZero rejects flag values that mean "not set" in a fault.
func (f *faultFlags) checkZero(flags *pflag.FlagSet) error {
	for _, flag := range []struct {
		name string
		zero bool
		why  string
	}{
		{"xid", f.what.XID <= 0, "must be an XID number, such as 79"},
		{"every", f.what.Every == 0, "must be 1 (each call) or more, such as 10 for every tenth call"},
		{"max", f.what.Max == 0, "must be 1 or more; omit the flag for no limit"},
		{"probability", f.what.Probability == 0, "must be above 0 and at most 1 (always)"},
		{"corrupt-d2h", f.what.CorruptD2H == 0, "must be above 0 and at most 1 (each copy)"},
		{"latency", f.what.Latency == 0, "must be greater than 0, such as 5ms"},
		{"function", f.what.Function == "", "must be the name of a driver function, or a glob such as 'cuMemAlloc*'"},
		{"process", f.what.Process == "", "must be a name or a glob, such as 'python*'"},
		{"rank", f.rank < 0, "must be 0 or more"},
	} {
		if flags.Changed(flag.name) && flag.zero {
			return fmt.Errorf("invalid value %q for --%s: %s", flags.Lookup(flag.name).Value, flag.name, flag.why)
		}
	}
	return nil
}

// override parses an error that overrides a profile's error. It returns nil if the flag is not set, and 0 if the flag
// specifies no error.
func override(cmd *cobra.Command, flag, text string, parse func(string) (int, error)) (*int, error) {
	if !cmd.Flags().Changed(flag) {
		return nil, nil
	}
	if text == none {
		return new(int), nil
	}
	code, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return &code, nil
}

// parseWindow parses FROM-TO, or FROM- for no end.
func parseWindow(text string) (from, to time.Duration, err error) {
	first, last, found := strings.Cut(text, "-")
	if !found || first == "" {
		return 0, 0, errors.New("must be a range of times since arming, such as 10s-2m, or 10s- for no end")
	}
	if from, err = time.ParseDuration(first); err != nil {
		return 0, 0, fmt.Errorf("invalid time %q: must have a unit, such as 30s or 2m", first)
	}
	if last == "" {
		if from == 0 {
			return 0, 0, errors.New("the window has neither a beginning nor an end; omit the flag")
		}
		return from, 0, nil
	}
	if to, err = time.ParseDuration(last); err != nil || to == 0 {
		return 0, 0, fmt.Errorf("invalid time %q: must be greater than 0 and have a unit, such as 30s or 2m", last)
	}
	return from, to, nil
}

// parseDevices parses device ordinals and ranges, such as 0,2-3.
func parseDevices(text string) ([]int, error) {
	var list []int
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		switch {
		case err != nil || err2 != nil:
			return nil, errors.New("must be CUDA device numbers in the process, such as 0 or 0,2-3")
		case to < from:
			return nil, fmt.Errorf("invalid range %s: the end is before the start", part)
		case to >= uint64(len(cudafault.AllDevices())):
			return nil, fmt.Errorf("device numbers must be 0 to %d",
				len(cudafault.AllDevices())-1)
		}
		for d := int(from); d <= int(to); d++ {
			if slices.Contains(list, d) {
				return nil, fmt.Errorf("duplicate device %d", d)
			}
			list = append(list, d)
		}
	}
	return list, nil
}
