package doctor

import (
	"slices"
	"time"
)

// How long after an incident that is over a pod may fail because of it, and how far apart the clocks of nodes and of
// the API may be.
const (
	incidentReach = 10 * time.Minute
	clockSkew     = time.Minute
)

// span is when causes of one kind were at work at one place.
type span struct {
	lasting bool // one of them still is, as far as anybody knows
	times   []time.Time
	began   time.Time // when the first of them was injected; zero where one of them was not
	any     bool
}

func (s *span) add(f Finding) {
	injected := time.Time{}
	if f.ID == injectedFault {
		injected = f.began
	}
	if !s.any || injected.Before(s.began) {
		s.any, s.began = true, injected
	}
	s.lasting = s.lasting || len(f.times) == 0
	s.times = append(s.times, f.times...)
}

// meets reports whether one of the causes was at work when the finding came about. A finding that does not tell when
// meets all.
func (s *span) meets(f Finding) bool {
	if s == nil || f.before(s.began) {
		return false
	}
	return s.lasting || f.failed.IsZero() || slices.ContainsFunc(s.times, func(t time.Time) bool {
		after := f.failed.Sub(t)
		return after >= -clockSkew && after <= incidentReach
	})
}

// raise makes an error of a warning without which a workload would run: it is why that does not, and an error must not
// be hidden below a warning. It goes by the severities before those of consequences are lowered.
func raise(all []Finding, direct [][]int) {
	for i := range all {
		if !all[i].Root || all[i].Severity != Warning {
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
			if f := all[next]; !f.Root && f.Severity == Error &&
				(f.Layer == LayerWorkload || f.Layer == LayerScheduling) {
				all[i].Severity = Error
				break
			}
			todo = append(todo, direct[next]...)
		}
	}
}
