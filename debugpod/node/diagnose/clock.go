package diagnose

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// clock is one moment by all clocks of the node.
type clock struct {
	now time.Time
	// uptime counts the time in which the machine slept; starts of processes are counted so.
	uptime time.Duration
	// awake does not, and is near to how records of the kernel log are counted.
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

// at returns the time of a record of the kernel log; zero when it cannot be told.
func (c clock) at(uptime time.Duration) time.Time {
	if c.awake <= 0 {
		return time.Time{}
	}
	return c.now.Add(uptime - c.awake).UTC().Truncate(time.Microsecond)
}

// ticks are those of /proc/PID/stat, which user space sees at 100 Hz on all our architectures (USER_HZ).
const ticks = time.Second / 100

// startOf returns when a process began; zero when that cannot be told. It is the 22nd field of /proc/PID/stat, the 20th
// behind the name.
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
