package engine

import (
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// weigh lowers the severity of findings about pods that have restarted or whose failure is in the past, and of findings
// about changes that are in progress.
func weigh(f *facts.Facts, r *Result) {
	for i := range r.Findings {
		found := &r.Findings[i]
		if n := f.Node(found.Object.Name); n != nil && found.Object.Kind == "Node" && found.Severity != finding.Info &&
			finding.AnyMatches(facts.UnderwayEffects(), found.ID) {
			if what := facts.Underway(n); what != "" {
				found.Severity, found.Cause = finding.Info, words.Sentence(what)
			}
		}
		if found.Object.Kind != "Pod" || found.Severity == finding.Info {
			continue
		}
		pod := f.Pod(found.Object.Namespace, found.Object.Name)
		switch {
		case pod == nil:
		case slices.Contains([]string{"sched.unschedulable", "sched.all-in-use", "sched.fragmented"}, found.ID):
			if what := f.Waits(pod, found.ID != "sched.unschedulable"); what != "" {
				found.Severity, found.Title = finding.Info, "the pod is waiting for "+what
			}
		case f.Past(pod):
			found.Severity = finding.Info
		case found.Severity == finding.Error && found.Layer == finding.LayerWorkload:
			found.Severity = facts.WorstOf(f.Troubles(pod))
		}
	}
}
