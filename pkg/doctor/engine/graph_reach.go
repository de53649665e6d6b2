package engine

import (
	"slices"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// span is when causes of one kind were at work at one place.
type span struct {
	lasting bool // one of them still is, as far as anybody knows
	times   []time.Time
	began   time.Time // when the first of them was injected; zero where one of them was not
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

// meets reports whether one of the causes was at work when the finding came about. A finding that does not tell when
// meets all.
func (s *span) meets(f finding.Finding) bool {
	if s == nil || f.Before(s.began) {
		return false
	}
	return s.lasting || f.Failed.IsZero() || slices.ContainsFunc(s.times, func(t time.Time) bool {
		after := f.Failed.Sub(t)
		return after >= -finding.ClockSkew && after <= finding.IncidentReach
	})
}

// raise makes an error of a warning without which a workload would run: it is why that does not, and an error must not
// be hidden below a warning. It goes by the severities before those of consequences are lowered.
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
				(f.Layer == finding.LayerWorkload || f.Layer == finding.LayerScheduling) {
				all[i].Severity = finding.Error
				break
			}
			todo = append(todo, direct[next]...)
		}
	}
}
