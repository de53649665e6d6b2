package engine

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
)

// weigh lowers the severity of findings about pods that are past failures or have restarted.
func weigh(f *facts.Facts, r *Result) {
	for i := range r.Findings {
		found := &r.Findings[i]
		if found.Object.Kind != "Pod" || found.Severity == finding.Info {
			continue
		}
		pod := f.Pod(found.Object.Namespace, found.Object.Name)
		switch {
		case pod == nil:
		case f.Past(pod):
			found.Severity = finding.Info
		case found.Severity == finding.Error && found.Layer == finding.LayerWorkload:
			found.Severity = facts.WorstOf(f.Troubles(pod))
		}
	}
}
