package engine

import (
	"slices"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// span is the time during which causes of one kind were active on one object.
type span struct {
	lasting bool // at least one cause is still active, as far as is known
	times   []time.Time
	began   time.Time // when the first cause was injected; zero if any cause was not injected
	any     bool
}

func (s *span) add(f finding.Finding) {
	injected := time.Time{}
	if f.ID == finding.InjectedFault {
		injected = f.Began
	}
	if !s.any || injected.Before(s.began) {
		s.any, s.began = true, injected
	}
	s.lasting = s.lasting || len(f.Times) == 0
	s.times = append(s.times, f.Times...)
}

// meets reports whether a cause was active when the finding occurred. A finding without a time meets every cause.
func (s *span) meets(f finding.Finding) bool {
	if s == nil || f.Before(s.began) {
		return false
	}
	return s.lasting || f.Failed.IsZero() || slices.ContainsFunc(s.times, func(t time.Time) bool {
		after := f.Failed.Sub(t)
		return after >= -finding.ClockSkew && after <= finding.IncidentReach
	})
}

// raise changes the severity of a warning to error if the warning is a root cause and explains an error in the
// workload, scheduling or DRA layer, because a warning must not hide an error. It must run before the severities of
// consequences are lowered.
func raise(all []finding.Finding, direct [][]int) {
	for i := range all {
		if !all[i].Root || all[i].Severity != finding.Warning {
			continue
		}
		seen, todo := map[int]bool{i: true}, slices.Clone(direct[i])
		for len(todo) > 0 {
			next := todo[0]
			todo = todo[1:]
			if seen[next] {
				continue
			}
			seen[next] = true
			if f := all[next]; !f.Root && f.Severity == finding.Error &&
				slices.Contains([]finding.Layer{
					finding.LayerWorkload, finding.LayerScheduling, finding.LayerDRA,
				}, f.Layer) {
				all[i].Severity = finding.Error
				break
			}
			todo = append(todo, direct[next]...)
		}
	}
}
