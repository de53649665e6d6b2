package injected

import (
	"slices"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/engine"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// checkOwnLines reports kernel log lines that closed runs wrote.
func checkOwnLines(f *facts.Facts, r *engine.Result) {
	ours := map[string][]finding.Evidence{} // by run
	where := map[string][]string{}
	for _, n := range f.Nodes {
		v := n.GPUs()
		for _, line := range v.Ours {
			if !slices.Contains(where[line.Run], n.Name) {
				where[line.Run] = append(where[line.Run], n.Name)
			}
			if len(ours[line.Run]) < words.Few {
				ours[line.Run] = append(ours[line.Run], v.Quote(line.Record))
			}
		}
	}
	for _, run := range f.Runs {
		if run.Closed.IsZero() || len(where[run.ID]) == 0 {
			continue
		}
		r.Add(finding.Finding{
			Object: finding.Object{Kind: "Run", Name: run.ID}, Layer: layerOfRun(run), Severity: finding.Info,
			Nodes:    where[run.ID],
			Title:    "this tool wrote lines to a kernel log for a test that is over: they tell nothing about the GPU",
			Evidence: append([]finding.Evidence{facts.RunEvidence(run)}, ours[run.ID]...),
			Fix: finding.Fix{
				Text: "Nothing is to be done: a line stays until the node is started anew. A detector that has acted on it must be made to forget it.",
			},
		})
	}
}
