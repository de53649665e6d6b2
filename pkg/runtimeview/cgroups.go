package runtimeview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// anyUses reports whether a configured handler has the given value of SystemdCgroup.
func (v *View) anyUses(systemd bool) bool {
	return slices.ContainsFunc(v.Runtime.Handlers, func(h Handler) bool {
		return h.UsesRunc() && h.OnDisk != nil && h.Effective().Systemd() == systemd
	})
}

// cgroups finds handlers whose cgroup driver differs from the default handler's, or from the kubelet's if the kubelet's
// driver is authoritative. Only pods that use these handlers fail.
func (v *View) cgroups() []Finding {
	var expected *bool
	who := ""
	for _, h := range v.Runtime.Handlers {
		if h.Default && h.UsesRunc() {
			systemd := h.Effective().Systemd()
			expected, who = &systemd, "the default handler "+h.Name
		}
	}
	if expected == nil {
		return nil
	}
	release := strings.TrimPrefix(v.Runtime.Release, "v")
	if driver := v.Kubelet.CgroupDriver; driver != "" && strings.HasPrefix(release, "1.") &&
		(driver == "systemd") != *expected && v.anyUses(!*expected) {
		*expected, who = !*expected, "the kubelet" // which takes the driver from containerd 2, whatever is configured
	}
	var other []string
	var edit *Edit
	quotes := []Quote{{"the kubelet's cgroupDriver", cmp.Or(v.Kubelet.CgroupDriver, "not configured")}}
	for _, h := range v.Runtime.Handlers {
		builtIn := h.Name == "runc" && h.OnDisk == nil && !h.Default // neither configured nor used by default
		if h.UsesRunc() && !builtIn && h.Effective().Systemd() != *expected {
			other = append(other, h.Name)
			edit = v.Runtime.replaced(h, "SystemdCgroup", fmt.Sprint(!*expected), fmt.Sprint(*expected))
			quotes = append(quotes, Quote{
				"handler " + h.Name + strings.TrimRight(
					" "+strings.Join(h.Places, " "),
					" ",
				),
				said(new(h.Effective())),
			})
		}
	}
	if len(other) == 0 {
		return nil
	}
	if len(other) > 1 {
		edit = nil
	}
	return []Finding{
		{
			ID:       "rt.cgroup-driver",
			Handlers: other,
			Quotes:   quotes,
			Edit:     edit,
			Title: fmt.Sprintf(
				"SystemdCgroup of %s differs from that of %s (%t)",
				plainly("handler", other),
				who,
				*expected,
			),
			Message: fmt.Sprintf(
				"SystemdCgroup of %s differs from that of %s (%t): pods of the former do not start, or their limits "+
					"are not enforced",
				plainly("handler", other),
				who,
				*expected,
			),
			Fix: fmt.Sprintf("set SystemdCgroup = %t in the options of %s, and restart %s", *expected,
				plainly("handler", other), v.Runtime.UnitName()),
		},
	}
}
