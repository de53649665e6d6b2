package facts

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/sorting"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/xid"
)

// window is the maximum time between records of one incident. Real cascades take a few seconds, and a GSP timeout is
// reported again after 45 seconds.
const window = time.Minute

// mostRecords is the maximum number of driver records to analyze per node. The newest records are kept.
const mostRecords = 4000

// incidents groups records into incidents. The most significant records come first and absorb accompanying records on
// the same GPU.
func incidents(records []driverRecord) []incident {
	records = slices.Clone(records[max(0, len(records)-mostRecords):])
	sorting.StableFunc(records, func(a, b driverRecord) int { return cmp.Compare(a.Uptime, b.Uptime) })
	order, weights := make([]int, len(records)), make([]int, len(records))
	for i := range order {
		order[i], weights[i] = i, weight(records[i].Event)
	}
	sorting.StableFunc(order, func(a, b int) int { return cmp.Compare(weights[a], weights[b]) })
	taken := make([]bool, len(records))
	var all []incident
	for _, i := range order {
		if taken[i] {
			continue
		}
		taken[i] = true
		in := incident{Primary: records[i]}
		first, _ := slices.BinarySearchFunc(records, in.Primary.Uptime-window,
			func(r driverRecord, at time.Duration) int { return cmp.Compare(r.Uptime, at) })
		for j := first; j < len(records) && records[j].Uptime <= in.Primary.Uptime+window; j++ {
			if !taken[j] && in.Primary.takes(records[j]) {
				taken[j] = true
				in.along = append(in.along, records[j])
			}
		}
		all = append(all, in)
	}
	sorting.StableFunc(all, func(a, b incident) int {
		return cmp.Or(cmp.Compare(b.Primary.Uptime, a.Primary.Uptime), b.Primary.Time.Compare(a.Primary.Time))
	})
	return all
}

// takes reports whether another record within the window belongs to the same incident. Records from conditions match at
// any time, because conditions do not show when a code occurred, and do not always identify the GPU.
func (r driverRecord) takes(other driverRecord) bool {
	a, b := r.Event.PCI, other.Event.PCI
	a.Function, b.Function = 0, 0
	return (a == b || a == (xid.PCI{}) || b == (xid.PCI{})) && follows(r.Event, other.Event)
}

// weight returns the rank of an event by significance. The most significant events have the lowest weight.
func weight(e xid.Event) int {
	switch {
	case e.Kind == xid.KindXID && e.Code == 79:
		return 0
	case e.Kind == xid.KindFallenOff:
		return 1
	case e.Kind == xid.KindSXid:
		return 7
	}
	for i, codes := range [][]int{{64}, {48, 95}, {137}, {94, 140, 171, 172}, {119, 120}, NVLinkCodes(), {63}} {
		if slices.Contains(codes, e.Code) {
			return 2 + i
		}
	}
	switch code, known := xid.Lookup(e.Code); {
	case e.Code == 154:
		return 13
	case e.Code == 45:
		return 12
	case e.Code == 43:
		return 11
	case known && code.Class == "app":
		return 10
	}
	return 9
}

// follows reports whether an event is a consequence of another event on the same GPU, if the two events are at most a
// minute apart. The rules are from NVIDIA's XID catalog and from the groups in pkg/xid, which come from real logs.
func follows(primary, other xid.Event) bool {
	if other.Kind == xid.KindFallenOff {
		return primary.Kind == xid.KindFallenOff || primary.Code == 79
	}
	if other.Kind == xid.KindSXid || primary.Kind == xid.KindSXid {
		return primary.Kind == other.Kind && primary.Code == other.Code
	}
	if other.Code == primary.Code || slices.Contains([]int{43, 45, 154}, other.Code) {
		return true
	}
	if primary.Kind == xid.KindFallenOff {
		return true // other errors that this GPU reports are meaningless
	}
	sympathetic := []int{}
	switch {
	case primary.Code == 79:
		return true
	case primary.Code == 64:
		sympathetic = []int{48, 62, 63, 92, 94, 95, 140, 171, 172}
	case slices.Contains(eccCodes(), primary.Code):
		sympathetic = []int{13, 31, 48, 62, 63, 92, 94, 95, 140, 171, 172}
	case primary.Code == 137:
		sympathetic = []int{94, 108}
	case primary.Code == 119, primary.Code == 120:
		sympathetic = []int{62, 109, 119, 120}
	case slices.Contains(NVLinkCodes(), primary.Code):
		sympathetic = append(NVLinkCodes(), 137, 155)
	}
	return slices.Contains(sympathetic, other.Code)
}

func eccCodes() []int { return []int{48, 94, 95} }

func remapCodes() []int { return []int{63, 64} }

func gspCodes() []int { return []int{119, 120} }

// NVLinkCodes returns the XIDs of NVLink errors.
func NVLinkCodes() []int { return []int{74, 144, 145, 146, 147, 148, 149, 150} }

// OwnerOfCode returns the ID of the check that reports an event, so that each event is reported once.
func OwnerOfCode(e xid.Event) string {
	switch {
	case e.Kind == xid.KindFallenOff, e.Code == 79 && e.Kind == xid.KindXID:
		return "hw.gpu-lost"
	case e.Kind == xid.KindSXid, slices.Contains(NVLinkCodes(), e.Code):
		return "hw.nvlink"
	case slices.Contains(gspCodes(), e.Code):
		return "drv.gsp"
	case slices.Contains(eccCodes(), e.Code):
		return "hw.ecc"
	case slices.Contains(remapCodes(), e.Code):
		return "hw.row-remap"
	}
	return "hw.xid-recent"
}

// Of returns the incidents that a check reports.
func (v *GPUView) Of(check string) []incident {
	return slices.DeleteFunc(slices.Clone(v.Incidents),
		func(in incident) bool { return OwnerOfCode(in.Primary.Event) != check })
}

// SameKind is a group of incidents with the same code on the same GPU, newest first.
type SameKind struct {
	Event     xid.Event
	Incidents []incident
}

// GroupIncidents groups incidents by code and GPU.
func GroupIncidents(all []incident) []SameKind {
	var groups []SameKind
	for _, in := range all {
		i := slices.IndexFunc(groups, func(g SameKind) bool {
			return g.Event.Kind == in.Primary.Event.Kind && g.Event.Code == in.Primary.Event.Code &&
				g.Event.PCI == in.Primary.Event.PCI
		})
		if i < 0 {
			groups = append(groups, SameKind{Event: in.Primary.Event})
			i = len(groups) - 1
		}
		groups[i].Incidents = append(groups[i].Incidents, in)
	}
	return groups
}

// Count returns the number of records, excluding accompanying records.
func (g SameKind) Count() int {
	n := 0
	for _, in := range g.Incidents {
		n++
		for _, r := range in.along {
			if r.Event.Kind == g.Event.Kind && r.Event.Code == g.Event.Code {
				n++
			}
		}
	}
	return n
}

// FromUserSpace reports whether a program, not the driver, wrote all records in the group.
func (g SameKind) FromUserSpace() bool {
	return !g.contains(func(r driverRecord) bool { return !r.userSpace })
}

// contains reports whether any record with the group's own code satisfies the predicate.
func (g SameKind) contains(such func(driverRecord) bool) bool {
	return slices.ContainsFunc(g.Incidents, func(in incident) bool {
		return such(in.Primary) || slices.ContainsFunc(in.along, func(r driverRecord) bool {
			return r.Event.Kind == g.Event.Kind && r.Event.Code == g.Event.Code && such(r)
		})
	})
}
