package cudafault

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
)

// checkLayer returns an error if the fault requires the driver layer but uses the runtime layer.
func (f Fault) checkLayer() error {
	switch {
	case f.layer() == LayerDriver:
		return nil
	case f.layer() != LayerRuntime:
		return fmt.Errorf("--layer %s: choose driver or runtime", f.Layer)
	case f.NVML != nil:
		return errors.New("--layer runtime: NVML is not of it, so that --nvml needs --layer driver")
	}
	var there Class
	for _, f := range hooked(LayerRuntime) {
		there |= f.classes
	}
	if e := f.effect(); f.trips() && f.Function == "" && e.classes&there == 0 {
		return fmt.Errorf("--layer runtime: the calls that %s fails (%s) are not hooked there; give --layer driver",
			cmp.Or(e.name, "this"), e.classes)
	}
	return nil
}

// checkTrigger returns an error if the trigger is invalid, can never trip, or has nothing to trip.
func (f Fault) checkTrigger() error {
	switch {
	case f.After < 0 || f.After%time.Millisecond != 0:
		return fmt.Errorf("--after %s: give whole milliseconds, 0 or more", f.After)
	case f.WindowFrom < 0 || f.WindowTo < 0 || f.WindowFrom%time.Millisecond != 0 || f.WindowTo%time.Millisecond != 0:
		return fmt.Errorf("--window %s: give whole milliseconds, 0 or more", f.window())
	case f.WindowTo != 0 && f.WindowTo < f.WindowFrom:
		return fmt.Errorf("--window %s ends before it begins: %s-%s?", f.window(), short(f.WindowTo),
			short(f.WindowFrom))
	case f.WindowTo != 0 && f.WindowTo == f.WindowFrom:
		return fmt.Errorf("--window %s has no length", f.window())
	case f.WindowTo != 0 && f.After >= f.WindowTo:
		return fmt.Errorf("--after %s is not before the end of --window %s: nothing would trip", f.After, f.window())
	case !(f.Probability >= 0 && f.Probability <= 1):
		return fmt.Errorf("--probability %g: give more than 0, and 1 (always) at most", f.Probability)
	}
	if set := f.Trigger.set(); set != "" && !f.trips() && f.NVML == nil {
		if f.DriverMismatch || f.FabricNotReady {
			return fmt.Errorf("%s: --%s holds from the start of a process, nothing trips. Leave it out", set, f.named())
		}
		if f.MemLimit > 0 || len(f.HideDevices) > 0 {
			return fmt.Errorf("%s: --mem-limit and --hide-devices hold all the time, nothing trips. Leave it out, "+
				"or give --error, --latency or --corrupt-d2h", set)
		}
	}
	if f.Seed != 0 && f.Probability == 0 && f.Jitter == 0 && f.CorruptD2H == 0 {
		return fmt.Errorf("--seed %d: nothing is left to chance; it goes with --probability, --jitter or --corrupt-d2h",
			f.Seed)
	}
	return nil
}

// checkSticky returns an error if a sticky error, which trips only once, is combined with a repeating trigger.
func (f Fault) checkSticky() error {
	e := f.effect()
	if f.Sticky != nil && e.running == 0 && !f.Hang {
		return errors.New("--sticky is about the errors of running processes: give --error or --xid")
	}
	if !e.sticky || e.running == 0 {
		return nil
	}
	for _, repeated := range []struct {
		is   bool
		flag string
	}{{f.Every > 1, fmt.Sprintf("--every %d", f.Every)}, {f.Max > 1, fmt.Sprintf("--max %d", f.Max)}} {
		if repeated.is {
			return fmt.Errorf("%s: %s leaves the context unusable until the process ends, so it trips once. Leave it out, "+
				"or give --sticky=false for calls that work in between, as hardware would not do it", repeated.flag,
				ErrorName(e.running))
		}
	}
	return nil
}

// checkGlobs returns an error if a glob is malformed or too long, or if the function glob matches nothing.
func (f Fault) checkGlobs() error {
	for _, glob := range []struct {
		flag, pattern string
		room          span
	}{{"--process", f.Process, atProcess}, {"--function", f.Function, atFunction}} {
		if err := checkGlob(glob.pattern); err != nil {
			return fmt.Errorf("%s %q: %w", glob.flag, glob.pattern, err)
		}
		if len(glob.pattern) >= glob.room.size {
			return fmt.Errorf("%s: %d bytes are more than the %d that fit; shorten it with *", glob.flag,
				len(glob.pattern), glob.room.size-1)
		}
		if strings.ContainsAny(glob.pattern, "\\/") ||
			strings.ContainsFunc(glob.pattern, func(r rune) bool { return r < ' ' }) {
			return fmt.Errorf("%s %q: give a name without path, or a glob with * ? and [a-z]", glob.flag, glob.pattern)
		}
	}
	return f.checkFunction()
}
