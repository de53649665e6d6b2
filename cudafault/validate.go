package cudafault

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Validate returns an error if the requested fault is invalid. The error says how to fix the request. Validate needs no
// cluster.
func (f Fault) Validate() error {
	for _, check := range []func(Fault) error{
		Fault.checkWhat, Fault.checkProfile, Fault.checkNew, Fault.checkHang, Fault.checkLatency, Fault.checkDevices,
		Fault.checkLayer,
		Fault.checkTrigger, Fault.checkSticky, Fault.checkGlobs, Fault.checkNothing,
	} {
		if err := check(f); err != nil {
			return err
		}
	}
	return nil
}

// checkWhat returns an error if more than one option sets the errors.
func (f Fault) checkWhat() error {
	var given []string
	for _, source := range []struct {
		is   bool
		flag string
	}{
		{f.XID != 0, "--xid"}, {f.Error != 0, "--error"}, {f.DriverMismatch, "--driver-mismatch"},
		{f.FabricNotReady, "--fabric-not-ready"},
	} {
		if source.is {
			given = append(given, source.flag)
		}
	}
	// Error is for running processes, and the named profile is for new ones.
	both := f.Error != 0 && (f.DriverMismatch != f.FabricNotReady) && f.XID == 0
	if len(given) > 1 && !both {
		return fmt.Errorf("%s cannot be used together: each sets the errors that calls return", and(given))
	}
	if _, known := findError(f.Error); f.Error != 0 && !known {
		return fmt.Errorf("invalid value %d for --error: not a CUDA error", f.Error)
	}
	return nil
}

// checkProfile returns an error unless the XID is known and affects programs.
func (f Fault) checkProfile() error {
	if f.XID == 0 {
		return nil
	}
	p, ok := FindProfile(f.XID)
	if !ok {
		var known []string
		for _, p := range Profiles() {
			if p.XID != 0 && !p.None() {
				known = append(known, p.Name)
			}
		}
		return fmt.Errorf("--xid %d: the CUDA errors that this XID causes are unknown; supported values: %s. For "+
			"another XID, specify the error, such as --error launch-failed",
			f.XID, strings.Join(known, ", "))
	}
	if p.None() {
		return fmt.Errorf("XID %d causes no CUDA error: %s. To write its line to the kernel log: kubectl gpu-fault xid %d NODE",
			f.XID, p.Note, f.XID)
	}
	return nil
}

// checkNew returns an error if the errors for new processes do not follow from an effect on running processes.
func (f Fault) checkNew() error {
	if f.PhaseNew != nil {
		code := *f.PhaseNew
		if _, known := findError(code); code != 0 && !known {
			return fmt.Errorf("invalid value %d for --phase-new: not a CUDA error", code)
		}
		switch {
		case f.DriverMismatch || f.FabricNotReady:
			return fmt.Errorf("--phase-new and --%s cannot be used together: each sets the errors for new "+
				"processes", f.named())
		case f.XID == 0 && f.Error == 0 && !f.Hang:
			return fmt.Errorf("--phase-new requires --xid, --error or --hang: it applies to processes that start "+
				"after the fault has tripped in another. For processes that fail from the start, specify --error %d "+
				"--function cuInit", cmp.Or(code, codeNoDevice))
		}
	}
	if f.NVML != nil {
		code := *f.NVML
		if _, known := findNVML(code); code != 0 && !known {
			return fmt.Errorf("invalid value %d for --nvml: not an NVML error", code)
		}
		if f.DriverMismatch {
			return errors.New("--nvml and --driver-mismatch cannot be used together: each sets the errors that NVML " +
				"returns")
		}
		if !f.trips() && f.profileName() == "" && f.Trigger.set() != "" {
			return fmt.Errorf("%s requires an effect on CUDA calls, such as --error: without one, the fault never trips, and NVML never fails",
				f.Trigger.set())
		}
	}
	return nil
}

// checkHang returns an error if Hang is combined with an effect that requires the call to return.
func (f Fault) checkHang() error {
	switch {
	case !f.Hang:
		return nil
	case f.Error != 0:
		return errors.New(
			"--hang and --error cannot be used together: a call that hangs returns no error; --latency with --error makes calls slow before they fail",
		)
	case f.Latency != 0:
		return errors.New("--hang and --latency cannot be used together: a call that hangs never returns")
	case f.CorruptD2H != 0:
		return errors.New("--hang and --corrupt-d2h cannot be used together: a copy that hangs copies nothing")
	case f.Sticky != nil && *f.Sticky:
		return errors.New("--hang and --sticky cannot be used together: a call that hangs returns no error")
	}
	return nil
}

func (f Fault) checkLatency() error {
	switch {
	case f.Latency < 0:
		return fmt.Errorf("invalid value %s for --latency: must be greater than 0", f.Latency)
	case f.Latency > math.MaxUint32*time.Microsecond:
		return fmt.Errorf("invalid value %s for --latency: must be at most %s; for calls that never return, use --hang",
			f.Latency, (math.MaxUint32 * time.Microsecond).Truncate(time.Minute))
	case f.Jitter < 0 || f.Jitter > math.MaxUint32*time.Microsecond:
		return fmt.Errorf("invalid value %s for --jitter: must be 0s to 1h", f.Jitter)
	case f.Jitter > 0 && f.Latency == 0:
		return fmt.Errorf(
			"--jitter requires --latency, to which it is added; for jitter alone, specify --latency 1us --jitter %s",
			f.Jitter,
		)
	case !(f.CorruptD2H >= 0 && f.CorruptD2H <= 1):
		return fmt.Errorf("invalid value %g for --corrupt-d2h: must be greater than 0 and at most 1 (every copy)", f.CorruptD2H)
	case f.MemLimit > 0 && f.MemLimit < 1<<20:
		return fmt.Errorf("invalid value %s for --mem-limit: must be 1Mi or more, such as 8Gi",
			FormatSize(f.MemLimit))
	}
	return nil
}

func (f Fault) checkDevices() error {
	for _, list := range []struct {
		flag    string
		devices []int
	}{{"--device", f.Devices}, {"--hide-devices", f.HideDevices}} {
		for _, d := range list.devices {
			if d < 0 || d >= maxDevices {
				return fmt.Errorf("invalid value %d for %s: must be 0 to %d", d, list.flag, maxDevices-1)
			}
		}
	}
	if len(f.HideDevices) == maxDevices && (f.trips() || f.MemLimit > 0 || len(f.Devices) > 0) {
		return errors.New("--hide-devices all cannot be used with other effects: it leaves no device that could fail")
	}
	for _, d := range f.Devices {
		if slices.Contains(f.HideDevices, d) {
			return fmt.Errorf("device %d is in both --device and --hide-devices: no call reaches a hidden device",
				d)
		}
	}
	if len(f.Nodes) > maxNodes {
		return fmt.Errorf("too many nodes: %d, but the maximum is %d; to affect all nodes, specify none", len(f.Nodes),
			maxNodes)
	}
	if f.Rank != nil && (*f.Rank < 0 || *f.Rank > math.MaxInt32) {
		return fmt.Errorf("invalid value %d for --rank: must be 0 or more", *f.Rank)
	}
	return nil
}

// checkNothing returns an error if the fault has no effect.
func (f Fault) checkNothing() error {
	if f.profileName() == "" && !f.trips() && f.NVML == nil && f.MemLimit == 0 && len(f.HideDevices) == 0 {
		return errors.New(
			"no effect is specified: use --xid 79, --error launch-failed, --mem-limit 8Gi, --latency 5ms, --hang or another effect",
		)
	}
	return nil
}

// trips reports whether the fault has an effect that depends on the trigger.
func (f Fault) trips() bool {
	if p, ok := NamedProfile(f.profileName()); ok && p.Classes != 0 {
		return true
	}
	return f.Error != 0 || f.Hang || f.Latency != 0 || f.CorruptD2H != 0
}

// named returns the name of the flag that selects the fault's profile if the profile has no XID.
func (f Fault) named() string {
	if f.DriverMismatch {
		return driverMismatch
	}
	return fabricNotReady
}

// set returns the trigger flags that are set, or "".
func (t Trigger) set() string {
	var flags []string
	for _, flag := range []struct {
		is   bool
		name string
	}{
		{t.Function != "", "--function"}, {t.AfterCalls != 0, "--after-calls"}, {t.After != 0, "--after"},
		{t.Every != 0, "--every"},
		{t.Probability != 0, "--probability"}, {t.WindowFrom != 0 || t.WindowTo != 0, "--window"},
		{t.Max != 0, "--max"},
	} {
		if flag.is {
			flags = append(flags, flag.name)
		}
	}
	return and(flags)
}

// and joins words: "a, b and c".
func and(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
