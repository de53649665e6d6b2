package diagnose

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// clock is one point in time, as shown by all clocks on the node.
type clock struct {
	now time.Time
	// uptime includes the time for which the machine was suspended. The start times of processes use this clock.
	uptime time.Duration
	// awake excludes the time for which the machine was suspended. The timestamps in the kernel log are close to this
	// clock.
	awake time.Duration
}

func readClock(proc string) clock {
	c := clock{now: time.Now(), awake: monotonic()}
	raw, _ := os.ReadFile(proc + "/uptime")
	first, _, _ := strings.Cut(string(raw), " ")
	if seconds, err := strconv.ParseFloat(strings.TrimSpace(first), 64); err == nil && seconds >= 0 && seconds < 1e9 {
		c.uptime = time.Duration(seconds * float64(time.Second))
	}
	if c.awake == 0 {
		c.awake = c.uptime
	}
	return c
}

// at returns the time of a kernel log record, or the zero time if it is unknown.
func (c clock) at(uptime time.Duration) time.Time {
	if c.awake <= 0 {
		return time.Time{}
	}
	return c.now.Add(uptime - c.awake).UTC().Truncate(time.Microsecond)
}

// ticks is the unit of times in /proc/PID/stat. It is a hundredth of a second on all supported architectures (USER_HZ).
const ticks = time.Second / 100

// startOf returns the start time of a process, or the zero time if it is unknown. The start time is field 22 of
// /proc/PID/stat, the 20th after the name.
func (c clock) startOf(stat string) time.Time {
	_, after, found := cutLast(stat, ")")
	fields := strings.Fields(after)
	if !found || len(fields) < 20 || c.uptime <= 0 {
		return time.Time{}
	}
	began, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil || began < 0 || began > int64(1<<62/ticks) {
		return time.Time{}
	}
	return c.now.Add(time.Duration(began)*ticks - c.uptime).UTC().Truncate(10 * time.Millisecond)
}

func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}
