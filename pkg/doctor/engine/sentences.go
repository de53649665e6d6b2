package engine

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// What the catalog asks for and no snapshot has the evidence of:
//   - rt.restart-loop does not see containers that stay in the state Created: that is in the runtime's own list of
//     containers;
//   - a dead man's record on a node without a run in the cluster is told by `leftovers --nodes`: the helper does not
//     read /var/lib/gpu-fault.

// InSentences lets the fixes of checks be whole sentences, however they are put together.
func InSentences(checks []Check) []Check {
	for i := range checks {
		run := checks[i].Run
		checks[i].Run = func(f *facts.Facts, r *Result) {
			run(f, r)
			for j := range r.Findings {
				r.Findings[j].Fix.Text = words.Sentence(r.Findings[j].Fix.Text)
			}
		}
	}
	return checks
}
