package process

import (
	"path"
	"slices"
	"strings"
)

// UnitsOf returns the systemd units in a /proc/PID/cgroup file such as /system.slice/containerd.service, innermost
// first.
func UnitsOf(cgroup string) []string {
	var units []string
	for line := range strings.Lines(cgroup) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		_, where, _ := strings.Cut(rest, ":")
		for dir := where; dir != "/" && dir != "." && dir != ""; dir = path.Dir(dir) {
			if name := path.Base(dir); strings.HasSuffix(name, ".service") && !slices.Contains(units, name) {
				units = append(units, name)
			}
		}
	}
	return units
}
