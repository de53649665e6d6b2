package cudafault

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/count"
)

// Summary describes the effect of the fault in one line, such as "XID 79: running processes 999 (sticky), new ones 100
// and NVML 15". The numbers are CUDA and NVML codes. The fault must be valid.
func (f Fault) Summary() string {
	e := f.effect()
	var parts []string
	if what := e.summary(); what != "" {
		if e.name != "" {
			what = e.name + ": " + what
		}
		parts = append(parts, what)
	}
	if f.MemLimit > 0 {
		parts = append(parts, "at most "+FormatSize(f.MemLimit)+" of memory on each device")
	}
	switch len(f.HideDevices) {
	case 0:
	case maxDevices:
		parts = append(parts, "all devices hidden")
	default:
		parts = append(parts, devices(f.HideDevices)+" hidden")
	}
	if f.CorruptD2H > 0 {
		parts = append(parts, fmt.Sprintf("bits flipped in copies from devices at a rate of %g", f.CorruptD2H))
	}
	line := strings.Join(parts, "; ")
	for _, more := range []string{f.when(), f.where()} {
		if more != "" {
			line += "; " + more
		}
	}
	return line
}

func (e effect) summary() string {
	running := ""
	switch {
	case e.running != 0:
		running = strconv.Itoa(e.running)
		if e.latency > 0 {
			running += " after " + e.delay()
		}
		var traits []string
		if e.sticky {
			traits = append(traits, "sticky")
		}
		if e.fallback != 0 {
			traits = append(traits, fmt.Sprintf("%d before CUDA %s", e.fallback, driverVersion(e.minDriver)))
		}
		if len(traits) > 0 {
			running += " (" + strings.Join(traits, "; ") + ")"
		}
		if e.hang != 0 {
			running += ", then hang"
		}
	case e.hang != 0:
		running = "hang"
	case e.latency > 0:
		running = "wait " + e.delay() + " in each call"
	}
	who := "running processes"
	if e.counted == ClassInit {
		who = "new processes" // a process calls cuInit only once
	}
	var parts []string
	if running != "" {
		parts = append(parts, who+" "+running)
	}
	if e.fresh != 0 {
		who := "new ones"
		if running == "" {
			who = "new processes"
		}
		parts = append(parts, fmt.Sprintf("%s %d", who, e.fresh))
	}
	text := strings.Join(parts, ", ")
	for _, nvml := range []struct {
		code int
		name string
	}{{e.nvml, "NVML"}, {e.nvmlInit, "nvmlInit"}} {
		switch {
		case nvml.code != 0 && text == "":
			text = fmt.Sprintf("%s %d", nvml.name, nvml.code)
		case nvml.code != 0:
			text += fmt.Sprintf(" and %s %d", nvml.name, nvml.code)
		}
	}
	if noticed := e.noticed(); noticed != "" {
		if text != "" {
			text += "; "
		}
		text += noticed
	}
	return text
}

// noticed describes the event that NVML sends, and what NVML's counters report afterwards.
func (e effect) noticed() string {
	var parts []string
	if e.nvmlXID != 0 {
		parts = append(parts, "NVML event")
	}
	if e.nvmlECC != 0 {
		parts = append(parts, count.Of(e.nvmlECC, "ECC error"))
	}
	for i, text := range []string{"1 row remapped", "reset pending", "remapping failed"} { // as rowNames
		if e.nvmlRows&(1<<i) != 0 {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, ", ")
}

func (e effect) delay() string {
	if e.jitter > 0 {
		return short(e.latency) + " to " + short(e.latency+e.jitter)
	}
	return short(e.latency)
}

// when describes the trigger.
func (f Fault) when() string {
	var parts []string
	if f.Function != "" {
		parts = append(parts, "in calls of "+f.Function)
	}
	if f.AfterCalls > 0 {
		parts = append(parts, "after "+count.Of(f.AfterCalls, "call"))
	}
	if f.After > 0 {
		parts = append(parts, "after "+short(f.After))
	}
	if f.Every > 1 {
		parts = append(parts, fmt.Sprintf("every %s call", ordinal(f.Every)))
	}
	if f.Probability > 0 && f.Probability < 1 {
		parts = append(parts, fmt.Sprintf("with probability %g", f.Probability))
	}
	if f.WindowFrom > 0 || f.WindowTo > 0 {
		parts = append(parts, "in the window "+f.window())
	}
	if f.Max > 0 {
		parts = append(parts, fmt.Sprintf("%d times at most", f.Max))
	}
	return strings.Join(parts, ", ")
}

// where describes the scope.
func (f Fault) where() string {
	var parts []string
	if len(f.Devices) > 0 {
		parts = append(parts, "on "+devices(f.Devices))
	}
	if f.Rank != nil {
		parts = append(parts, fmt.Sprintf("in rank %d", *f.Rank))
	}
	if f.Process != "" {
		parts = append(parts, "in processes named "+f.Process)
	}
	if len(f.Nodes) > 0 {
		parts = append(parts, "on nodes "+strings.Join(f.Nodes, ","))
	}
	if f.layer() == LayerRuntime {
		parts = append(parts, "only through a dynamically linked CUDA runtime")
	}
	return strings.Join(parts, ", ")
}

func (t Trigger) window() string {
	if t.WindowTo == 0 {
		return short(t.WindowFrom) + "-"
	}
	return short(t.WindowFrom) + "-" + short(t.WindowTo)
}

func devices(list []int) string {
	words := make([]string, len(list))
	for i, d := range list {
		words[i] = strconv.Itoa(d)
	}
	if len(list) == 1 {
		return "device " + words[0]
	}
	return "devices " + strings.Join(words, ",")
}

// driverVersion formats the result of cuDriverGetVersion, such as 12080 as 12.8.
func driverVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

func ordinal(n uint64) string {
	switch {
	case n%10 == 1 && n%100 != 11:
		return fmt.Sprintf("%dst", n)
	case n%10 == 2 && n%100 != 12:
		return fmt.Sprintf("%dnd", n)
	case n%10 == 3 && n%100 != 13:
		return fmt.Sprintf("%drd", n)
	default:
		return fmt.Sprintf("%dth", n)
	}
}

// short formats a duration without trailing zero units: 2m, not 2m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
