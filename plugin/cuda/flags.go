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

// faultHelp explains the flags of faultFlags by groups; --help lists them by name only.
const faultHelp = `What fails: --xid takes the errors that programs see of an XID, in processes that run and in those that start afterwards
("cuda profiles" lists them); --error names an error itself. --phase-new and --nvml change what new processes and NVML get, --sticky whether
the context is lost. --hang, --latency, --mem-limit, --hide-devices, --corrupt-d2h, --driver-mismatch and --fabric-not-ready are effects
without an error, or beside one.

When: each call that counts trips, unless --after-calls, --after, --window, --every, --probability or --max leave some out; where several
are given, all must agree. Which calls count follows from the error (launches, copies, allocations, ...), or from --function. The same --seed
trips the same calls.

Where: in all processes, unless --process, --rank or --device narrow it.`

// faultFlags are the flags that describe a fault.
type faultFlags struct {
	what                 cudafault.Fault // what flags write as it is
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

// addFlags adds the flags, and the text that explains them to the command's own.
func (f *faultFlags) addFlags(cmd *cobra.Command) {
	cmd.Long = strings.TrimSpace(cmd.Long + "\n\n" + faultHelp)
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	// What fails.
	own.IntVar(&f.what.XID, "xid", 0, "Fail as programs see it when the driver reports this XID")
	own.StringVar(&f.error, "error", "",
		"CUDA error that calls return, by name or number: launch-failed, CUDA_ERROR_ECC_UNCORRECTABLE, 719")
	own.StringVar(&f.phaseNew, "phase-new", "",
		"CUDA error of processes that start after the fault has hit one, in place of the profile's; none for none")
	own.StringVar(&f.nvml, "nvml", "",
		"NVML error after the fault has hit a process (gpu-is-lost, 15), in place of the profile's; none for none")
	own.BoolVar(&f.sticky, "sticky", false,
		"After the first error all calls of the process fail, until it ends (default: as hardware does with the error)")
	own.BoolVar(&f.what.DriverMismatch, "driver-mismatch", false,
		"New processes find a driver of another version: CUDA error 803, NVML 18")
	own.BoolVar(&f.what.FabricNotReady, "fabric-not-ready", false,
		"New processes find the fabric manager down: CUDA error 802")
	own.BoolVar(&f.what.Hang, "hang", false,
		"Calls that wait for the GPU, and copies, do not return until the fault ends; they sleep")
	own.DurationVar(&f.what.Latency, "latency", 0,
		"Make calls slower by this: copies, launches and calls that wait, or those that --xid, --error or --function mean")
	own.DurationVar(&f.what.Jitter, "jitter", 0, "Add up to this to --latency, evenly spread")
	own.StringVar(&f.memLimit, "mem-limit", "",
		"Memory that each device seems to have, such as 8Gi; allocations beyond it fail with out of memory")
	own.StringVar(&f.hideDevices, "hide-devices", "", "Devices that processes do not see, such as 0,2-3, or all")
	own.Float64Var(&f.what.CorruptD2H, "corrupt-d2h", 0,
		"Share of copies from the device in which a bit is flipped, above 0 to 1; each is told on stderr")
	// When.
	own.StringVar(&f.what.Function, "function", "",
		"Only calls of these driver functions count: a name or a glob, such as 'cuMemAlloc*'; with --error they fail themselves")
	own.Uint64Var(&f.what.AfterCalls, "after-calls", 0, "Let this many calls of each process pass first")
	own.DurationVar(&f.what.After, "after", 0,
		"Let calls pass for this long since arming, or since the first call of a process that starts later")
	own.Uint64Var(&f.what.Every, "every", 0, "Of the calls, trip each of this number: 10 is every tenth")
	own.Float64Var(&f.what.Probability, "probability", 0, "Trip a call with this probability, above 0 to 1")
	own.Uint64Var(&f.what.Seed, "seed", 0, "Chooses what is left to chance; the same seed trips the same calls")
	own.StringVar(&f.window, "window", "",
		"Trip only between these times since arming, such as 10s-2m, or 10s- for no end")
	own.Uint64Var(&f.what.Max, "max", 0, "Trip at most this often in each process")
	// Where.
	own.StringVar(&f.devices, "device", "", "Only on these devices, as CUDA counts them in the process, such as 0,2-3")
	own.IntVar(&f.rank, "rank", f.rank,
		"Only in this rank: RANK, OMPI_COMM_WORLD_RANK, JOB_COMPLETION_INDEX or LOCAL_RANK, the first that the process has")
	own.Lookup("rank").DefValue = "0" // which pflag does not show; -1 stands for "not given"
	own.StringVar(&f.what.Process, "process", "",
		"Only in processes of this name, a glob: of the program, the process or the script, such as 'train*.py'")
	own.StringVar(&f.layer, "layer", f.layer,
		"driver hits every CUDA program; runtime only calls of a dynamic CUDA runtime, for comparison")
	own.BoolVar(&f.what.Quiet, "quiet", false, "Do not tell the first trip of a process on its stderr")
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

// none stands for no error where a flag overrides a profile.
const none = "none"

// typed returns a name as it is easily typed: launch-failed.
func typed(name, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, prefix), "_", "-"))
}

// given reports whether any flag of the fault was typed.
func (f *faultFlags) given(*cobra.Command) bool {
	given := false
	f.own.VisitAll(func(flag *pflag.Flag) { given = given || flag.Changed })
	return given
}

// fault returns what the flags say, and valid. It fails where they ask for nothing.
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
				return cudafault.Fault{}, fmt.Errorf("--hide-devices %q: %w; or give all", f.hideDevices, err)
			}
		}
	}
	return fault, fault.Validate()
}

// checkZero refuses values that would read as "not given".
func (f *faultFlags) checkZero(flags *pflag.FlagSet) error {
	for _, flag := range []struct {
		name string
		zero bool
		why  string
	}{
		{"xid", f.what.XID <= 0, "give the number of an XID, such as 79"},
		{"every", f.what.Every == 0, "give 1 for each call, 10 for every tenth"},
		{"max", f.what.Max == 0, "give 1 or more, or leave it out for no limit"},
		{"probability", f.what.Probability == 0, "give more than 0, and 1 (always) at most"},
		{"corrupt-d2h", f.what.CorruptD2H == 0, "it is a rate, from above 0 to 1 (each copy)"},
		{"latency", f.what.Latency == 0, "give a time above 0, such as 5ms"},
		{"function", f.what.Function == "", "give the name of a driver function, or a glob such as 'cuMemAlloc*'"},
		{"process", f.what.Process == "", "give a name or a glob, such as 'python*'"},
		{"rank", f.rank < 0, "ranks count from 0"},
	} {
		if flags.Changed(flag.name) && flag.zero {
			return fmt.Errorf("--%s %s: %s", flag.name, flags.Lookup(flag.name).Value, flag.why)
		}
	}
	return nil
}

// override reads an error that stands in place of a profile's: nil if the flag was not given, 0 for none.
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

// parseWindow reads FROM-TO, or FROM- for no end.
func parseWindow(text string) (from, to time.Duration, err error) {
	first, last, found := strings.Cut(text, "-")
	if !found || first == "" {
		return 0, 0, errors.New("give two times since arming, such as 10s-2m, or 10s- for no end")
	}
	if from, err = time.ParseDuration(first); err != nil {
		return 0, 0, fmt.Errorf("%q is no time; give one with its unit, such as 30s or 2m", first)
	}
	if last == "" {
		if from == 0 {
			return 0, 0, errors.New("that is all the time: leave it out")
		}
		return from, 0, nil
	}
	if to, err = time.ParseDuration(last); err != nil || to == 0 {
		return 0, 0, fmt.Errorf("%q is no time above 0; give one with its unit, such as 30s or 2m", last)
	}
	return from, to, nil
}

// parseDevices reads ordinals and ranges of them: 0,2-3.
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
			return nil, errors.New("give devices as CUDA counts them in the process, from 0: 0 or 0,2-3")
		case to < from:
			return nil, fmt.Errorf("the range %s goes backwards", part)
		case to >= uint64(len(cudafault.AllDevices())):
			return nil, fmt.Errorf("CUDA counts devices from 0, and %d is the last that can be named",
				len(cudafault.AllDevices())-1)
		}
		for d := int(from); d <= int(to); d++ {
			if slices.Contains(list, d) {
				return nil, fmt.Errorf("device %d is there twice", d)
			}
			list = append(list, d)
		}
	}
	return list, nil
}
