package engine

import (
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// Snapshots contain no evidence for the following entries in the catalog:
//   - rt.restart-loop does not detect containers that stay in the Created state. Only the runtime lists such
//     containers.
//   - A dead man's switch on a node without a run in the cluster is reported by `leftovers --nodes`, because doctor's
//     helper pod does not read /var/lib/gpu-fault.

// InSentences wraps the checks so that the text of each fix consists of complete sentences.
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
