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
		return fmt.Errorf("invalid value %q for --layer: supported values: driver, runtime", f.Layer)
	case f.NVML != nil:
		return errors.New("--nvml requires --layer driver")
	}
	var there Class
	for _, f := range hooked(LayerRuntime) {
		there |= f.classes
	}
	if e := f.effect(); f.trips() && f.Function == "" && e.classes&there == 0 {
		return fmt.Errorf("%s requires --layer driver: it affects calls that --layer runtime does not intercept (%s)",
			cmp.Or(e.name, "this"), e.classes)
	}
	return nil
}

// checkTrigger returns an error if the trigger is invalid, can never trip, or has nothing to trip.
func (f Fault) checkTrigger() error {
	switch {
	case f.After < 0 || f.After%time.Millisecond != 0:
		return fmt.Errorf("invalid value %s for --after: must be 0 or more, in whole milliseconds", f.After)
	case f.WindowFrom < 0 || f.WindowTo < 0 || f.WindowFrom%time.Millisecond != 0 || f.WindowTo%time.Millisecond != 0:
		return fmt.Errorf("invalid value %s for --window: must be 0 or more, in whole milliseconds", f.window())
	case f.WindowTo != 0 && f.WindowTo < f.WindowFrom:
		return fmt.Errorf("invalid value %s for --window: the window ends before it begins; did you mean "+
			"%s-%s?", f.window(), short(f.WindowTo),
			short(f.WindowFrom))
	case f.WindowTo != 0 && f.WindowTo == f.WindowFrom:
		return fmt.Errorf("invalid value %s for --window: the window is empty", f.window())
	case f.WindowTo != 0 && f.After >= f.WindowTo:
		return fmt.Errorf("--after %s is not before the end of --window %s: the fault would never trip", f.After, f.window())
	case !(f.Probability >= 0 && f.Probability <= 1):
		return fmt.Errorf("invalid value %g for --probability: must be greater than 0 and at most 1", f.Probability)
	}
	if set := f.Trigger.set(); set != "" && !f.trips() && f.NVML == nil {
		if f.DriverMismatch || f.FabricNotReady {
			return fmt.Errorf("%s cannot be used with --%s, which applies from the start of a process", set, f.named())
		}
		if f.XID != 0 {
			return fmt.Errorf("%s cannot be used with --xid %d: no CUDA call fails, so nothing can trip", set, f.XID)
		}
		if f.MemLimit > 0 || len(f.HideDevices) > 0 {
			return fmt.Errorf("%s requires an effect that can trip, such as --error, --latency or --corrupt-d2h: "+
				"--mem-limit and --hide-devices always apply", set)
		}
	}
	if f.Seed != 0 && f.Probability == 0 && f.Jitter == 0 && f.CorruptD2H == 0 {
		return fmt.Errorf("--seed requires --probability, --jitter or --corrupt-d2h: nothing else is random")
	}
	return nil
}

// checkSticky returns an error if a sticky error, which trips only once, is combined with a repeating trigger.
func (f Fault) checkSticky() error {
	e := f.effect()
	if f.Sticky != nil && e.running == 0 && !f.Hang {
		return errors.New("--sticky requires --error or --xid")
	}
	if !e.sticky || e.running == 0 {
		return nil
	}
	for _, repeated := range []struct {
		is   bool
		flag string
	}{{f.Every > 1, fmt.Sprintf("--every %d", f.Every)}, {f.Max > 1, fmt.Sprintf("--max %d", f.Max)}} {
		if repeated.is {
			return fmt.Errorf("%s cannot be used with %s: this error makes the context unusable until the process exits. "+
				"To let calls between the failures succeed, unlike on real hardware, specify "+
				"--sticky=false", repeated.flag,
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
			return fmt.Errorf("invalid value %q for %s: %w", glob.pattern, glob.flag, err)
		}
		if len(glob.pattern) >= glob.room.size {
			return fmt.Errorf("%s is too long: %d bytes, must be at most %d; shorten it with *", glob.flag,
				len(glob.pattern), glob.room.size-1)
		}
		if strings.ContainsAny(glob.pattern, "\\/") ||
			strings.ContainsFunc(glob.pattern, func(r rune) bool { return r < ' ' }) {
			return fmt.Errorf("invalid value %q for %s: must be a name without a path, or a glob with * ? and [a-z]", glob.pattern, glob.flag)
		}
	}
	return f.checkFunction()
}
